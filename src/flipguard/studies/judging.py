"""Whether what a paper says in words holds here: each claim by the interval of its own seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from flipguard.studies.agreement import CONFIDENCE, Verdict, paired_interval, verdict_of
from flipguard.studies.study import Claim, Side

NOT_RUN: Final = "not run"
ClaimVerdict: TypeAlias = Verdict | Literal["not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a claim holds, and for how many of the lines that it is about this was asked."""

    verdict: ClaimVerdict
    judged: int
    of: int


def judged(claim: Claim, values: Callable[[int, Side], Sequence[float]]) -> Judgement:
    """Whether a claim holds, from the values of a line and a side, seed by seed.

    Of many lines, it holds if it holds for each that was run.
    """

    def of_side(side: Side) -> list[Sequence[float]]:
        return [values(place, side) for place in side.places]

    lower, higher = of_side(claim.lower), of_side(claim.higher)
    if claim.lower.number is not None:
        lower = [[claim.lower.number] * len(one) for one in higher]
    if claim.higher.number is not None:
        higher = [[claim.higher.number] * len(one) for one in lower]
    # One line stands against each of the other side.
    many = max(len(lower), len(higher))
    lower, higher = (side * many if len(side) == 1 else side for side in (lower, higher))
    pairs = list(zip(lower, higher, strict=True))
    run = [(low, high) for low, high in pairs if len(low) and len(high)]
    found = {_verdict(claim, low, high) for low, high in run}
    verdict: ClaimVerdict = "undecided"
    if not run:
        verdict = NOT_RUN
    elif "disagree" in found:
        verdict = "disagree"
    elif found == {"agree"}:
        verdict = "agree"
    return Judgement(verdict=verdict, judged=len(run), of=len(pairs))


def _verdict(claim: Claim, lower: Sequence[float], higher: Sequence[float]) -> Verdict:
    if claim.of_spread:
        return verdict_of(1.0, *spread_interval(_known(lower), _known(higher)))
    # Seeds without a value on one side are no pairs.
    pairs = [pair for pair in zip(lower, higher, strict=False) if len(_known(pair)) == len(pair)]
    low, high = paired_interval([a for a, _ in pairs], [b for _, b in pairs])
    against_number = claim.lower.number is not None or claim.higher.number is not None
    if against_number and low == high == 0:
        return "disagree"  # every seed is exactly at the number, and so on no side of it
    return verdict_of(1.0, low, high)


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


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
