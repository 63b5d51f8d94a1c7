"""
The gain of new over old on the same samples: interval, non-inferiority, equivalence.

Everything here inverts one statistic, Tango's score (Statistics in Medicine 17, 1998): the
difference of the two kinds of flips, divided by its spread *under the gain that is tested*. Unlike
Wald's it stays honest when flips are rare, and it is defined when there are none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import (
    FloatArray,
    Interval,
    critical_value,
    divide,
    find_root,
    floats,
)
from flipguard.statistics.proportions import exact_limits


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
    # The estimate itself is a second root where nothing flipped, so the search starts beside it.
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
