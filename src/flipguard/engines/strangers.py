"""Find models that share no class: the classes are spelled differently, or the column is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from flipguard.engines.classes import class_series
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import CountingPlan
from flipguard.errors import InputError, listed
from flipguard.formatting import is_integer
from flipguard.predictions.read import name_file_on_error
from flipguard.predictions.scores import width

# What a column of right and wrong holds, as classes are spelled.
FLAGS = {"0", "1"}


def refuse_strangers(plan: CountingPlan, met: Sequence[bool], *, all_pairs: bool = False) -> None:
    """Raise if none of a model's classes is a target or a class of another model.

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
                f"None of the classes that {plan.sides[i].name} predicts ({_some(own)}) is among "
                f"{'the targets or ' if targets else ''}the classes that "
                f"{' and '.join(plan.sides[j].name for j in others)} "
                f"{'predict' if others[1:] else 'predicts'} ({_some(known)}). Either the files "
                "spell classes differently, or a wrong column was named: use one spelling, or name "
                "the column of predicted classes with `label=`."
            )


def odd_spellings(plan: CountingPlan) -> Iterator[str]:
    """Notes on predicted classes that are not targets but are spelled almost like one."""
    if plan.old.binary is not None:
        return  # Its predicted classes are named after the targets.
    pairing = Pairing(plan)
    suspects = [i for i in (0, 1) if not _spelled_alike(pairing, i)]
    targets = _values(pairing, range(len(plan.sides)), "target") if suspects else set()
    for i in suspects if targets else ():
        own, name = _classes(pairing, i), plan.sides[i].name
        strange, never = own - targets, targets - own
        alike = {_folded(c): c for c in sorted(never, key=str)}
        for one in sorted(strange, key=str):
            if _folded(one) in alike:
                yield (
                    f"{name} predicts {listed([one])}, which is no target, and never predicts "
                    f"{listed([alike[_folded(one)]])}, which is; is a class spelled in two ways?"
                )
        if plan.sides[i].label is not None and {*map(str, own)} <= FLAGS and len(targets) > 2:
            yield (
                f"{name} predicts no class but {_some(own)}, and there are {len(targets):,} target "
                "classes; if the column says right or wrong, name it with `correct=`"
            )
        shift = _shift(own, targets) if strange and never else 0
        if shift:
            yield (
                f"the classes that {name} predicts are the targets {shift:+d}: are they counted "
                "from another number?"
            )


def _spelled_alike(pairing: Pairing, i: int) -> bool:
    """Whether the lowest and highest integers that a model predicts rule out odd spellings.

    They are found many times faster than all different values.
    """
    own = _ends(pairing, i, "label")
    found = [ends for j in range(len(pairing.sides)) if (ends := _ends(pairing, j, "target"))]
    if own is None or not found:
        return False
    low, high = min(low for low, _ in found), max(high for _, high in found)
    negative = min(low, own[0]) < 0  # spelled like a positive one, but for its sign
    flags = own == (0, 1) and high > 1  # perhaps no classes, but right and wrong
    return not (negative or flags) and own not in [(low + d, high + d) for d in (1, -1)]


def _ends(pairing: Pairing, i: int, role: str) -> tuple[int, int] | None:
    """The lowest and the highest value of a column of integers; None for any other column."""
    column = f"{i}|{role}"
    frame = pairing.side_frame(i, frozenset({role}))
    if not frame.collect_schema().get(column, pl.Null()).is_integer():
        return None
    ends = frame.select(pl.min(column).alias("low"), pl.max(column).alias("high"))
    with name_file_on_error(pairing.sides[i]):
        low, high = ends.collect(engine="streaming").row(0)
    return None if low is None else (low, high)


def _folded(name: object) -> str:
    """A class name without case, spaces and the like, in which two spellings usually differ."""
    return re.sub(r"[\s_-]+", " ", str(name).casefold()).strip()


def _shift(own: set[object], targets: set[object]) -> int:
    """The offset between integer classes that differ by one everywhere; otherwise 0."""
    texts = [{str(value) for value in values} for values in (own, targets)]
    if not all(is_integer(text) for values in texts for text in values):
        return 0
    found, wanted = ({int(text) for text in values} for values in texts)
    return next((d for d in (1, -1) if len(wanted) > 1 and found == {t + d for t in wanted}), 0)


def _classes(pairing: Pairing, i: int) -> set[object]:
    """The classes that a model predicts; by scores alone, all those that it knows."""
    side = pairing.sides[i]
    if side.label is not None:
        return _values(pairing, [i], "label")
    with name_file_on_error(side):
        names = class_series(side, width(side), pairing.classes, pairing.readings.names)
    return set(names.to_list())


def _values(pairing: Pairing, sides: Iterable[int], role: str) -> set[object]:
    """The different values of one role, in the common spelling."""
    found: set[object] = set()
    for i in sides:
        column = f"{i}|{role}"
        frame = pairing.side_frame(i, frozenset({role}))
        if column in frame.collect_schema():
            with name_file_on_error(pairing.sides[i]):
                values = frame.select(pl.col(column).drop_nulls().unique())
                found |= set(values.collect(engine="streaming").to_series().to_list())
    return found


def _some(classes: set[object]) -> str:
    return listed(sorted(classes, key=str))
