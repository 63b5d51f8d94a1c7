"""Intervals of functions of means over samples, by their linear parts (the delta method)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import critical_value, floats

CONFIDENCE = 0.95
# A number with the ends of its interval.
ValueInterval = tuple[float, float, float]


def mean_of(values: ArrayLike) -> ValueInterval:
    """Return the mean of one value per sample, with its interval.

    >>> [round(x, 3) for x in mean_of([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    (each,) = floats(values)
    return around(float(each.mean()) if len(each) else float("nan"), each)


def ratio_of_sums(top: ArrayLike, bottom: ArrayLike) -> ValueInterval:
    """Return the ratio of two sums over samples, with an interval on the logarithmic scale.

    >>> [round(x, 3) for x in ratio_of_sums([1.0, 2.0, 3.0, 2.0], [2.0, 4.0, 6.0, 4.0])]
    [0.5, 0.5, 0.5]
    """
    return ratio_of_ratios(((top, 1.0), (bottom, -1.0)))


def ratio_of_ratios(factors: tuple[tuple[ArrayLike, float], ...]) -> ValueInterval:
    """Return the product of means, each to a power, with an interval on the logarithmic scale."""
    logarithm, parts, value = 0.0, np.zeros(1), 1.0
    for values, power in factors:
        (each,) = floats(values)
        mean = float(each.mean()) if len(each) else float("nan")
        if not mean > 0:
            # The product is 0 or undefined, and has no logarithm.
            value *= 0.0 if power > 0 and mean == 0 else float("nan")
            continue
        logarithm += power * np.log(mean)
        parts = parts + power * (each / mean - 1.0)
    if value != 1.0:
        return value, float("nan"), float("nan")
    value, low, high = around(float(logarithm), parts)
    return float(np.exp(value)), float(np.exp(low)), float(np.exp(high))


def around(value: float, parts: ArrayLike) -> ValueInterval:
    """Return a number with its interval, given each sample's linear part of it.

    The number varies as the mean of the parts does.
    """
    (each,) = floats(parts)
    if len(each) < 2:
        return value, float("nan"), float("nan")
    critical = float(critical_value(confidence=CONFIDENCE, degrees=len(each) - 1))
    reach = critical * float(each.std(ddof=1)) / float(np.sqrt(len(each)))
    return value, value - reach, value + reach


def separation(values: ArrayLike, marked: ArrayLike) -> ValueInterval:
    """Return the chance that a marked sample has a higher value than another, with its interval.

    It is the area under the ROC curve, in which a tie counts one half, with the variance of DeLong
    et al. (1988).

    >>> separation([1.0, 2.0, 3.0, 4.0], [False, True, False, True])[0]
    0.75
    """
    each, is_marked = np.asarray(values, dtype=np.float64), np.asarray(marked, dtype=np.bool_)
    count = int(is_marked.sum())
    others = len(each) - count
    if not count or not others:
        return float("nan"), float("nan"), float("nan")
    every = _mid_ranks(each)
    # Of the other kind, the share below each sample.
    below = (every[is_marked] - _mid_ranks(each[is_marked])) / others
    above = 1 - (every[~is_marked] - _mid_ranks(each[~is_marked])) / count
    value = float(below.mean())
    if count < 2 or others < 2:
        return value, float("nan"), float("nan")
    variance = below.var(ddof=1) / count + above.var(ddof=1) / others
    reach = float(critical_value(confidence=CONFIDENCE)) * float(np.sqrt(variance))
    return value, max(0.0, value - reach), min(1.0, value + reach)


def _mid_ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])
