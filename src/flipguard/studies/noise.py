"""How much seeds alone move a difference, where there are many differences and few seeds.

Three seeds say little about a variance: Student's t is 4.3 standard errors wide with their two
degrees of freedom, and 2.8 with four. But a table has many pairs of rows, and what seeds do to one
of them they do to another, more or less. So the variance of a pair counts with its own degrees of
freedom, and the mean variance of all pairs of the metric with `WORTH` further ones:

    (WORTH mean + d own) / (WORTH + d)    with    WORTH + d    degrees of freedom.

That is the moderated t of G. Smyth, "Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments", 2004, but with a fixed worth: pairs share their
rows, and so look more alike than they are, and an estimated worth is too high. What it leaves to
chance is measured (`benchmarks/few_seeds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)
# In degrees of freedom: more of them decide more pairs, and too many of those by chance.
WORTH = 2.0


def intervals(
    differences: Sequence[ArrayLike], *, confidence: float, worth: float = WORTH
) -> list[Interval]:
    """The interval of each mean difference, from all differences of one metric, seed by seed.

    Differences of fewer than two seeds, or with a seed that has no number, have none and say
    nothing of the others, which all have equally many seeds.

    >>> alone = intervals([[0.1, 0.2, 0.3]], confidence=0.95)[0]
    >>> beside = intervals([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], confidence=0.95)[0]
    >>> [round(x, 2) for x in (*alone, *beside)]
    [-0.05, 0.45, 0.04, 0.36]
    """
    from scipy.special import stdtrit

    values = [np.asarray(one, dtype=np.float64) for one in differences]
    known = [i for i, one in enumerate(values) if len(one) > 1 and np.isfinite(one).all()]
    found = [UNKNOWN] * len(values)
    if not known:
        return found
    table = np.stack([values[i] for i in known])
    seeds = table.shape[1]
    own, degrees = table.var(axis=1, ddof=1), seeds - 1
    # Not worth more than what the other pairs have seen; nothing, if there are none.
    worth = min(worth, degrees * (len(known) - 1))
    variances = (worth * own.mean() + degrees * own) / (worth + degrees)
    half = stdtrit(worth + degrees, 0.5 + confidence / 2) * np.sqrt(variances / seeds)
    for place, mean, reach in zip(known, table.mean(axis=1), half, strict=True):
        found[place] = float(mean - reach), float(mean + reach)
    return found
