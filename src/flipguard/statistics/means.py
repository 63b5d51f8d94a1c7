"""Means of numbers with a known range, from sums alone, and the spread of a handful of retrains.

A mean of rows that rarely move rests on the few that do, and a standard error says nothing of rows
that were not seen. So each end of an interval allows for one more row at its end of the range, and
is a quantile of the beta distribution that has the mean and the variance of those rows. For rows
of 0 and 1 that is Clopper and Pearson's exact limit; where the range is far, it is Fay and Feuer's
gamma limit for sums of weighted counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import (
    FloatArray,
    Interval,
    critical_value,
    divide,
    floats,
    tail_of,
)

# A larger sum of the beta's parameters changes nothing but the time to find its quantile.
LARGEST_PRECISION = 1e12
# The search narrows a range to 1e-5 of itself, which at a smallest value is exact to 10 digits.
STEPS = 24
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def bounded_mean(
    total: ArrayLike,
    total_of_squares: ArrayLike,
    n: ArrayLike,
    *,
    most: ArrayLike,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
    guarded: tuple[bool, bool] = (False, True),
) -> Interval:
    """Interval of a mean of numbers from 0 to `most`, from the sum and the sum of squares.

    Where `most` is infinite so is the upper end: a row that was not seen may lie anywhere.

    With a design effect the sums are divided by it; `degrees` makes the error rate Student's.
    `guarded` says of the lower and the upper end whether it must be monotone. A guarded upper end
    never falls when a number rises (a guarded lower end never rises when one falls), though this
    may make the numbers more alike. That costs up to about 2 / n of the mean (of its distance from
    `most`) at a confidence of 0.95.

    >>> low, high = bounded_mean(15.0, 13.0, 100, most=1.0, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0871 0.2334
    >>> low, high = bounded_mean(0.0, 0.0, 100, most=5.0, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0000 0.1811
    """
    tail = 0.5 * tail_of(critical_value(confidence=confidence, degrees=degrees))
    sums, squares, count, top, tail = floats(total, total_of_squares, n, most, tail)
    size = divide(count, design_effect)
    with np.errstate(all="ignore"):
        mean = np.clip(divide(sums, count), 0.0, top)
        # Rounding can turn the spread of equal numbers slightly negative.
        spread = np.maximum(divide(squares, count) - mean**2, 0.0)
        far = np.isinf(top)
        unit = np.where(far, 1.0, top)
        share, part = mean / unit, np.minimum(spread / unit**2, mean / unit * (1 - mean / unit))
    low = unit * _from_end(1.0 - share, part, size, tail, guarded=guarded[0])
    high = unit * (1.0 - _from_end(share, part, size, tail, guarded=guarded[1]))
    low = np.where(far, _without_end(mean, spread, size, tail), low)
    high = np.where(far & ~np.isnan(low), np.inf, high)
    return np.minimum(low, mean)[()], np.maximum(high, mean)[()]


def _from_end(
    mean: FloatArray, spread: FloatArray, n: FloatArray, tail: FloatArray, *, guarded: bool
) -> FloatArray:
    """How far below 1 the upper end of a mean of numbers from 0 to 1 lies."""
    if not guarded:
        return _quantile(mean, spread, n, tail)
    square = spread + mean**2

    # Of numbers that are nowhere larger, the squares do not sum to more; and of those with the
    # same squares, the ones with another mean may have the higher end.
    def quantile(place: FloatArray) -> FloatArray:
        below = square + place * (mean - square)
        return _quantile(below, np.maximum(square - below**2, 0.0), n, tail)

    return _smallest(quantile, np.shape(mean))


def _quantile(mean: FloatArray, spread: FloatArray, n: FloatArray, tail: FloatArray) -> FloatArray:
    """The same for these very moments: a quantile of the beta with one more row, at 1."""
    from scipy.special import betaincinv

    with np.errstate(all="ignore"):
        distance = (1.0 - mean) * n / (n + 1)
        variance = (spread + (1.0 - mean) ** 2 / (n + 1)) * n / (n + 1)
        precision = np.minimum((n + 1) * distance * (1.0 - distance) / variance, LARGEST_PRECISION)
        found = betaincinv(precision * distance, precision * (1.0 - distance), tail)
    return np.where(distance > 0, found, np.where(np.isnan(distance), np.nan, 0.0))


def _without_end(
    mean: FloatArray, spread: FloatArray, n: FloatArray, tail: FloatArray
) -> FloatArray:
    """The lower end where numbers have no upper bound: the beta has become a gamma."""
    from scipy.special import gammaincinv

    with np.errstate(all="ignore"):
        centre = mean * n / (n + 1)
        variance = (spread + mean**2 / (n + 1)) * n / (n + 1)
        shape = np.minimum((n + 1) * centre**2 / variance, LARGEST_PRECISION)
        found = centre * gammaincinv(shape, tail) / shape
    return np.where(centre > 0, found, centre)


def _smallest(function: Callable[[FloatArray], FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """The smallest value for places from 0 to 1, of functions with one valley or one hill."""
    low, high = np.zeros(shape), np.ones(shape)
    best = np.minimum(function(low), function(high))
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(STEPS):
        best = np.minimum(best, np.minimum(at_left, at_right))
        lower = at_left < at_right
        low, high = np.where(lower, low, left), np.where(lower, right, high)
        fresh = np.where(lower, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        at_fresh = function(fresh)
        left, right = np.where(lower, fresh, right), np.where(lower, left, fresh)
        at_left, at_right = (
            np.where(lower, at_fresh, at_right),
            np.where(lower, at_left, at_fresh),
        )
    return np.asarray(np.minimum(best, np.minimum(at_left, at_right)))


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


def prediction_interval(values: ArrayLike, *, confidence: ArrayLike) -> Interval:
    """Where one further draw will fall, from the draws seen so far (last axis).

    This is the noise floor of retraining: k control retrains say what another one would measure.
    Student's t, so normal scatter is assumed; nan for fewer than two draws.

    >>> low, high = prediction_interval([0.031, 0.028, 0.034], confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0161 0.0459
    """
    (draws,) = floats(values)
    draws = np.atleast_1d(draws)
    k = draws.shape[-1]
    if k < 2:
        nothing = np.full(draws.shape[:-1], np.nan)
        return nothing[()], nothing.copy()[()]
    spread = np.sqrt(draws.var(axis=-1, ddof=1) * (1 + 1 / k))
    half = critical_value(confidence=confidence, degrees=k - 1) * spread
    centre = draws.mean(axis=-1)
    return (centre - half)[()], (centre + half)[()]
