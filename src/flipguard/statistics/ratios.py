"""Two ratios: the relative negative flip rate, and new's flips over those of its controls."""

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
    tail_of,
)
from flipguard.statistics.proportions import exact_limits, wilson


def relative_negative_flip_rate(
    negative_flip: ArrayLike,
    old_right: ArrayLike,
    new_wrong: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Interval of R = NFR / ((1 - ER_old) ER_new).

    With w the share that old got right, R = 1 / (w + (1 - w) / rho), where rho is the ratio of
    new's error rates on what old got right and on what it got wrong: two independent binomials. rho
    has Donner and Zou's interval from the exact limits of the two rates, w has Wilson's. R's ends
    are its extremes over all (rho, w) whose distances, in critical values, lie on one circle; at
    small counts and high confidence both matter at once, and adding the two reaches would not do.
    It is defined without any flip; nan where old was never right or new never wrong.

    >>> low, high = relative_negative_flip_rate(20, 900, 80, 1000, confidence=0.95)
    >>> print(f"{low:.3f} {high:.3f}")
    0.180 0.396
    """
    critical = critical_value(confidence=confidence, degrees=degrees)
    flips, right, wrong, total, effect, critical = floats(
        negative_flip, old_right, new_wrong, n, design_effect, critical
    )
    flips, right, wrong, total = (divide(x, effect) for x in (flips, right, wrong, total))
    value = divide(flips * total, right * wrong)
    low, high = value, value
    for angle in np.linspace(0.0, np.pi / 2, ANGLES):
        odds = _risk_share(flips, right, wrong - flips, total - right, critical * np.cos(angle))
        share = _score_and_exact(right, total, critical * np.sin(angle))
        corners = [divide(o, s * o + (1 - s) * (1 - o)) for o in odds for s in share]
        low, high = np.fmin(low, np.fmin.reduce(corners)), np.fmax(high, np.fmax.reduce(corners))
    # Old was never wrong: nothing is known of new's errors there, so any risk ratio is possible.
    blind = (right == total) & ~np.isnan(value)
    low = np.where(blind, 0.0, low)
    high = np.where(blind, divide(1.0, _score_and_exact(right, total, critical)[0]), high)
    known = ~np.isnan(value + critical)
    return np.where(known, low, np.nan)[()], np.where(known, high, np.nan)[()]


# Directions in which the share and the ratio of error rates are moved together.
ANGLES = 7


def _score_and_exact(hits: FloatArray, n: FloatArray, critical: FloatArray) -> Interval:
    return wilson(hits, n, confidence=1.0 - tail_of(critical))


def _risk_share(
    first: FloatArray, m: FloatArray, second: FloatArray, n: FloatArray, critical: FloatArray
) -> Interval:
    """Interval of p1 / (p1 + p2), the risk ratio on a bounded scale, from the exact limits of both.

    Donner and Zou's (Statistical Methods in Medical Research 21, 2012), in a form that is defined
    where one of the two is 0.
    """
    p, q = divide(first, m), divide(second, n)
    low_p, high_p = exact_limits(first, m, critical)
    low_q, high_q = exact_limits(second, n, critical)

    def least(p: FloatArray, low_p: FloatArray, q: FloatArray, high_q: FloatArray) -> FloatArray:
        """The lower end of p / (p + q)."""
        reach = low_p * (2 * p - low_p)
        root = np.sqrt(np.maximum((p * q) ** 2 - reach * high_q * (2 * q - high_q), 0.0))
        return np.where(p == 0, 0.0, divide(reach, reach + p * q + root))

    return least(p, low_p, q, high_q), 1.0 - least(q, low_q, p, high_p)


def log_relative_negative_flip_rate_variance(
    negative_flip: ArrayLike, old_right: ArrayLike, new_wrong: ArrayLike, n: ArrayLike
) -> FloatArray:
    """Sampling variance of log R when the samples are independent (delta method).

    >>> print(f"{log_relative_negative_flip_rate_variance(20, 900, 80, 1000):.5f}")
    0.03594
    """
    flips, right, wrong, total = floats(negative_flip, old_right, new_wrong, n)
    ratio = divide(flips * total, right * wrong)
    variance = divide(1, flips) - divide(1, right) - divide(1, wrong) + divide(2 * ratio - 1, total)
    return np.maximum(variance, 0.0)[()]


# Pseudo-flags on each side of the table, so that cells nobody fell into may still have a chance.
# Of 0.1, 0.25, 0.5, 1 and 2 the least covers best: never too little, and the others too much.
PSEUDO_FLAGS = 0.1


def paired_ratio(
    joint: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Score interval of mean(new flagged) / mean(share of k controls flagged), same samples.

    `joint` (..., 2, k + 1) counts samples by new's flag and by how many of the k controls are
    flagged. A ratio r is inside when mean(new - r * controls) lies within the critical value of 0,
    in standard errors taken from the most likely table *in which the ratio is r*: for one control
    this is Tang's score interval, and it holds for any number. Where fewer than about five flags
    are expected it covers more than it says. nan where no control is ever flagged.

    >>> low, high = paired_ratio([[900, 50], [20, 30]], confidence=0.95)
    >>> print(f"{low:.3f} {high:.3f}")
    0.479 0.807
    """
    critical = critical_value(confidence=confidence, degrees=degrees)
    table = _joint(joint)
    effect, critical = floats(design_effect, critical)
    table = divide(table, effect[..., np.newaxis, np.newaxis])
    shape = np.broadcast_shapes(table.shape[:-2], critical.shape)
    table = np.broadcast_to(table, shape + table.shape[-2:])
    low, high = _ratio_limits(table, np.broadcast_to(critical, shape))
    return low[()], high[()]


def _ratio_limits(table: FloatArray, critical: FloatArray) -> Interval:
    moments = _Moments(table)
    k = table.shape[-1] - 1
    # On the bounded scale s = r / (1 + r) the contrast is (1 - s) * new - s * controls.
    estimate = divide(moments.new, moments.new + moments.control)
    square = divide(critical**2, moments.n)
    new, share = np.repeat([0.0, 1.0], k + 1), np.tile(np.linspace(0.0, 1.0, k + 1), 2)
    pseudo = np.concatenate(
        [[0.0], np.full(k, PSEUDO_FLAGS / k), np.full(k + 1, PSEUDO_FLAGS / (k + 1))]
    )
    counts = table.reshape(*table.shape[:-2], 2 * (k + 1)) + pseudo

    def excess(scaled: FloatArray) -> FloatArray:
        contrast = (1 - scaled[..., np.newaxis]) * new - scaled[..., np.newaxis] * share
        seen = (1 - scaled) * moments.new - scaled * moments.control
        return seen**2 - square * _variance_at_zero(counts, contrast)

    # Both limits in one search. It starts beside the estimate, which is a root where a count is 0.
    near = np.stack([estimate * (1 - 1e-6), estimate + 1e-6 * (1 - estimate)])
    far = np.stack([np.full(estimate.shape, 1e-9), np.full(estimate.shape, 1 - 1e-9)])
    low, high = find_root(excess, low=near, high=far)
    low = np.where(moments.new > 0, divide(low, 1 - low), 0.0)
    undefined = ~(moments.control > 0) | np.isnan(critical)
    return np.where(undefined, np.nan, low), np.where(undefined, np.nan, divide(high, 1 - high))


def _variance_at_zero(counts: FloatArray, contrast: FloatArray) -> FloatArray:
    """Variance of the contrast under the most likely cell chances with a mean contrast of 0.

    Those chances are counts / (total (1 + tilt * contrast)): multinomial likelihood under one
    linear constraint has a single multiplier, whichever the number of cells.
    """

    def mean_contrast(tilt: FloatArray) -> FloatArray:
        return np.asarray((counts * contrast / (1 + tilt[..., np.newaxis] * contrast)).sum(axis=-1))

    # Every cell keeps a positive chance between these two.
    least, most = -1 / contrast.max(axis=-1), -1 / contrast.min(axis=-1)
    tilt = find_root(mean_contrast, low=least * (1 - 1e-12), high=most * (1 - 1e-12))
    chances = counts / (1 + tilt[..., np.newaxis] * contrast)
    return np.asarray((chances * contrast**2).sum(axis=-1) / chances.sum(axis=-1))


class _Moments:
    """Means, variances and covariance per sample of new's flag and of the controls' share."""

    def __init__(self, table: FloatArray) -> None:
        share = np.linspace(0.0, 1.0, table.shape[-1])
        self.n = table.sum(axis=(-2, -1))
        flagged = table[..., 1, :]
        either = table.sum(axis=-2)
        self.new = divide(flagged.sum(axis=-1), self.n)
        self.control = divide((either * share).sum(axis=-1), self.n)
        square = divide((either * share**2).sum(axis=-1), self.n)
        self.control_variance = np.maximum(square - self.control**2, 0.0)
        product = divide((flagged * share).sum(axis=-1), self.n)
        self.covariance = product - self.new * self.control


def _joint(joint: ArrayLike) -> FloatArray:
    table = np.asarray(joint, dtype=np.float64)
    if table.ndim < 2 or table.shape[-2] != 2 or table.shape[-1] < 2:
        raise ValueError(f"Expected `joint` to be (..., 2, k + 1), but got shape {table.shape}.")
    return table


def log_paired_ratio_variance(joint: ArrayLike) -> FloatArray:
    """Sampling variance of the logarithm of the ratio when the samples are independent.

    >>> print(f"{log_paired_ratio_variance([[900, 50], [20, 30]]):.5f}")
    0.01750
    """
    moments = _Moments(_joint(joint))
    new, control = moments.new, moments.control
    variance = (
        divide(new * (1 - new), new**2)
        + divide(moments.control_variance, control**2)
        - 2 * divide(moments.covariance, new * control)
    )
    return divide(np.maximum(variance, 0.0), moments.n)[()]
