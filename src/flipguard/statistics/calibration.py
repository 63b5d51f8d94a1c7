"""An interval for a binned calibration error, whose plug-in estimate is biased upwards."""

from __future__ import annotations

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

# E|X| exceeds |mean| by at most sqrt(2 / pi) standard deviations, at mean 0, and by ever less away
# from it. Taking BUMP * exp(-x^2 / 2) off |x| removes at least that much on average at any mean:
# the bump's own mean is sqrt(2 / pi) * exp(-mean^2 / 4), which lies above the bias throughout.
BUMP = 2.0 / np.sqrt(np.pi)
# Near 0 the corrected |x| varies more than x does: by this much at the worst mean (1.75).
WORST_VARIANCE = 1.632


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
