"""Ratios over clusters of rows: an interval that allows for one unseen cluster.

Rows of one cluster (one user, one video) tend to flip together. The interval is an empirical
likelihood over the observed clusters and one unseen cluster, which is assumed to flip more often
than the rate under test. Without it, ten clusters that happen to have few flips would pass any
limit.

The weight of a cluster depends only on its size. So one more flip never lowers the upper end, and
the upper end is never below the one without any flip.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import FloatArray, critical_value, find_root, floats

# A cluster counts as at most 1 / ROW_CORRELATION rows.
ROW_CORRELATION = 0.1
# The weight of the unseen cluster. With 0.65 and 30 or more clusters, the upper end without any
# flip is within 1 % of the exact one (Clopper and Pearson's).
UNSEEN_WEIGHT = 0.65
# The largest intraclass correlation that the interval allows for.
LARGEST_CORRELATION = 0.5
# How far the unseen cluster differs in the second interval, which weighs clusters by their rows.
SLIGHT_DIFFERENCE = 0.01


def upper_end(
    top: ArrayLike,
    bottom: ArrayLike,
    rows: ArrayLike,
    times: ArrayLike,
    *,
    confidence: ArrayLike,
) -> FloatArray:
    """Upper end of sum(top) / sum(bottom), a ratio of at most 1, over clusters of rows.

    The last axis holds one number per distinct cluster. `times` says how often that cluster occurs;
    it may be 0, so that groups with different numbers of clusters fit one array. `confidence` has
    the shape of the leading axes. nan for fewer than two clusters: one cluster says nothing about
    others.

    >>> high = upper_end([0.0], [100.0], [100.0], [10.0], confidence=0.95)
    >>> print(f"{high:.4f}")
    0.1790
    """
    weighed = _Weighed(top, bottom, rows, times)
    critical = critical_value(confidence=confidence)
    shape = np.broadcast_shapes(weighed.enough.shape, critical.shape)
    ends = [_end(*likelihood, critical, shape) for likelihood in weighed.likelihoods]
    return np.where(weighed.enough, np.maximum(*ends), np.nan)[()]


def p_value_below(
    top: ArrayLike, bottom: ArrayLike, rows: ArrayLike, times: ArrayLike, *, limit: ArrayLike
) -> FloatArray:
    """The alpha at which the upper end of the (1 - alpha) interval just touches `limit`.

    1 where the rate, with the unseen cluster, is not below the limit.

    >>> p = p_value_below([0.0], [100.0], [100.0], [10.0], limit=0.1790)
    >>> print(f"{p:.2f}")
    0.05
    """
    from scipy.special import ndtr

    weighed = _Weighed(top, bottom, rows, times)
    bound = np.broadcast_to(np.asarray(limit, dtype=np.float64), weighed.enough.shape)
    p_values = []
    for a, b, often in weighed.likelihoods:
        below = _over(often * a, often * b)[..., 0] < bound
        fall = _fall(a, b, often, bound)
        p_values.append(np.where(below, 2.0 * ndtr(-np.sqrt(2.0 * np.maximum(fall, 0.0))), 1.0))
    return np.where(weighed.enough, np.maximum(*p_values), np.nan)[()]


class _Weighed:
    """The clusters and the unseen one, weighted for each of the two likelihoods."""

    def __init__(
        self, top: ArrayLike, bottom: ArrayLike, rows: ArrayLike, times: ArrayLike
    ) -> None:
        part, whole, size, often = floats(top, bottom, rows, times)
        often = np.where(size > 0, often, 0.0)
        size = np.where(size > 0, size, 1.0)
        self.enough = often.sum(axis=-1) >= 2
        often = np.where(self.enough[..., np.newaxis], often, 1.0)
        share = size / (1 + (size - 1) * ROW_CORRELATION)
        share = share * _over(often * share, often * share**2)
        alike = _over(often * share**2 / size, often * share**2)
        unseen = LARGEST_CORRELATION + (1 - LARGEST_CORRELATION) * alike
        scale = _over(often * size, often * size**2)
        slight = np.full_like(unseen, SLIGHT_DIFFERENCE)
        k = np.append(often, np.full_like(unseen, UNSEEN_WEIGHT), axis=-1)
        self.likelihoods = [
            (np.append(weight * part, u, axis=-1), np.append(weight * whole, u, axis=-1), k)
            for weight, u in ((share / size, unseen), (scale, slight))
        ]


def _over(first: FloatArray, second: FloatArray) -> FloatArray:
    """The ratio of two sums over clusters, keeping the axis of clusters."""
    return np.asarray(first.sum(axis=-1, keepdims=True) / second.sum(axis=-1, keepdims=True))


def _end(
    a: FloatArray, b: FloatArray, often: FloatArray, critical: FloatArray, shape: tuple[int, ...]
) -> FloatArray:
    """The largest rate whose empirical likelihood is within the critical value of the maximum."""
    best = np.broadcast_to(_over(often * a, often * b)[..., 0], shape)

    def excess(rate: FloatArray) -> FloatArray:
        return np.minimum(_fall(a, b, often, rate), 1e9) - critical**2 / 2

    # The best rate itself is a second root, at which the likelihood is flat.
    low = best + 1e-9 * (1 - best)
    found = find_root(excess, low=low, high=np.ones(shape))
    return np.where(np.isnan(critical), np.nan, found)


def _fall(a: FloatArray, b: FloatArray, often: FloatArray, rate: FloatArray) -> FloatArray:
    """By how much the log likelihood at a rate lies below its maximum.

    `a` and `b` end with the unseen cluster, whose rate is u + b * (1 - u) at a rate of u.
    """
    # A cluster that never occurs must not bound the tilt.
    distance = np.where(often > 0, a - rate[..., np.newaxis] * b, 0.0)
    tilt = _tilt(distance, often)
    with np.errstate(all="ignore"):
        fall = (often * np.log1p(-tilt[..., np.newaxis] * distance)).sum(axis=-1)
    # No weights reach a mean above the rate of every cluster.
    return np.where(distance.max(axis=-1) > 0, fall, np.inf)


def _tilt(distance: FloatArray, often: FloatArray) -> FloatArray:
    """The s between 0 and 1 / max(distance) at which sum(often * distance / (1 - s distance)) is 0.

    Newton's method in a bracket. It runs until nothing changes: stopped early, the interval is not
    monotone.
    """
    highest = distance.max(axis=-1)
    with np.errstate(all="ignore"):
        above = np.where(highest > 0, 1.0 / highest, 0.0)
    below = np.zeros_like(above)
    tilt = 0.5 * above
    for _ in range(200):
        with np.errstate(all="ignore"):
            moved = distance / (1 - tilt[..., np.newaxis] * distance)
            weighed = often * moved
            slope = weighed.sum(axis=-1)
            step = slope / (weighed * moved).sum(axis=-1)
        below, above = np.where(slope < 0, tilt, below), np.where(slope < 0, above, tilt)
        following = tilt - step
        inside = (following > below) & (following < above)
        following = np.where(inside, following, 0.5 * (below + above))
        if np.all(np.abs(following - tilt) <= 1e-15 * above):
            return following
        tilt = following
    return tilt
