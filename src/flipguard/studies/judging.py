"""Whether what a paper says in words holds here, by the rule for pairs of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from flipguard.studies.agreement import CONFIDENCE, Verdict, paired_interval, verdict_of
from flipguard.studies.study import Claim, Side


def judged(claim: Claim, values: Callable[[int, str], Sequence[float]]) -> Verdict:
    """Whether a claim holds, from the values of a line and metric, seed by seed."""

    def of_side(side: Side) -> list[Sequence[float]]:
        return [values(place, side.metric) for place in side.places]

    lower, higher = of_side(claim.lower), of_side(claim.higher)
    if claim.lower.number is not None:
        lower = [[claim.lower.number] * len(one) for one in higher]
    if claim.higher.number is not None:
        higher = [[claim.higher.number] * len(one) for one in lower]
    interval = spread_interval if claim.of_spread else paired_interval
    found = [
        verdict_of(1.0, *interval(low, high))
        for low, high in zip(lower, higher, strict=True)
        if len(low) or len(lower) == 1  # of many lines, those that a scale has
    ]
    if "disagree" in found:
        return "disagree"
    return "agree" if found and set(found) == {"agree"} else "undecided"


def spread_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the logarithm of second's variance over first's, by the F law.

    It leaves 0 out where one of them clearly varies more; nan if a variance is not to be had.

    >>> spread_interval([1, 2, 3], [10, 30, 50])[0] > 0
    True
    """
    from scipy.special import fdtri

    degrees = len(first) - 1, len(second) - 1
    if min(degrees) < 1:
        return math.nan, math.nan
    variances = float(np.var(first, ddof=1)), float(np.var(second, ddof=1))
    if min(variances) <= 0:
        return math.nan, math.nan
    ratio, tail = math.log(variances[1] / variances[0]), (1 - CONFIDENCE) / 2
    limits = (math.log(fdtri(degrees[1], degrees[0], share)) for share in (1 - tail, tail))
    low, high = (ratio - limit for limit in limits)
    return low, high
