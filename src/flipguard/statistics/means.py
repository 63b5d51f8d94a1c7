"""Means of bounded or unbounded numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import FloatArray, Interval, critical_value, divide, floats


def mean(
    total: ArrayLike,
    total_of_squares: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike | None = None,
) -> Interval:
    """Student's t interval of a mean from the sum and the sum of squares.

    `degrees` is n - 1 unless told; nan for fewer than two samples.

    >>> low, high = mean(15.0, 55.0, 5, confidence=0.95)
    >>> print(f"{low:.3f} {high:.3f}")
    1.037 4.963
    """
    sums, squares, count, effect = floats(total, total_of_squares, n, design_effect)
    freedom = count - 1 if degrees is None else degrees
    centre = divide(sums, count)
    variance = mean_variance(sums, squares, count)
    half = critical_value(confidence=confidence, degrees=freedom) * np.sqrt(variance * effect)
    return (centre - half)[()], (centre + half)[()]


def mean_variance(total: ArrayLike, total_of_squares: ArrayLike, n: ArrayLike) -> FloatArray:
    """Sampling variance of a mean when the samples are independent: s^2 / n, s^2 unbiased.

    >>> print(mean_variance(15.0, 55.0, 5))
    0.5
    """
    sums, squares, count = floats(total, total_of_squares, n)
    centre = divide(sums, count)
    # Rounding can turn the spread of equal numbers slightly negative.
    spread = np.maximum(squares - count * centre**2, 0.0)
    return divide(divide(spread, np.maximum(count - 1, 0.0)), count)[()]
