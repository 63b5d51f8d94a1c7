"""How much seeds alone move a difference, where there are many differences and few seeds.

Three seeds say little about a variance: Student's t is 4.3 standard errors wide with their two
degrees of freedom, and 3.2 with three. But a table has many pairs of rows, and what seeds do to one
of them they do to another, more or less. So the variance of a pair counts with its own degrees of
freedom, and the mean variance of all pairs of the metric with `WORTH` further ones:

    (WORTH mean + d own) / (WORTH + d)    with    WORTH + d    degrees of freedom.

That is the moderated t of G. Smyth, "Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments", 2004, but with a fixed worth: pairs share their
rows, and so look more alike than they are, and an estimated worth is too high. What it leaves to
chance is measured (`benchmarks/few_seeds.py`): over all pairs less than each by itself, and about
as much for those that vary more than the mean.

Ten seeds say enough about a variance, and a mean decides no more pairs then. It would do harm where
one row is wild, as one that learns in some seeds and not in others: all pairs would be as wide.
With fewer seeds it does so still; a median in its place would leave too much to chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)
# In degrees of freedom: more of them decide more pairs, and too many of those by chance.
WORTH = 1.0
# Fewer pairs have too few rows of their own to say what is usual: each is judged by itself.
FEWEST = 5
# So is each with as many seeds as these, or more.
ENOUGH = 10


def intervals(
    differences: Sequence[ArrayLike],
    *,
    confidence: float,
    worth: float = WORTH,
    enough: float = ENOUGH,
) -> list[Interval]:
    """The interval of each mean difference, from all differences of one metric, seed by seed.

    Differences of fewer than two seeds, or with a seed that has no number, have none. Only those
    with equally many seeds are taken together.

    >>> alone = intervals([[0.1, 0.2, 0.3]], confidence=0.95)[0]
    >>> beside = intervals([[0.1, 0.2, 0.3]] * 5, confidence=0.95)[0]
    >>> [round(x, 2) for x in (*alone, *beside)]
    [-0.05, 0.45, 0.02, 0.38]
    """
    values = [np.asarray(one, dtype=np.float64) for one in differences]
    found = [UNKNOWN] * len(values)
    for seeds in {len(one) for one in values if len(one) > 1}:
        together = [
            i for i, one in enumerate(values) if len(one) == seeds and np.isfinite(one).all()
        ]
        if together:
            shared = worth if len(together) >= FEWEST and seeds < enough else 0.0
            limits = _shared(np.stack([values[i] for i in together]), confidence, shared)
            for place, (low, high) in zip(together, limits, strict=True):
                found[place] = float(low), float(high)
    return found


def _shared(table: NDArray[np.float64], confidence: float, worth: float) -> NDArray[np.float64]:
    """The limits of each row's mean."""
    from scipy.special import stdtrit

    seeds = table.shape[1]
    own, degrees = table.var(axis=1, ddof=1), seeds - 1
    variances = (worth * own.mean() + degrees * own) / (worth + degrees)
    half = stdtrit(worth + degrees, 0.5 + confidence / 2) * np.sqrt(variances / seeds)
    middle = table.mean(axis=1)
    return np.stack([middle - half, middle + half], axis=1)
