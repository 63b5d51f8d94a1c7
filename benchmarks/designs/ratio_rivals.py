"""Alternative intervals of a ratio to controls, which were measured but not chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flipguard import statistics
from flipguard.statistics._arrays import critical_value, divide, find_root

Floats = NDArray[np.float64]
Interval = tuple[Floats, Floats]

# Flips that the score interval adds to each side of the table, so that every cell has a chance.
PSEUDO_FLAGS = 0.1


def log_delta(joint: Floats, level: float) -> Interval:
    """Normal on the logarithm, with the variance of the delta method."""
    half = critical_value(confidence=level) * np.sqrt(statistics.log_paired_ratio_variance(joint))
    share = np.linspace(0, 1, joint.shape[-1])
    with np.errstate(all="ignore"):
        value = joint[..., 1, :].sum(axis=-1) / (joint.sum(axis=-2) * share).sum(axis=-1)
        low, high = value * np.exp(-half), value * np.exp(half)
    return np.where(value == 0, 0.0, low), np.where(value == 0, 0.0, high)


def mover_wilson(joint: Floats, level: float) -> Interval:
    """Donner and Zou's: Wilson for both means, joined with their correlation."""
    n = joint.sum(axis=(-2, -1))
    share = np.linspace(0, 1, joint.shape[-1])
    either = joint.sum(axis=-2)
    new = joint[..., 1, :].sum(axis=-1) / n
    control = (either * share).sum(axis=-1) / n
    variance = (either * share**2).sum(axis=-1) / n - control**2
    covariance = (joint[..., 1, :] * share).sum(axis=-1) / n - new * control
    with np.errstate(all="ignore"):
        together = np.nan_to_num(covariance / np.sqrt(new * (1 - new) * variance))
        low_new, high_new = statistics.wilson(new * n, n, confidence=level)
        low_control, high_control = statistics.wilson(
            control * n,
            n,
            confidence=level,
            design_effect=variance / (control * (1 - control)),
        )

        def end(reach: Floats, other: Floats, sign: float) -> Floats:
            a, b = control**2 - other**2, new * control - together * reach * other
            c = new**2 - reach**2
            root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
            return (b + root) / a if sign > 0 else np.maximum(c / (b + root), 0.0)

        low = end(new - low_new, high_control - control, -1)
        high = end(high_new - new, control - low_control, 1)
    return np.where(new == 0, 0.0, low), high


def bonett_price(joint: Floats, level: float) -> Interval:
    """The hybrid Wilson interval for one control (Bonett and Price, 2006)."""
    both, new_only, control_only = joint[..., 1, 1], joint[..., 1, 0], joint[..., 0, 1]
    n = both + new_only + control_only
    first, second = both + new_only + 1, both + control_only + 1
    with np.errstate(all="ignore"):
        joined = np.sqrt((new_only + control_only + 2) / (first * second))
        apart = np.sqrt((1 - first / (n + 2)) / first) + np.sqrt((1 - second / (n + 2)) / second)
        z = critical_value(confidence=level) * joined / apart

        def wilson(x: Floats) -> Interval:
            centre = (2 * x + z**2) / (2 * (n + z**2))
            half = z * np.sqrt(z**2 + 4 * x * (1 - x / n)) / (2 * (n + z**2))
            return centre - half, centre + half

        low_new, high_new = wilson(both + new_only)
        low_control, high_control = wilson(both + control_only)
        return low_new / high_control, high_new / low_control


def score(table: Floats, level: float) -> Interval:
    """The score interval under the likeliest table with this ratio: Tang's for one control."""
    critical = critical_value(confidence=level)
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

    def excess(scaled: Floats) -> Floats:
        contrast = (1 - scaled[..., np.newaxis]) * new - scaled[..., np.newaxis] * share
        seen = (1 - scaled) * moments.new - scaled * moments.control
        return seen**2 - square * _variance_at_zero(counts, contrast)

    # Both limits in one search. It starts next to the estimate, which is a root where a count is 0.
    near = np.stack([estimate * (1 - 1e-6), estimate + 1e-6 * (1 - estimate)])
    far = np.stack([np.full(estimate.shape, 1e-9), np.full(estimate.shape, 1 - 1e-9)])
    low, high = find_root(excess, low=near, high=far)
    low = np.where(moments.new > 0, divide(low, 1 - low), 0.0)
    undefined = ~(moments.control > 0) | np.isnan(critical)
    return np.where(undefined, np.nan, low), np.where(undefined, np.nan, divide(high, 1 - high))


def _variance_at_zero(counts: Floats, contrast: Floats) -> Floats:
    """Variance of the contrast under the most likely cell probabilities with mean contrast 0.

    Those chances are counts / (total (1 + tilt * contrast)): multinomial likelihood under one
    linear constraint has a single multiplier, however many cells there are.
    """

    def mean_contrast(tilt: Floats) -> Floats:
        return np.asarray((counts * contrast / (1 + tilt[..., np.newaxis] * contrast)).sum(axis=-1))

    # Every cell keeps a positive chance between these two.
    least, most = -1 / contrast.max(axis=-1), -1 / contrast.min(axis=-1)
    tilt = find_root(mean_contrast, low=least * (1 - 1e-12), high=most * (1 - 1e-12))
    chances = counts / (1 + tilt[..., np.newaxis] * contrast)
    return np.asarray((chances * contrast**2).sum(axis=-1) / chances.sum(axis=-1))


class _Moments:
    """Means, variances and covariance per sample of new's flag and of the controls' share."""

    def __init__(self, table: Floats) -> None:
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
