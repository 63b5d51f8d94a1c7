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
)
from flipguard.statistics.proportions import wilson


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

    With w the share that old got right, R = 1 / (w + (1 - w) / rho), where rho is the risk ratio
    of new's errors on what old got right and on what it got wrong: two independent binomials. The
    interval joins Koopman's score interval of rho and Wilson's of w by the squares of their reaches
    (MOVER). It is defined without any flip; nan where old was never right or new never wrong.

    >>> low, high = relative_negative_flip_rate(20, 900, 80, 1000, confidence=0.95)
    >>> print(f"{low:.3f} {high:.3f}")
    0.186 0.391
    """
    critical = critical_value(confidence=confidence, degrees=degrees)
    flips, right, wrong, total, effect, critical = floats(
        negative_flip, old_right, new_wrong, n, design_effect, critical
    )
    flips, right, wrong, total = (divide(x, effect) for x in (flips, right, wrong, total))
    share = divide(right, total)
    low_odds, odds, high_odds = _risk_share(flips, right, wrong - flips, total - right, critical)
    level, freedom = floats(confidence, degrees)
    low_share, high_share = wilson(right, total, confidence=level, degrees=freedom)
    value = divide(flips * total, right * wrong)

    def ratio(odds: FloatArray, share: FloatArray) -> FloatArray:
        return divide(odds, share * odds + (1 - share) * (1 - odds))

    # R falls with the share where new errs more often on what old got right, and rises elsewhere;
    # both ends are tried and the farther one counts.
    first, second = ratio(odds, low_share), ratio(odds, high_share)
    down = np.hypot(value - ratio(low_odds, share), value - np.minimum(first, second))
    up = np.hypot(ratio(high_odds, share) - value, np.maximum(first, second) - value)
    low, high = np.maximum(value - down, 0.0), value + up
    # Old was never wrong: nothing is known of new's errors there, so any risk ratio is possible.
    blind = (right == total) & ~np.isnan(value)
    low = np.where(blind, 0.0, low)
    high = np.where(blind, divide(1.0, low_share), high)
    return low[()], high[()]


def _risk_share(
    first: FloatArray, m: FloatArray, second: FloatArray, n: FloatArray, critical: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Koopman's score interval of p1 / (p1 + p2), the risk ratio on a bounded scale."""
    p, q = divide(first, m), divide(second, n)
    estimate = divide(p, p + q)
    square = critical**2

    def excess(share: FloatArray) -> FloatArray:
        odds = share / (1 - share)
        a, b, c = (m + n) * odds, -(odds * (m + second) + first + n), first + second
        base = 2 * c / (np.sqrt(np.maximum(b**2 - 4 * a * c, 0.0)) - b)
        top = np.minimum(odds * base, 1.0)
        # Miettinen and Nurminen's widening, for each group: it matters where old has few errors.
        spread = (1 - share) ** 2 * top * (1 - top) * (1 + 1 / m) / m
        spread += share**2 * base * (1 - base) * (1 + 1 / n) / n
        return np.asarray(((1 - share) * p - share * q) ** 2 - square * spread)

    # The estimate itself is a second root where a count is 0, so the search starts beside it.
    below, above = estimate * (1 - 1e-6), estimate + 1e-6 * (1 - estimate)
    edge = np.full(estimate.shape, 1e-12)
    low = np.where(first == 0, 0.0, find_root(excess, low=edge, high=below))
    high = np.where(second == 0, 1.0, find_root(excess, low=above, high=1 - edge))
    return low, estimate, high


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
