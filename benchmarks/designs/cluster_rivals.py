"""Alternative intervals of a clustered rate, which were measured but not chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, ndtri, stdtrit

from designs.drawing import Floats, Interval
from designs.rates import clopper_pearson, wilson_score
from flipguard import statistics
from flipguard.statistics import clusters

# Only this many draws of each design are used for the alternatives.
RIVAL_DRAWS = 1_000
# The slowest alternative gets fewer.
WEIGHED_DRAWS = 100


def rivals_of(
    flips: NDArray[np.int64], sizes: NDArray[np.int64], confidence: float
) -> dict[str, Interval]:
    """`flips` is (draws, clusters), `sizes` (clusters,)."""
    x, m = flips.astype(np.float64), sizes.astype(np.float64)
    n, total = m.sum(), x.sum(axis=-1)
    rate = (total / n)[:, np.newaxis]
    effect = design_effect(x, m, rate)
    found = {
        "rows as if independent": statistics.wilson(total, n, confidence=confidence),
        "design effect, effective degrees": statistics.wilson(
            total,
            n,
            confidence=confidence,
            design_effect=np.where(np.isnan(effect), (m**2).sum() / n, np.maximum(effect, 1.0)),
            degrees=effective_degrees(x, m),
        ),
        "Korn-Graubard": korn_graubard(total, n, len(m), effect, confidence),
        "Wilson, upper bound of the ICC": wilson_icc(x, m, confidence),
    }
    # With equal sizes it is the chosen method.
    if len(np.unique(sizes)) > 1:
        found["one more cluster, weighed by rows"] = weighed_by_rows(x, m, confidence)
    return found


def design_effect(x: Floats, m: Floats, rate: Floats) -> Floats:
    """The design effect that a bootstrap over clusters estimates; nan without flips."""
    clusters, n = len(m), m.sum()
    variance = ((x - rate * m) ** 2).sum(axis=-1) / n**2 * clusters / (clusters - 1)
    alone = (rate * (1 - rate))[:, 0] / n
    return np.where(alone > 0, variance / np.where(alone > 0, alone, 1.0), np.nan)


def effective_degrees(x: Floats, m: Floats) -> Floats:
    clusters = len(m)
    without = (x.sum(axis=-1, keepdims=True) - x) / (m.sum() - m)
    moved = (without - without.mean(axis=-1, keepdims=True)) ** 2
    with np.errstate(all="ignore"):
        variation = (moved**2).sum(axis=-1) / moved.sum(axis=-1) ** 2 - 1 / clusters
        degrees = np.clip(2 / np.maximum(variation, 1e-12), 1.0, max(clusters - 1.0, 1.0))
    return np.where(np.isnan(degrees), clusters - 1.0, degrees)


def korn_graubard(
    total: Floats, n: float, clusters: int, effect: Floats, confidence: float
) -> Interval:
    """Clopper-Pearson with an effective sample size, adjusted by Student's t for few clusters."""
    tail = (1 - confidence) / 2
    adjusted = (stdtrit(n - 1, tail) / stdtrit(clusters - 1, tail)) ** 2
    size = np.where(np.isnan(effect), n, n / np.maximum(effect, 1.0) * adjusted)
    return clopper_pearson(total / n * size, size, confidence)


def wilson_icc(x: Floats, m: Floats, confidence: float) -> Interval:
    """Wilson's with the design effect of the upper confidence bound of the ANOVA correlation."""
    clusters, n = len(m), m.sum()
    total = x.sum(axis=-1)
    rate = (total / n)[:, np.newaxis]
    typical = (n - (m**2).sum() / n) / (clusters - 1)
    between = (m * (x / m - rate) ** 2).sum(axis=-1) / (clusters - 1)
    within = (x * (1 - x / m)).sum(axis=-1) / (n - clusters)
    with np.errstate(all="ignore"):
        f = between / within / fdtri(clusters - 1, n - clusters, (1 - confidence) / 2)
        icc = np.clip((f - 1) / (f + typical - 1), 0.0, 1.0)
    icc = np.where(np.isnan(icc), 1.0, icc)
    size = n / (1 + ((m**2).sum() / n - 1) * icc)
    return wilson_score(total / n * size, size, confidence)


def weighed_by_rows(x: Floats, m: Floats, confidence: float) -> Interval:
    """The chosen method with each cluster weighted by its number of rows."""
    few = x[:WEIGHED_DRAWS]
    weight = m * m.sum() / (m**2).sum()
    largest = clusters.LARGEST_CORRELATION
    unseen = largest + (1 - largest) * m.sum() / (m**2).sum()
    often = np.append(np.ones_like(m), clusters.UNSEEN_WEIGHT)
    critical = np.full(len(few), float(-ndtri((1 - confidence) / 2)))

    def end(part: Floats) -> Floats:
        a = np.append(weight * part / m, np.full((len(part), 1), unseen), axis=-1)
        b = np.broadcast_to(np.append(weight, unseen), a.shape)
        return clusters._end(a, b, often, critical, (len(part),))

    low, high = statistics.wilson(few.sum(axis=-1), m.sum(), confidence=confidence)
    return np.minimum(low, 1 - end(m - few)), np.maximum(high, end(few))
