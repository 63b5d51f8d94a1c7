"""How hard the generated tests try: `make test-all` raises it tenfold."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("FLIPGUARD_EFFORT", "1"))


def tries(usual: int) -> int:
    """The number of generated cases for a property."""
    return usual * EFFORT
