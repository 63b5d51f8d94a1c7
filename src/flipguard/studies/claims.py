"""What a paper says of a figure in words: which value lies below which.

A side of a claim is a metric of a line, or a number. Where one side is a number, the other may be
many lines: then the claim holds if it holds for each of them. With ``of = "spread"`` it is not the
values that are compared but their variances over the seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flipguard.errors import InputError
from flipguard.studies.keys import only
from flipguard.studies.study import ALWAYS, Claim, Line, Side

SPREAD = "spread"
_NEEDED = {"says", "lower", "than"}
_CLAIM = _NEEDED | {"metric", "of"}
_LINE = {"group", "label", "x"}


def read_claim(
    given: Mapping[str, Any],
    lines: Sequence[Line],
    place: str,
    *,
    metrics: Collection[str] = ALWAYS,
) -> Claim:
    """A claim of a study's file about some of its metrics; its sides are found among the lines."""
    only(given, _CLAIM, f"{place}: claims")
    if absent := sorted(_NEEDED - given.keys()):
        raise InputError(f"{place}: expected a claim to have {absent[0]}, but got {dict(given)}.")
    if given.get("of", SPREAD) != SPREAD:
        raise InputError(
            f"{place}: expected `of` of a claim to be {SPREAD!r}, or none, but got {given['of']!r}."
        )
    lower, higher = (_side(given[key], given, lines, metrics, place) for key in ("lower", "than"))
    numbers = [side.number for side in (lower, higher) if side.number is not None]
    if len(numbers) == 2 or (numbers and "of" in given):
        raise InputError(
            f"{place}: expected a number on one side of a claim at most, and on none of a claim of "
            f"{SPREAD}, but got {dict(given)}."
        )
    if max(len(lower.places), len(higher.places)) > 1 and not numbers:
        raise InputError(f"{place}: expected two lines, or a number and lines, in {dict(given)}.")
    return Claim(says=given["says"], lower=lower, higher=higher, of_spread="of" in given)


def _side(
    given: Any,
    claim: Mapping[str, Any],
    lines: Sequence[Line],
    metrics: Collection[str],
    place: str,
) -> Side:
    if _is_number(given):
        return Side(number=float(given))
    if not isinstance(given, Mapping):
        raise InputError(
            f"{place}: expected a side of a claim to be a number or a table, but got {given!r}."
        )
    wanted = dict(given)
    metric = wanted.pop("metric", claim.get("metric"))
    found = places_of(wanted, lines, place)
    several = any(_is_number(claim[key]) for key in ("lower", "than"))
    if metric is None or (len(found) > 1 and not several):
        raise InputError(
            f"{place}: expected a metric, and one line with {wanted}, but {len(found)} have that."
        )
    if metric not in metrics:
        raise InputError(
            f"{place}: expected a claim about a metric of the study, {', '.join(sorted(metrics))}, "
            f"but got {metric!r}."
        )
    return Side(places=found, metric=metric)


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def places_of(wanted: Mapping[str, Any], lines: Sequence[Line], place: str) -> tuple[int, ...]:
    """The lines that say what is wanted, at least one."""
    only(wanted, _LINE, f"{place}: a line")
    found = tuple(
        i
        for i, line in enumerate(lines)
        if all(getattr(line, name) == value for name, value in wanted.items())
    )
    if not found:
        raise InputError(f"{place}: expected a line with {dict(wanted)}, but none has that.")
    return found
