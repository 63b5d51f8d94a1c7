"""One rate: the Wilson score interval, kept honest at small counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flipguard.statistics._arrays import (
    FloatArray,
    Interval,
    critical_value,
    divide,
    floats,
    tail_of,
)

# With this many successes and failures, the exact limits are not worth their cost.
LARGEST_EXACT = 1_000_000


def wilson(
    successes: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Wilson's score interval of a rate, widened to Clopper and Pearson's where that is wider.

    If few successes are expected, Wilson's interval alone covers as little as 83.8 % at a
    confidence of 0.95 and 71.5 % at 0.8, because its lower limit is too high there. With the exact
    limits the coverage is at least the stated confidence, for a few percent more width.

    With a design effect the counts are divided by it; `degrees` makes the critical value Student's.

    >>> low, high = wilson(20, 1000, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0123 0.0307
    """
    x, total, effect = floats(successes, n, design_effect)
    critical = critical_value(confidence=confidence, degrees=degrees)
    effective = divide(total, effect)
    hits = divide(x, effect)
    rate = divide(x, total)
    low, high = _score_limits(rate, effective, critical)
    exact_low, exact_high = exact_limits(hits, effective, critical)
    return np.minimum(low, exact_low)[()], np.maximum(high, exact_high)[()]


def exact_limits(hits: FloatArray, n: FloatArray, critical: FloatArray) -> Interval:
    """Clopper and Pearson's limits, for the confidence of a normal critical value.

    If both successes and failures are very many, the score limits take their place: they differ by
    less than a thousandth of the width and cost far less.
    """
    tail = 0.5 * tail_of(critical)
    hits, n, tail = np.broadcast_arrays(hits, n, tail)
    low, high = _score_limits(divide(hits, n), n, critical)
    few = np.minimum(hits, n - hits) < LARGEST_EXACT
    low = np.where(few, _one_sided_low(hits, n - hits, tail, few), low)
    high = np.where(few, 1.0 - _one_sided_low(n - hits, hits, tail, few), high)
    return low, high


def _score_limits(rate: FloatArray, n: FloatArray, critical: FloatArray) -> Interval:
    square = critical**2
    with np.errstate(all="ignore"):
        centre = (rate + square / (2 * n)) / (1 + square / n)
        half = critical * np.sqrt(rate * (1 - rate) / n + square / (4 * n**2)) / (1 + square / n)
    # Rounding may leave 1e-19 where the limit is exactly 0 or 1.
    low = np.where(rate == 0, 0.0, np.clip(centre - half, 0.0, rate))
    high = np.where(rate == 1, 1.0, np.clip(centre + half, rate, 1.0))
    return np.where(np.isnan(half), np.nan, low), np.where(np.isnan(half), np.nan, high)


def _one_sided_low(
    hits: FloatArray, misses: FloatArray, tail: FloatArray, wanted: NDArray[np.bool_]
) -> FloatArray:
    """Exact lower limit with an error of `tail` on this side."""
    from scipy.special import betaincinv

    wanted = wanted & (hits > 0) & (misses >= 0)
    limit = np.where(hits + misses > 0, 0.0, np.nan)
    limit[wanted] = betaincinv(hits[wanted], misses[wanted] + 1.0, tail[wanted])
    return limit


def proportion_variance(successes: ArrayLike, n: ArrayLike) -> FloatArray:
    """Sampling variance of a rate when the samples are independent: p (1 - p) / n.

    >>> print(proportion_variance(50, 100))
    0.0025
    """
    x, total = floats(successes, n)
    rate = divide(x, total)
    return divide(rate * (1 - rate), total)[()]
