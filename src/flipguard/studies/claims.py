"""What a paper says of a figure in words: which value lies below which.

A side of a claim is a metric of a line, or a number. Where one side is a number, the other may be
many lines: then the claim holds if it holds for each of them. With ``of = "spread"`` it is not the
values that are compared but their variances over the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flipguard.errors import InputError
from flipguard.studies.keys import only
from flipguard.studies.study import Claim, Line, Side

SPREAD = "spread"
_CLAIM = {"says", "metric", "lower", "than", "of"}


def read_claim(given: Mapping[str, Any], lines: Sequence[Line], place: str) -> Claim:
    """A claim of a study's file; each of its sides must be found among the lines."""
    only(given, _CLAIM, f"{place}: claims")
    lower, higher = (_side(given[key], given, lines, place) for key in ("lower", "than"))
    if max(len(lower.places), len(higher.places)) > 1 and lower.number is higher.number is None:
        raise InputError(f"{place}: expected two lines, or a number and lines, in {dict(given)}.")
    return Claim(
        says=given["says"], lower=lower, higher=higher, of_spread=given.get("of") == SPREAD
    )


def _side(given: Any, claim: Mapping[str, Any], lines: Sequence[Line], place: str) -> Side:
    if isinstance(given, int | float):
        return Side(number=float(given))
    wanted = dict(given)
    metric = wanted.pop("metric", claim.get("metric"))
    found = places_of(wanted, lines, place)
    several = any(isinstance(claim[key], int | float) for key in ("lower", "than"))
    if metric is None or (len(found) > 1 and not several):
        raise InputError(
            f"{place}: expected a metric, and one line with {wanted}, but {len(found)} have that."
        )
    return Side(places=found, metric=metric)


def places_of(wanted: Mapping[str, Any], lines: Sequence[Line], place: str) -> tuple[int, ...]:
    """The lines that say what is wanted, at least one."""
    found = tuple(
        i
        for i, line in enumerate(lines)
        if all(getattr(line, name) == value for name, value in wanted.items())
    )
    if not found:
        raise InputError(f"{place}: expected a line with {dict(wanted)}, but none has that.")
    return found
