"""Models whose classes never meet: spelled in two ways, or taken from the wrong column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from flipguard.engines.classes import class_series
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import CountingPlan
from flipguard.errors import InputError, listed
from flipguard.predictions.faults import naming
from flipguard.predictions.scores import width


def refuse_strangers(plan: CountingPlan, met: Sequence[bool], *, all_pairs: bool = False) -> None:
    """Refuses a model none of whose classes is a target or a class of the others.

    `met` tells of each side whether a row was counted in which its class is the target, or that of
    another model; only where it is not are all classes looked up. Old and new are held against each
    other and a control against both, or all against all.
    """
    if all(met):
        return
    pairing = Pairing(plan)
    targets = _values(pairing, range(len(plan.sides)), "target")
    for i, is_met in enumerate(met):
        if is_met:
            continue
        others = [1 - i] if i < 2 else [0, 1]
        if all_pairs:
            others = [j for j in range(len(met)) if j != i]
        own, known = _classes(pairing, i), set(targets)
        for j in others:
            known |= _classes(pairing, j)
        if own and known and not own & known:
            raise InputError(
                f"{plan.sides[i].name} predicts no class ({_some(own)}) that is among "
                f"{'the targets or ' if targets else ''}the classes that "
                f"{' and '.join(plan.sides[j].name for j in others)} "
                f"{'predict' if others[1:] else 'predicts'} ({_some(known)}), so classes are "
                "spelled in two ways or the wrong column was named; spell them alike, or name the "
                "column of predicted classes with `label=`."
            )


def _classes(pairing: Pairing, i: int) -> set[object]:
    """The classes that a model predicts; by scores alone, all those that it knows."""
    side = pairing.sides[i]
    if side.label is not None:
        return _values(pairing, [i], "label")
    with naming(side):
        names = class_series(side, width(side), pairing.classes, pairing.readings.names)
    return set(names.to_list())


def _values(pairing: Pairing, sides: Iterable[int], role: str) -> set[object]:
    """The different values of one role, in the common spelling."""
    found: set[object] = set()
    for i in sides:
        column = f"{i}|{role}"
        frame = pairing.side_frame(i, frozenset({role}))
        if column in frame.collect_schema():
            with naming(pairing.sides[i]):
                values = frame.select(pl.col(column).drop_nulls().unique())
                found |= set(values.collect(engine="streaming").to_series().to_list())
    return found


def _some(classes: set[object]) -> str:
    return listed(sorted(classes, key=str))
