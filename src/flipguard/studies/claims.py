"""What a paper says of a figure in words: which value lies below which.

A side of a claim is a metric of lines, or a number. Where there are several lines on one side, the
claim holds if it holds for each of them; where both sides have as many, they are taken in pairs, in
the order of the study. With ``of = "spread"`` it is not the values that are compared but their
variances over the seeds. A side with ``curve = "test"`` is the metric after the last epoch of the
study's curves, on that split, and with ``first = 3`` its mean over the first three epochs.
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
_WAY = {"metric", "curve", "first"}


def read_claim(
    given: Mapping[str, Any],
    lines: Sequence[Line],
    place: str,
    *,
    metrics: Collection[str] = ALWAYS,
    curves: Collection[str] = (),
) -> Claim:
    """A claim of a study's file about some of its metrics; its sides are found among the lines."""
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
    lines: Sequence[Line],
    metrics: Collection[str],
    curves: Collection[str],
    place: str,
) -> Side:
    if _is_number(given):
        return Side(number=float(given))
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
    return Side(places=found, metric=metric, curve=curve, first=first)


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def places_of(wanted: Mapping[str, Any], lines: Sequence[Line], place: str) -> tuple[int, ...]:
    """The lines that say what is wanted, at least one; a list stands for any of its values."""
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
