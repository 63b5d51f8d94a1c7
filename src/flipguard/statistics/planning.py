"""How many further samples would decide a rule that is still open."""

from __future__ import annotations

import math
from collections.abc import Callable


def deciding_sample_size(
    interval_at: Callable[[float], tuple[float, float]],
    *,
    n: int,
    low_limit: float,
    high_limit: float,
    largest: int = 10**12,
) -> int | None:
    """Further samples until the interval lies wholly inside or wholly outside the limits.

    `interval_at(scale)` is the interval with all counts multiplied by `scale`: the rates stay what
    they are, only the evidence grows. None where no sample up to `largest` decides, which is where
    the value sits on a limit.

    >>> from flipguard.statistics import wilson
    >>> def at(scale):
    ...     return wilson(18 * scale, 1000 * scale, confidence=0.95)
    >>> deciding_sample_size(at, n=1000, low_limit=0.0, high_limit=0.02)
    17861
    """
    if n <= 0:
        return None

    def decided(samples: int) -> bool:
        low, high = (float(end) for end in interval_at(samples / n))
        inside = low >= low_limit and high <= high_limit
        return inside or low > high_limit or high < low_limit

    undecided, enough = n, n + 1
    while not decided(enough):
        if enough >= largest:
            return None
        undecided, enough = enough, min(2 * enough, largest)
    while enough - undecided > 1:
        middle = (undecided + enough) // 2
        if decided(middle):
            enough = middle
        else:
            undecided = middle
    return math.ceil(enough - n)
