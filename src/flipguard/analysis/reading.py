"""Read the predictions of groups of models, and put them on common samples and classes."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flipguard.analysis.members import Array, Block, IntArray, MemberScores, rows_per_block
from flipguard.engines.alignment import PairedRows, paired_rows
from flipguard.engines.classes import class_series
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import TARGET, CountingPlan
from flipguard.engines.unusable import refuse_unusable
from flipguard.errors import InputError, listed
from flipguard.predictions.read import name_any_file_on_error, name_file_on_error
from flipguard.predictions.scores import reader, spool_folder, width
from flipguard.predictions.sides import Columns, GivenSide
from flipguard.predictions.table import Predictions
from flipguard.run_document import finished_document, is_run


def read_members(
    *,
    old: Sequence[GivenSide],
    new: Sequence[GivenSide] = (),
    treated: Sequence[GivenSide] = (),
    judge: Sequence[GivenSide] = (),
    members: bool = False,
    on_missing: Literal["error", "drop"] = "error",
    id: str | None = None,
    target: str | None = None,
    label: str | None = None,
) -> MemberScores:
    """Groups of models on their common samples and classes.

    Each model is `Predictions`, the path of a prediction file or of a run, or a table. A path may
    contain `*`, `?` and `[…]`. The run of an ensemble stands for its members; with `members`, so
    does every other run that has some.
    """
    given = {"old": old, "new": new, "treated": treated, "judge": judge}
    columns = Columns(id=id, target=target, label=label)
    groups = {
        role: tuple(
            columns.side(side, f"{role} {i}")
            for i, side in enumerate(_expanded(sides, role, members=members), start=1)
        )
        for role, sides in given.items()
        if sides
    }
    sides = [side for group in groups.values() for side in group]
    if len(sides) < 2:
        raise InputError(
            f"Expected at least 2 models to analyze, but got {len(sides)}; give more with `old=` "
            "and `new=`."
        )
    _refuse_kinds(sides)
    # Only scores are analyzed; a column of labels has no effect.
    scored = [replace(side, label=None, correct=None) for side in sides]
    pairing = Pairing(
        CountingPlan(
            old=scored[0], new=scored[1], controls=tuple(scored[2:]), on_missing=on_missing
        )
    )
    with name_any_file_on_error(sides):
        classes, orders = _common_classes(pairing)
        paired = paired_rows(pairing, frozenset({"target", "id"}))
        targets, kept = _targets(paired, classes, sides)
    scores = sides[0].scores
    assert scores is not None
    source = _Source(groups, tuple(sides), paired, tuple(orders), kept)
    ids = paired.table["__id"].to_list() if "__id" in paired.table.columns else range(len(kept))
    return MemberScores(
        names={role: tuple(side.name for side in group) for role, group in groups.items()},
        kind=scores.kind,
        class_names=tuple(map(str, classes)),
        targets=targets[kept],
        ids=tuple(one for one, keep in zip(ids, kept, strict=True) if keep),
        read=source.blocks,
        left_out=max(side.height for side in sides) - int(kept.sum()),
    )


def matching(given: Sequence[GivenSide], role: str) -> list[GivenSide]:
    """Return the models of a group, with the files that match a pattern in place of it."""
    found: list[GivenSide] = []
    for side in given:
        path = os.fspath(side) if isinstance(side, str | os.PathLike) else None
        if path is None or os.path.exists(path) or not glob.has_magic(path):
            found.append(side if path is None else path)
            continue
        matches = sorted(glob.glob(path))
        if not matches:
            raise InputError(
                f"Expected files that match {path!r} for `{role}=`, but there are none; check the "
                "pattern."
            )
        found += matches
    return found


def _expanded(given: Sequence[GivenSide], role: str, *, members: bool) -> list[GivenSide]:
    """Return the models of a group: files that match a pattern, and members of ensembles."""
    return [model for side in matching(given, role) for model in _models_of(side, members=members)]


def _models_of(side: GivenSide, *, members: bool) -> list[GivenSide]:
    if not isinstance(side, str) or not is_run(side):
        return [side]
    document = finished_document(Path(side))
    listed_members = document.get("members") or []
    is_mean = document.get("config", {}).get("method") == "ensemble"
    if not listed_members or not (members or is_mean):
        return [side]
    return [os.path.normpath(os.path.join(side, str(member))) for member in listed_members]


def _refuse_kinds(sides: Sequence[Predictions]) -> None:
    bare = next((side for side in sides if side.scores is None), None)
    if bare is not None:
        raise InputError(
            f"{bare.name} has labels but no class scores, which an analysis needs; give logits of "
            "every model."
        )
    by_kind = {side.scores.kind: side for side in sides if side.scores is not None}
    if len(by_kind) > 1:
        raise InputError(
            f"{by_kind['logits'].name} has logits and {by_kind['probabilities'].name} has "
            "probabilities, which cannot be analyzed together; give the same of every model."
        )


def _common_classes(pairing: Pairing) -> tuple[list[Any], list[IntArray | None]]:
    """The classes that all models score, in the first one's order, and where each has them."""
    names = pairing.readings.names
    every = [
        class_series(side, width(side), pairing.classes, names).to_list() for side in pairing.sides
    ]
    shared = set(every[0]).intersection(*every[1:])
    common = [name for name in every[0] if name in shared]
    if len(common) < 2:
        raise InputError(
            f"Expected at least 2 classes that all models score, but {pairing.sides[0].name} and "
            f"the other models have {len(common)} in common; give models of the same classes."
        )
    orders: list[IntArray | None] = []
    for found in every:
        place = {name: i for i, name in enumerate(found)}
        same = found == common
        orders.append(None if same else np.array([place[c] for c in common], dtype=np.int64))
    return common, orders


def _targets(
    paired: PairedRows, classes: list[Any], sides: Sequence[Predictions]
) -> tuple[IntArray, Array]:
    """The index of each sample's true class, and whether the sample is kept."""
    if not any(side.target for side in sides):
        raise InputError(
            f"{sides[0].name} and the other models have no column of targets, which an analysis "
            "needs; name it with `target=`."
        )
    place = {name: i for i, name in enumerate(classes)}
    found = [place.get(name, -1) for name in paired.table[TARGET].to_list()]
    targets = np.array(found, dtype=np.int64)
    kept = targets >= 0
    if not kept.any():
        raise InputError(
            f"None of the targets is a class that all models score ({listed(classes)}); check how "
            "classes are spelled."
        )
    return targets, kept


@dataclass(frozen=True, slots=True)
class _Source:
    """Reads the scores of all models, as often as an analysis needs them."""

    groups: dict[str, tuple[Predictions, ...]]
    sides: tuple[Predictions, ...]
    paired: PairedRows
    orders: tuple[IntArray | None, ...]
    kept: Array

    def blocks(self) -> Iterator[Block]:
        n = len(self.kept)
        step = rows_per_block(len(self.sides), max(width(side) for side in self.sides))
        with spool_folder() as spool:
            readers = []
            for side, positions in zip(self.sides, self.paired.positions, strict=True):
                with name_file_on_error(side):
                    readers.append(reader(side, positions, spool))
            for start in range(0, n, step):
                stop = min(n, start + step)
                kept = self.kept[start:stop]
                found = []
                for i, side in enumerate(self.sides):
                    with name_file_on_error(side):
                        rows = readers[i].read(start, stop)
                    places = self.paired.positions[i]
                    at = np.arange(start, stop) if places is None else places[start:stop]
                    refuse_unusable(side, rows, at)
                    rows = rows if kept.all() else rows[kept]
                    order = self.orders[i]
                    found.append(rows if order is None else rows[:, order])
                if kept.any():
                    yield self._grouped(found)

    def _grouped(self, rows: list[Array]) -> Block:
        """The rows of all models, stacked by group."""
        grouped, at = {}, 0
        for role, group in self.groups.items():
            grouped[role] = np.stack(rows[at : at + len(group)])
            at += len(group)
        return grouped
