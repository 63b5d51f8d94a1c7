"""Ensembles: average the class scores of several models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.engines.alignment import PairedRows, paired_rows
from flipguard.engines.classes import class_series
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import TARGET, CountingPlan
from flipguard.engines.unusable import refuse_unusable
from flipguard.errors import InputError, listed
from flipguard.predictions.read import name_any_file_on_error, name_file_on_error
from flipguard.predictions.scores import reader, rows_per_read, spool_folder, width
from flipguard.predictions.sides import GivenSide, one_side, without_found_grades
from flipguard.predictions.table import Predictions, Scores

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


def ensemble(
    members: Sequence[GivenSide],
    *,
    name: str = "ensemble",
    on_missing: Literal["error", "drop"] = "error",
) -> Predictions:
    """The predictions of an ensemble: the average of its members' logits, or else probabilities.

    Each member is `Predictions`, the path of a prediction file or of a run, or a table.
    Samples are joined on ids and keep the order and the slices of the first member; classes are
    matched by name. Logits are averaged as they are, before any softmax.

    >>> import numpy as np
    >>> first = Predictions.from_arrays(logits=np.array([[2.0, 0.0]]), class_names=["cat", "dog"])
    >>> second = Predictions.from_arrays(logits=np.array([[3.0, 1.0]]), class_names=["dog", "cat"])
    >>> ensemble([first, second]).scores.array
    array([[1.5, 1.5]])
    """
    given = [one_side(member, f"member {i}") for i, member in enumerate(members, start=1)]
    sides = tuple(map(without_found_grades, given))
    if len(sides) < 2:
        raise InputError(f"Expected at least 2 members to average, but got {len(sides)}.")
    _refuse_kinds(sides)
    # Only the scores of a member count; its labels have no effect on the average.
    scored = [replace(side, label=None) for side in sides]
    pairing = Pairing(
        CountingPlan(
            old=scored[0], new=scored[1], controls=tuple(scored[2:]), on_missing=on_missing
        )
    )
    with name_any_file_on_error(sides):
        orders = _class_orders(pairing)
        paired = paired_rows(pairing, frozenset({"target"}))
    first = sides[0].scores
    assert first is not None
    return Predictions(
        name=name,
        frame=_columns(sides[0], paired, has_target=any(s.target for s in sides)),
        id=sides[0].id,
        target=(sides[0].target or "target") if any(s.target for s in sides) else None,
        label=None,
        scores=Scores(
            kind=first.kind,
            class_names=first.class_names,
            array=_averaged(sides, paired, orders),
        ),
    )


def _refuse_kinds(members: Sequence[Predictions]) -> None:
    graded = next((member for member in members if member.correct is not None), None)
    if graded is not None:
        raise InputError(
            f"{graded.name} has grades in column '{graded.correct}', and grades cannot be "
            "averaged; give logits or probabilities of every member, without grades."
        )
    bare = next((member for member in members if member.scores is None), None)
    if bare is not None:
        raise InputError(
            f"{bare.name} has labels but no class scores, and labels cannot be averaged; give "
            "logits or probabilities of every member."
        )
    by_kind = {member.scores.kind: member for member in members if member.scores is not None}
    if len(by_kind) > 1:
        raise InputError(
            f"{by_kind['logits'].name} has logits and {by_kind['probabilities'].name} has "
            "probabilities, which cannot be averaged together; give the same of every member."
        )


def _class_orders(pairing: Pairing) -> list[IntArray | None]:
    """For each member the indices of the first member's classes; None if in the same order."""
    sides = pairing.sides
    classes = [
        class_series(side, width(side), pairing.classes, pairing.readings.names).to_list()
        for side in sides
    ]
    first, orders = classes[0], list[IntArray | None]([None])
    for side, found in zip(sides[1:], classes[1:], strict=True):
        if set(found) != set(first):
            raise InputError(_different_classes(sides[0], first, side, found))
        place = {label: i for i, label in enumerate(found)}
        order = None if found == first else np.array([place[c] for c in first], dtype=np.int64)
        orders.append(order)
    return orders


def _different_classes(
    first: Predictions, classes: list[object], other: Predictions, found: list[object]
) -> str:
    lacks = [
        f"{lacking.name} has no class {listed(missing)}"
        for lacking, missing in (
            (other, [c for c in classes if c not in set(found)]),
            (first, [c for c in found if c not in set(classes)]),
        )
        if missing
    ]
    unnamed = next((side.name for side in (first, other) if side.class_names is None), None)
    way_out = "average models of the same classes"
    if unnamed is not None and (first.class_names or other.class_names):
        way_out = f"name the classes of the scores in {unnamed} too"
    return f"{first.name} and {other.name} score different classes: {', '.join(lacks)}; {way_out}."


def _columns(first: Predictions, paired: PairedRows, *, has_target: bool) -> pl.LazyFrame:
    """Ids, targets and slices, in the order of the first member."""
    dropped = {first.label, first.target, *(first.scores.columns if first.scores else ())}
    kept = [c for c in first.frame.collect_schema().names() if c not in dropped - {first.id}]
    frames = [first.frame.select(kept)] if kept else []
    if has_target:
        targets = paired.table[TARGET].alias(first.target or "target")
        frames.append(targets.to_frame().lazy())
    if not frames:
        # A frame without columns would have no height: the row number stands in.
        frames.append(pl.LazyFrame({"__row": np.arange(paired.rows.matched)}))
    return pl.concat(frames, how="horizontal")


def _averaged(
    members: Sequence[Predictions], paired: PairedRows, orders: list[IntArray | None]
) -> Array:
    """The mean over members, summed in double precision, one block of rows at a time."""
    n, classes = paired.rows.matched, width(members[0])
    step = rows_per_read(classes)
    out: Array = np.empty((0, classes))
    with spool_folder() as spool:
        readers = []
        for member, positions in zip(members, paired.positions, strict=True):
            with name_file_on_error(member):
                readers.append(reader(member, positions, spool))
        for start in range(0, n, step):
            stop = min(n, start + step)
            total, dtypes = np.zeros((stop - start, classes)), set[np.dtype[Any]]()
            for member, source, positions, order in zip(
                members, readers, paired.positions, orders, strict=True
            ):
                with name_file_on_error(member):
                    block = source.read(start, stop)
                rows = np.arange(start, stop) if positions is None else positions[start:stop]
                refuse_unusable(member, block, rows)
                total += block if order is None else block[:, order]
                dtypes.add(block.dtype)
            total /= len(members)
            if start == 0:
                single = dtypes == {np.dtype(np.float32)}
                out = np.empty((n, classes), dtype=np.float32 if single else np.float64)
            out[start:stop] = total
    return out
