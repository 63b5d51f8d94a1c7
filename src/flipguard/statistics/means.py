"""Means of numbers with a known range, and binned calibration errors: intervals and variances."""

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

# The search narrows a range by a factor of 1e-5. Near a minimum that gives 10 correct digits.
STEPS = 24
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0

# E|X| exceeds |mean| by at most sqrt(2 / pi) standard deviations, at mean 0, and by ever less away
# from it. Taking BUMP * exp(-x^2 / 2) off |x| removes at least that much on average at any mean:
# the bump's own mean is sqrt(2 / pi) * exp(-mean^2 / 4), which lies above the bias throughout.
BUMP = 2.0 / np.sqrt(np.pi)
# Near 0 the corrected |x| varies more than x does: by this much at the worst mean (1.75).
WORST_VARIANCE = 1.632


def bounded_mean(
    total: ArrayLike,
    total_of_squares: ArrayLike,
    n: ArrayLike,
    *,
    most: ArrayLike,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
    guard_low: bool = False,
) -> Interval:
    """Interval of a mean of numbers from 0 to `most`, from the sum and the sum of squares.

    If `most` is infinite, so is the upper end, because an unseen row may have any value.

    With a design effect the sums are divided by it; `degrees` are those of Student's t.
    The upper end is guarded: it never falls when a number rises, even if that makes the numbers
    more alike. The guard makes it larger by up to about 2 / n of the mean at a confidence of 0.95.
    `guard_low` guards the lower end too, at the same price relative to its distance to `most`.

    >>> low, high = bounded_mean(15.0, 13.0, 100, most=1.0, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0908 0.2300
    >>> low, high = bounded_mean(0.0, 0.0, 100, most=5.0, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0000 0.1811
    """
    tail = 0.5 * tail_of(critical_value(confidence=confidence, degrees=degrees))
    sums, squares, count, top, tail = floats(total, total_of_squares, n, most, tail)
    size = divide(count, design_effect)
    with np.errstate(all="ignore"):
        mean = np.clip(divide(sums, count), 0.0, top)
        # Rounding can turn the spread of equal numbers slightly negative, or too large.
        square = np.clip(divide(squares, count), mean**2, np.where(mean > 0, mean * top, 0.0))
        share, part = mean / top, square / top**2
        reflected = 1.0 - 2.0 * share + part
        guarded_low = top * _guarded(1.0 - share, reflected, size, tail) if guard_low else mean
        low = np.minimum(_lower(mean, square, size, tail), guarded_low)
        high = top * (1.0 - _guarded(share, part, size, tail))
    high = np.where(np.isinf(top) & ~np.isnan(low), np.inf, high)
    return np.minimum(low, mean)[()], np.maximum(high, mean)[()]


def _lower(mean: FloatArray, square: FloatArray, n: FloatArray, tail: FloatArray) -> FloatArray:
    """Lower end of a mean of non-negative numbers, from their mean and their mean square."""
    from scipy.special import betaincinv

    with np.errstate(all="ignore"):
        # If all values are 0 or `step`, with this mean and mean square: the number that is not 0.
        step = square / mean
        moved = np.minimum(n * mean / step, n)
        found = step * betaincinv(moved, n - moved + 1.0, tail)
    return np.where(mean > 0, found, mean)


def _guarded(mean: FloatArray, square: FloatArray, n: FloatArray, tail: FloatArray) -> FloatArray:
    """How far below 1 the upper end of a mean of numbers from 0 to 1 lies.

    The guarded end is the highest one over all smaller means with the same sum of squares. So it
    cannot fall when numbers rise, which never lowers the sum of squares.
    """

    def distance(place: FloatArray) -> FloatArray:
        below = square + place * (mean - square)
        return _lower(1.0 - below, 1.0 - 2.0 * below + square, n, tail)

    return _smallest(distance, np.shape(mean))


def _smallest(function: Callable[[FloatArray], FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """Smallest value between 0 and 1 of functions with a single minimum or maximum there."""
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


def padded_mean(
    total: ArrayLike,
    total_of_squares: ArrayLike,
    padding: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Interval of a mean of rows of which most are 0, as if a few more had been another.

    `padding` is n times the squared value of one such row. As many of them are added as make the
    interval of a sample of nothing but zeros that of the score method: from -z^2/n to z^2/n rows.

    >>> low, high = padded_mean(0.0, 0.0, 100.0, 100.0, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    -0.0384 0.0384
    """
    sums = floats(total, total_of_squares, padding, n, confidence, design_effect, degrees)
    whole, squares, one, size, level, effect, freedom = sums
    critical = critical_value(confidence=level, degrees=freedom)
    mean = divide(whole, size)
    variance = np.maximum(divide(squares, size) - mean**2, 0.0)
    variance = variance + divide(critical**2 * divide(one, size), size)
    half = critical * np.sqrt(effect * divide(variance, size))
    return np.maximum(mean - half, -1.0), np.minimum(mean + half, 1.0)


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


def calibration_error(
    n: ArrayLike,
    right: ArrayLike,
    confidence_sum: ArrayLike,
    gap_squared_sum: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Interval of the binned expected calibration error from sums per bin (last axis).

    The plug-in sum of |gaps| is too large on average, most of all for a calibrated model. For the
    upper limit it is used as it is, because too large is safe there. The upper limit also allows
    for one more sample that is wrong at a confidence of 1: a model that is always sure and rarely
    wrong has no error in most small samples. For the lower limit at least the bias is subtracted in
    each bin, so that a calibrated model's interval reaches down to 0. The price is coverage above
    the stated confidence (95 to 100 % at 95 %). The interval always contains the plug-in.

    >>> low, high = calibration_error([500, 500], [300, 450], [325.0, 450.0], [120.0, 45.0],
    ...                               confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0000 0.0521
    >>> low, high = calibration_error([100], [100], [100.0], [0.0], confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0000 0.0369
    """
    count, hits, sums, squares = floats(n, right, confidence_sum, gap_squared_sum)
    total = count.sum(axis=-1, keepdims=True)
    gap = divide(hits - sums, total)
    stated = divide(sums, count)
    # A sure bin that shows no error yet has no spread; what it would have, were it calibrated,
    # is then the better guess.
    calibrated = np.where(count > 0, sums * (1 - stated), 0.0)
    squares = np.maximum(squares, calibrated)
    effect = np.asarray(design_effect, dtype=np.float64)[..., np.newaxis]
    variance = divide(divide(squares, total) - gap**2, total) * effect
    spread = np.sqrt(np.maximum(variance, 0.0))
    critical = critical_value(confidence=confidence, degrees=degrees)
    plain = np.abs(gap)
    with np.errstate(all="ignore"):
        standard = np.where(spread > 0, gap / spread, np.inf)
        corrected = plain - BUMP * spread * np.exp(-0.5 * standard**2)
    # A bin six standard errors off needs no correction, and varies no more than its gap.
    doubt = np.clip((6.0 - np.abs(standard)) / 2.0, 0.0, 1.0)
    widened = spread**2 * (1.0 + (WORST_VARIANCE - 1.0) * doubt)
    low = corrected.sum(axis=-1) - critical * np.sqrt(widened.sum(axis=-1))
    one_more = divide(effect, total)[..., 0]
    above = _above((spread**2).sum(axis=-1), one_more, 0.5 * tail_of(critical))
    return np.maximum(low, 0.0)[()], np.minimum(plain.sum(axis=-1) + above, 1.0)[()]


def _above(variance: FloatArray, one_more: FloatArray, tail: FloatArray) -> FloatArray:
    """How far an upper limit lies above a mean that one more sample can move by `one_more`.

    It is the limit of a Poisson count whose steps are all as large as that of the unseen sample.
    """
    from scipy.special import gammainccinv

    with np.errstate(all="ignore"):
        steps = variance / one_more**2
        return np.asarray(one_more * (gammainccinv(steps + 1.0, tail) - steps))
