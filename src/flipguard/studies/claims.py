"""Claims that a paper makes in words, and whether they hold here by an interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from flipguard.errors import InputError
from flipguard.specs import only
from flipguard.studies.agreement import CONFIDENCE, Verdict, paired_interval, verdict_of
from flipguard.studies.study import DEFAULT_METRICS, Claim, ClaimSide, StudyRow

SPREAD = "spread"
_NEEDED = {"says", "lower", "than"}
_CLAIM = _NEEDED | {"metric", "of"}
_LINE = {"group", "label", "x"}
_WAY = {"metric", "curve", "first"}

NOT_RUN: Final = "not run"
ClaimVerdict: TypeAlias = Verdict | Literal["not run"]


def read_claim(
    given: Mapping[str, Any],
    lines: Sequence[StudyRow],
    place: str,
    *,
    metrics: Collection[str] = DEFAULT_METRICS,
    curves: Collection[str] = (),
) -> Claim:
    """Return a claim from a study's file, with its sides found among the study's lines."""
    only(given, _CLAIM, f"{place}: claims")
    if absent := sorted(_NEEDED - given.keys()):
        raise InputError(f"{place}: expected a claim to have {absent[0]}, but got {dict(given)}.")
    if given.get("of", SPREAD) != SPREAD:
        raise InputError(
            f"{place}: expected `of` of a claim to be {SPREAD!r}, or none, but got {given['of']!r}."
        )
    lower, higher = (
        _side(given[key], given, lines, metrics, curves, place) for key in ("lower", "than")
    )
    numbers = [side.number for side in (lower, higher) if side.number is not None]
    if len(numbers) == 2 or (numbers and "of" in given):
        raise InputError(
            f"{place}: expected a number on one side of a claim at most, and on none of a claim of "
            f"{SPREAD}, but got {dict(given)}."
        )
    sizes = {len(lower.places), len(higher.places)} - {0, 1}
    shared = len(lower.places) > 1 and set(lower.places) & set(higher.places)
    if len(sizes) > 1 or shared:
        raise InputError(
            f"{place}: expected as many lines on both sides of a claim, or one line on one of "
            f"them and other lines on the other, but got {dict(given)}."
        )
    return Claim(says=given["says"], lower=lower, higher=higher, of_spread="of" in given)


def _side(
    given: Any,
    claim: Mapping[str, Any],
    lines: Sequence[StudyRow],
    metrics: Collection[str],
    curves: Collection[str],
    place: str,
) -> ClaimSide:
    if _is_number(given):
        return ClaimSide(number=float(given))
    if not isinstance(given, Mapping):
        raise InputError(
            f"{place}: expected a side of a claim to be a number or a table, but got {given!r}."
        )
    wanted = {name: value for name, value in given.items() if name not in _WAY}
    metric, curve, first = (
        given.get("metric", claim.get("metric")),
        given.get("curve"),
        given.get("first"),
    )
    found = places_of(wanted, lines, place)
    if metric is None:
        raise InputError(f"{place}: expected a claim to have a metric, but got {dict(claim)}.")
    if (curve is not None and curve not in curves) or (first is not None and curve is None):
        raise InputError(
            f"{place}: expected `curve` of a claim to be one of the study's curves, and `first` "
            f"only with it, but got {dict(given)}."
        )
    if metric not in metrics:
        raise InputError(
            f"{place}: expected a claim about a metric of the study, {', '.join(sorted(metrics))}, "
            f"but got {metric!r}."
        )
    return ClaimSide(places=found, metric=metric, curve=curve, first=first)


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def places_of(wanted: Mapping[str, Any], lines: Sequence[StudyRow], place: str) -> tuple[int, ...]:
    """Return the indices of lines with the wanted values, at least one; a list means any of it."""
    only(wanted, _LINE, f"{place}: a line")
    found = tuple(
        i
        for i, line in enumerate(lines)
        if all(
            getattr(line, name) in (value if isinstance(value, list) else [value])
            for name, value in wanted.items()
        )
    )
    if not found:
        raise InputError(f"{place}: expected a line with {dict(wanted)}, but none has that.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """Whether a claim holds, and for how many of its lines there are values."""

    verdict: ClaimVerdict
    judged: int
    of: int


def check_claim(claim: Claim, values: Callable[[int, ClaimSide], Sequence[float]]) -> ClaimResult:
    """Return whether a claim holds, from the values of a line and a side for each seed.

    A claim about several lines holds if it holds for each that was run.
    """

    def of_side(side: ClaimSide) -> list[Sequence[float]]:
        return [values(place, side) for place in side.places]

    lower, higher = of_side(claim.lower), of_side(claim.higher)
    if claim.lower.number is not None:
        lower = [[claim.lower.number] * len(one) for one in higher]
    if claim.higher.number is not None:
        higher = [[claim.higher.number] * len(one) for one in lower]
    # One line is compared with each line of the other side.
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
    return ClaimResult(verdict=verdict, judged=len(run), of=len(pairs))


def _verdict(claim: Claim, lower: Sequence[float], higher: Sequence[float]) -> Verdict:
    if claim.of_spread:
        return verdict_of(1.0, *spread_interval(_known(lower), _known(higher)))
    # Seeds without a value on one side are no pairs.
    pairs = [pair for pair in zip(lower, higher, strict=False) if len(_known(pair)) == len(pair)]
    low, high = paired_interval([a for a, _ in pairs], [b for _, b in pairs])
    against_number = claim.lower.number is not None or claim.higher.number is not None
    if against_number and low == high == 0:
        return "disagree"  # every seed equals the number, so none is below or above it
    return verdict_of(1.0, low, high)


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def spread_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the logarithm of second's variance over first's, by the F law.

    It excludes 0 if one of them clearly varies more; nan if a variance is undefined.

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
