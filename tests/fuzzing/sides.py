"""One file of a comparison: the roles of its columns, and the rows whose scores mean nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzzing import equality
from tests.fuzzing.equality import Key
from tests.fuzzing.outcomes import (
    Questions,
    Refused,
)
from tests.fuzzing.reading import Column, JsonNumber, Odd, Table, is_missing, numpy_column, read

PREFIX = {"logits": "logit_", "probabilities": "probability_"}
TOLERANCE, ROUNDING = 1e-3, 1e-6


@dataclass(frozen=True, kw_only=True)
class Task:
    """One comparison that is asked for."""

    old: Path
    new: Path
    controls: tuple[Path, ...] = ()
    by: tuple[str, ...] = ()
    cluster: str | None = None
    on_missing: str = "error"
    id: str | None = None
    target: str | None = None
    label: str | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file, old and new first."""
        return (self.old, self.new, *self.controls)


@dataclass(kw_only=True)
class Side:
    """One file with the roles of its columns."""

    table: Table
    id: Column | None
    target: Column | None
    label: Column | None
    target_name: str | None
    scores: list[list[float | None]] | None = None
    score_kind: str | None = None
    score_names: list[Any] | None = None
    height: int = 0
    ids: list[Key | None] = field(default_factory=list)
    targets: list[Key | None] = field(default_factory=list)
    labels: list[Key | None] = field(default_factory=list)
    # The classes that scores are of, where they alone say the label.
    known: set[Key] = field(default_factory=set)
    # Rows whose label or scores cannot be used, and why: of no account where they are left out.
    bad: dict[int, str] = field(default_factory=dict)


def side_of(path: Path, task: Task, questions: Questions) -> Side:
    table = read(path, questions)
    if table.format == "npz":
        return _npz_side(table, task, questions)
    named = {}
    for role in ("id", "target", "label"):
        asked = getattr(task, role)
        if asked is not None and asked not in table.names:
            raise Refused(f"no column {asked!r}")
        name = asked or role
        named[role] = name if name in table.names else None
    if named["id"] is None:
        raise Refused("no ids")
    columns = {r: None if n is None else table.column(n) for r, n in named.items()}
    side = Side(table=table, target_name=named["target"], height=table.height, **columns)
    _find_scores(side, questions)
    if side.label is None and side.scores is None:
        raise Refused("neither labels nor scores")
    return side


def _find_scores(side: Side, questions: Questions) -> None:
    table = side.table
    for kind, prefix in PREFIX.items():
        wide = [name for name in table.names if name.startswith(prefix)]
        if kind in table.names:
            side.score_kind, side.score_names = kind, table.class_names
            side.scores = _list_scores(table.column(kind), questions)
            if wide:
                questions.doubt("scores as lists and in columns")
            break
        if wide:
            side.score_kind = kind
            side.score_names = [name.removeprefix(prefix) for name in wide]
            typed = table.format not in ("csv", "tsv")
            columns = [_wide_scores(table.column(name), questions, typed=typed) for name in wide]
            side.scores = [list(row) for row in zip(*columns, strict=True)]
            break
    if side.scores is not None:
        _check_scores(side, questions)


def _wide_scores(column: Column, questions: Questions, *, typed: bool) -> list[float | None]:
    if column.kind in ("bool", "odd"):
        raise Refused("scores that are no numbers")
    if typed and any(isinstance(cell, str) for cell in column.cells):
        questions.doubt("text as a score, where the format has numbers")
    return [_score(cell) for cell in column.cells]


def _score(cell: object) -> float | None:
    if cell is None or cell == "":
        return None
    if isinstance(cell, JsonNumber):
        return float(cell.raw)
    if isinstance(cell, bool | Odd):
        raise Refused("a score that is no number")
    try:
        return float(cell)  # type: ignore[arg-type]
    except ValueError as problem:
        raise Refused("a score that is no number") from problem


def _list_scores(column: Column, questions: Questions) -> list[list[float | None]]:
    rows: list[list[float | None]] = []
    for cell in column.cells:
        value: object = cell.value if isinstance(cell, Odd) else cell
        if column.kind == "text" and isinstance(cell, str) and cell:
            try:
                value = json.loads(cell, parse_int=JsonNumber, parse_float=JsonNumber)
            except (ValueError, RecursionError) as problem:
                raise Refused("scores that are no list") from problem
        if value is None or value == "":
            rows.append([])
        elif isinstance(value, list):
            rows.append([_score(item) for item in value])
        else:
            raise Refused("scores that are no list")
    return rows


def _npz_side(table: Table, task: Task, questions: Questions) -> Side:
    arrays, found = table.arrays, {}
    for role in ("id", "target", "label"):
        asked = getattr(task, role)
        if asked is not None and asked not in table.names:
            raise Refused(f"no array {asked!r}")
        usual = next((n for n in (role + "s", role) if n in table.names), None)
        found[role] = asked or usual
    kind = next((k for k in PREFIX if k in table.names), None)
    if found["label"] is None and kind is None:
        raise Refused("neither labels nor scores")
    columns = {r: None if n is None else numpy_column(arrays[n]) for r, n in found.items()}
    side = Side(table=table, target_name="target" if found["target"] else None, **columns)
    main = arrays[found["label"]] if found["label"] is not None else arrays[kind or ""]
    if main.ndim == 0 or len(main) == 0:
        raise Refused("no row")
    side.height = len(main)
    for column in columns.values():
        if column is not None and len(column.cells) != side.height:
            raise Refused("arrays of several lengths")
    names = arrays["class_names"].tolist() if "class_names" in table.names else None
    if kind is not None:
        scores = arrays[kind]
        if scores.ndim != 2 or scores.dtype.kind not in "fiu" or len(scores) != side.height:
            raise Refused("scores of another shape or type")
        side.score_kind, side.score_names = kind, names
        side.scores = scores.astype(np.float64).tolist()
        _check_scores(side, questions)
    if names is not None:
        if not isinstance(names, list) or any(isinstance(name, list) for name in names):
            raise Refused("class names that are no list")
        side.target = _by_place(side.target, names, questions)
        side.label = _by_place(side.label, names, questions)
    return side


def _by_place(column: Column | None, names: list[Any], questions: Questions) -> Column | None:
    """With class names, integers are places among them, unless the names are integers too."""
    if column is None or column.kind not in ("int", "float"):
        if column is not None and column.kind == "bool":
            questions.doubt("Booleans next to class names")
        return column
    if all(equality.INTEGER.fullmatch(str(name)) for name in names):
        return column
    if column.kind == "float" and not any(is_missing(cell) for cell in column.cells):
        questions.doubt("floats as places among class names")
    cells: list[Any] = []
    for cell in column.cells:
        if is_missing(cell):
            cells.append(None)
            continue
        place = equality.whole(cell, "a place among class names", questions)
        if not 0 <= place < len(names):
            raise Refused("a place beyond the class names")
        cells.append(str(names[place]))
    return Column(kind="text", cells=cells)


def _check_scores(side: Side, questions: Questions) -> None:
    """Finds the rows whose scores mean nothing."""
    assert side.scores is not None
    width = len(side.scores[0]) if side.score_names is None else len(side.score_names)
    if width < 2:
        if side.label is None:
            raise Refused("scores of fewer than two classes")
        questions.doubt("scores of fewer than two classes, next to a label")
    if side.score_names is not None:
        names = [str(name) for name in side.score_names]
        if "" in names:
            raise Refused("a class without a name")
        if len(set(names)) < len(names):
            raise Refused("a class twice")
    for row, scores in enumerate(side.scores):
        if len(scores) != width:
            side.bad[row] = "scores of another width"
        elif any(s is None or not math.isfinite(s) for s in scores):
            side.bad[row] = "a score that is missing, NaN or infinite"
        elif side.score_kind == "probabilities":
            values = [s for s in scores if s is not None]
            if min(values) < -ROUNDING or abs(math.fsum(values) - 1) > TOLERANCE:
                side.bad[row] = "probabilities that are none"
            elif min(values) < 0 or abs(abs(math.fsum(values) - 1) - TOLERANCE) < 1e-6:
                questions.doubt("probabilities at the edge of rounding")
