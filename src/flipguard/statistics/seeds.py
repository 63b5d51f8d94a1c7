"""Intervals over few retrains: what one more would measure, and differences of means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flipguard.statistics._arrays import (
    FloatArray,
    Interval,
    critical_value,
    divide,
    floats,
    tail_of,
)

DifferenceInterval = tuple[float, float]
UNKNOWN: DifferenceInterval = (math.nan, math.nan)
# Degrees of freedom of the mean variance. With more, more pairs are decided, too many by chance.
SHARED_DEGREES = 1.0
# With fewer pairs their mean variance is too uncertain, and each pair is judged alone.
FEWEST = 5
# With at least this many seeds each pair is judged alone, too.
ENOUGH = 10
ROUNDING = 1e-9  # of a count of samples


def prediction_interval(
    values: ArrayLike, *, confidence: ArrayLike, controls: int | None = None
) -> Interval:
    """Where one further draw will fall, from the draws seen so far (last axis).

    Student's t, so normal scatter is assumed; nan for fewer than two draws. With `controls`, return
    the range that this number of draws with the same mean and spread would give.

    >>> low, high = prediction_interval([0.031, 0.028, 0.034], confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0161 0.0459
    """
    (draws,) = floats(values)
    draws = np.atleast_1d(draws)
    if draws.shape[-1] < 2:
        nothing = np.full(draws.shape[:-1], np.nan)
        return nothing[()], nothing.copy()[()]
    k = controls or draws.shape[-1]
    spread = np.sqrt(draws.var(axis=-1, ddof=1) * (1 + 1 / k))
    half = critical_value(confidence=confidence, degrees=k - 1) * spread
    centre = draws.mean(axis=-1)
    return (centre - half)[()], (centre + half)[()]


def retrain_rate(
    flips: ArrayLike, n: ArrayLike, *, confidence: ArrayLike, controls: int | None = None
) -> Interval:
    """The range in which the rate of one more retrain lies, on the same n samples.

    `flips` (..., k) holds the flips of each retrain. nan for fewer than two retrains.

    >>> low, high = retrain_rate([1, 1], 200, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0000 0.0250
    """
    (seen,) = floats(flips)
    size = np.asarray(n, dtype=np.float64)
    scatter = prediction_interval(
        divide(seen, size[..., np.newaxis]), confidence=confidence, controls=controls
    )
    few = _next_count(seen, confidence=confidence, controls=controls)
    low, high = _joined(scatter, (divide(few[0], size), divide(few[1], size)))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def retrain_gain(
    positive: ArrayLike,
    negative: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    controls: int | None = None,
) -> Interval:
    """The range in which the accuracy gain of one more retrain lies, on the same n samples.

    `positive` and `negative` (..., k) hold the flips of each retrain. The ranges of both are joined
    by adding the squares of their distances from the mean.

    >>> low, high = retrain_gain([3, 1], [1, 1], 200, confidence=0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    -0.1050 0.1150
    """
    gains, losses = floats(positive, negative)
    size = np.asarray(n, dtype=np.float64)
    difference = gains - losses
    scatter = prediction_interval(
        divide(difference, size[..., np.newaxis]), confidence=confidence, controls=controls
    )
    up = _next_count(gains, confidence=confidence, controls=controls)
    down = _next_count(losses, confidence=confidence, controls=controls)
    gain, loss = gains.mean(axis=-1), losses.mean(axis=-1)
    low = gain - loss - np.hypot(gain - up[0], down[1] - loss)
    high = gain - loss + np.hypot(up[1] - gain, loss - down[0])
    # A further retrain gains a whole number of samples.
    low, high = np.floor(low + ROUNDING), np.ceil(high - ROUNDING)
    low, high = _joined(scatter, (divide(low, size), divide(high, size)))
    return np.clip(low, -1.0, 1.0), np.clip(high, -1.0, 1.0)


def _joined(scatter: Interval, few: Interval) -> Interval:
    return np.minimum(scatter[0], few[0]), np.maximum(scatter[1], few[1])


def _next_count(
    seen: FloatArray, *, confidence: ArrayLike, controls: int | None = None
) -> Interval:
    """Exact range of the flips of one more retrain, if all have the same rate.

    Given the total over the k retrains and the further one, the count of the further one is
    binomial with probability 1 / (k + 1). The limits are those of a negative binomial distribution.
    """
    from scipy.special import nbdtrik

    k = controls or seen.shape[-1]
    tail = 0.5 * tail_of(critical_value(confidence=confidence))
    total, tail = floats(seen.mean(axis=-1) * k, tail)
    with np.errstate(all="ignore"):
        low = np.where(total > 0, nbdtrik(tail, np.maximum(total, 1.0), k / (k + 1)), 0.0)
        # The function interpolates between counts; the largest count in the range is the next one.
        high = np.ceil(nbdtrik(1.0 - tail, total + 1.0, k / (k + 1)))
    return np.where(np.isnan(low), 0.0, low), high


def retraining_variance(
    controls: ArrayLike, apart: ArrayLike, *, confidence: ArrayLike
) -> FloatArray:
    """What the seed adds to the squared half-width of the log of a ratio to k controls.

    `controls` (..., k) holds the flips of each, and `apart` on how many samples two of them differ.
    It is the variance of the logs times Student's t squared, less the part that independent samples
    explain. The seed of the new model counts once, that of the k controls 1 / k times.

    >>> more = retraining_variance([100, 120, 90], 60.0, confidence=0.95)
    >>> print(f"{more:.2f}")
    0.50
    """
    flips, differing = np.asarray(controls, dtype=np.float64), np.asarray(apart, dtype=np.float64)
    k = flips.shape[-1]
    # Half a flip is added, because 0 has no logarithm.
    spread = np.log(flips + 0.5).var(axis=-1, ddof=1)
    sampling = differing / (2 * (flips.mean(axis=-1) + 0.5) ** 2)
    student = critical_value(confidence=confidence, degrees=k - 1)
    excess = student**2 * spread - critical_value(confidence=confidence) ** 2 * sampling
    return np.asarray((1 + 1 / k) * np.maximum(excess, 0.0))


def difference_intervals(
    differences: Sequence[ArrayLike],
    *,
    confidence: float,
    shared_degrees: float = SHARED_DEGREES,
    enough: float = ENOUGH,
) -> list[DifferenceInterval]:
    """The interval of each mean difference, from all differences of one metric, seed by seed.

    Differences of fewer than two seeds, or with a seed that has no number, have none. Only those
    with equally many seeds are taken together.

    >>> alone = difference_intervals([[0.1, 0.2, 0.3]], confidence=0.95)[0]
    >>> shared = difference_intervals([[0.1, 0.2, 0.3]] * 5, confidence=0.95)[0]
    >>> [round(x, 2) for x in (*alone, *shared)]
    [-0.05, 0.45, 0.02, 0.38]
    """
    values = [np.asarray(one, dtype=np.float64) for one in differences]
    found = [UNKNOWN] * len(values)
    for seeds in {len(one) for one in values if len(one) > 1}:
        together = [
            i for i, one in enumerate(values) if len(one) == seeds and np.isfinite(one).all()
        ]
        if together:
            shared = shared_degrees if len(together) >= FEWEST and seeds < enough else 0.0
            limits = _shared(np.stack([values[i] for i in together]), confidence, shared)
            for place, (low, high) in zip(together, limits, strict=True):
                found[place] = float(low), float(high)
    return found


def _shared(
    table: NDArray[np.float64], confidence: float, shared_degrees: float
) -> NDArray[np.float64]:
    """The limits of each row's mean."""
    from scipy.special import stdtrit

    seeds = table.shape[1]
    own, degrees = table.var(axis=1, ddof=1), seeds - 1
    variances = (shared_degrees * own.mean() + degrees * own) / (shared_degrees + degrees)
    half = stdtrit(shared_degrees + degrees, 0.5 + confidence / 2) * np.sqrt(variances / seeds)
    middle = table.mean(axis=1)
    return np.stack([middle - half, middle + half], axis=1)
