"""The report: what an update breaks, as one page that needs nothing but a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flipguard.engines.plan import Want

# What a page shows beyond the counts.
WANTS: tuple[Want, ...] = ("flips", "target_groups", "distances")
