"""One rate, and the gain of new over old on the same samples: intervals, tests and variances."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flipguard.statistics._arrays import (
    FloatArray,
    Interval,
    critical_value,
    divide,
    find_root,
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


def paired_difference(
    positive: ArrayLike,
    negative: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Interval of (positive - negative) / n: Tango's score, widened by exact limits of both rates.

    If flips are few and mostly of one kind, Tango's interval misses on one side more often than
    stated: in 5.2 % of cases instead of 2.5 % with 5 positive and 0.3 negative flips expected, and
    6.7 times as often as stated at a confidence of 0.99995. An interval that adds the squares of
    the exact limits' distances from the two rates (MOVER) misses there at most 1.3 times as often
    as stated. Of the two intervals, the wider end counts on each side.

    >>> low, high = paired_difference(30, 20, 1000, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    -0.0044 0.0247
    """
    critical = critical_value(confidence=confidence, degrees=degrees)
    gains, losses, total, effect, critical = floats(positive, negative, n, design_effect, critical)
    gains, losses, total = divide(gains, effect), divide(losses, effect), divide(total, effect)
    low, high = tango(gains, losses, total, critical)
    exact_high = _exact_upper(gains, losses, total, critical)
    exact_low = -_exact_upper(losses, gains, total, critical)
    return np.minimum(low, exact_low)[()], np.maximum(high, exact_high)[()]


def tango(gains: FloatArray, losses: FloatArray, n: FloatArray, critical: FloatArray) -> Interval:
    """Tango's score limits of (gains - losses) / n."""
    # By symmetry the lower limit of a gain is minus the upper limit of the swapped one.
    return -_upper_limit(losses, gains, n, critical), _upper_limit(gains, losses, n, critical)


def _exact_upper(
    gains: FloatArray, losses: FloatArray, n: FloatArray, critical: FloatArray
) -> FloatArray:
    """The upper limit from the exact limits of both rates, whose squared distances are added."""
    gain, loss = divide(gains, n), divide(losses, n)
    up = exact_limits(gains, n, critical)[1] - gain
    down = loss - exact_limits(losses, n, critical)[0]
    return np.minimum(gain - loss + np.hypot(up, down), 1.0)


def _upper_limit(
    gains: FloatArray, losses: FloatArray, n: FloatArray, critical: FloatArray
) -> FloatArray:
    estimate = divide(gains - losses, n)
    square = divide(critical**2, n)

    def excess(gain: FloatArray) -> FloatArray:
        return (gain - estimate) ** 2 - square * _null_variance(gains, losses, n, gain)

    # A bracket of the size of the answer keeps all digits when flips are rare; 1 is always above.
    with np.errstate(all="ignore"):
        reach = 2 * critical * np.sqrt(gains + losses + 4 * critical**2) / n
        near = np.minimum(estimate + reach, 1.0)
        end = np.where(excess(near) >= 0, near, 1.0)
    # If nothing flipped the estimate is a second root, so the search starts next to it.
    root = find_root(excess, low=estimate + 1e-6 * (end - estimate), high=end)
    known = (n > 0) & ~np.isnan(square)
    return np.where(known, np.where(gains >= n, 1.0, root), np.nan)


def _null_variance(
    gains: FloatArray, losses: FloatArray, n: FloatArray, gain: FloatArray
) -> FloatArray:
    """Variance of one sample's difference if the true gain were `gain` (likelihood estimate)."""
    with np.errstate(all="ignore"):
        b = (2 * n - gains + losses) * gain - gains - losses
        c = losses * gain * (1 - gain)
        root = np.sqrt(np.maximum(b**2 + 8 * n * c, 0.0))
        # Two forms of one root of 2 n q^2 + b q - c = 0; each is free of cancellation for its b.
        loss_rate = np.where(b > 0, 2 * c / (b + root), (root - b) / (4 * n))
    # Rounding may leave the rate a hair outside what the gain allows.
    loss_rate = np.maximum(loss_rate, np.maximum(0.0, -gain))
    return np.maximum(2 * loss_rate + gain * (1 - gain), 0.0)


def _score(gains: FloatArray, losses: FloatArray, n: FloatArray, gain: FloatArray) -> FloatArray:
    """How many standard errors the observed gain lies above `gain`."""
    difference = divide(gains - losses, n) - gain
    spread = np.sqrt(divide(_null_variance(gains, losses, n, gain), n))
    # Without any spread a difference of 0 is no evidence, and any other one is full evidence.
    with np.errstate(all="ignore"):
        score = np.where(spread > 0, difference / spread, np.sign(difference) * np.inf)
    return np.where(difference == 0, 0.0, np.where(np.isnan(spread), np.nan, score))


def non_inferiority_p(
    positive: ArrayLike, negative: ArrayLike, n: ArrayLike, *, margin: ArrayLike
) -> FloatArray:
    """One-sided p value of "new loses `margin` or more" by Tango's score.

    Small means: new is shown to be less than `margin` worse than old.

    >>> print(f"{non_inferiority_p(30, 25, 1000, margin=0.02):.5f}")
    0.00076
    """
    from scipy.special import ndtr

    gains, losses, total, allowed = floats(positive, negative, n, margin)
    score = _score(gains, losses, total, -allowed)
    return np.asarray(ndtr(-score), dtype=np.float64)[()]


def equivalence_p(
    positive: ArrayLike, negative: ArrayLike, n: ArrayLike, *, margin: ArrayLike
) -> FloatArray:
    """P value of "the gain is `margin` or more, either way": two one-sided tests, the larger.

    Small means: old and new are shown to be within `margin` of each other.

    >>> print(f"{equivalence_p(30, 25, 1000, margin=0.02):.4f}")
    0.0258
    """
    not_worse = non_inferiority_p(positive, negative, n, margin=margin)
    not_better = non_inferiority_p(negative, positive, n, margin=margin)
    return np.maximum(not_worse, not_better)


def paired_difference_variance(
    positive: ArrayLike, negative: ArrayLike, n: ArrayLike
) -> FloatArray:
    """Sampling variance of (positive - negative) / n when the samples are independent.

    >>> print(f"{paired_difference_variance(30, 20, 1000):.4g}")
    4.99e-05
    """
    gains, losses, total = floats(positive, negative, n)
    gain = divide(gains - losses, total)
    return divide(divide(gains + losses, total) - gain**2, total)[()]
