"""The report: one self-contained HTML page that shows what an update breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flipguard.engines.plan import Want

# The details that a page needs beyond the counts.
WANTS: tuple[Want, ...] = ("flips", "target_groups", "distances")
