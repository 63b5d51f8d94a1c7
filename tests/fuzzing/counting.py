"""The plain count: rows joined by hand, classes compared one by one."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzzing import equality
from tests.fuzzing.equality import Key
from tests.fuzzing.outcomes import (
    CELLS,
    UNLABELLED,
    Counts,
    Questions,
    Refused,
)
from tests.fuzzing.reading import Column, JsonNumber, Odd, Table, is_missing, numpy_column, read

PREFIX = {"logits": "logit_", "probabilities": "probability_"}
TOLERANCE, ROUNDING = 1e-3, 1e-6
MISSING = "(missing)"


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


def counted(task: Task, questions: Questions) -> Counts:
    """The counts of one reading of the files."""
    sides = [_side(path, task, questions) for path in task.paths]
    _refuse_unknown_groups(task, sides)
    _name_ids(sides, questions)
    _name_classes(sides, questions)
    rows, tally = _matched(sides, task, questions)
    _refuse_bad_rows(sides, rows, questions)
    _refuse_strange_classes(sides, rows, questions)
    targets = [_target(sides, row) for row in rows]
    groups = {by: _groups(by, sides, rows, targets, questions) for by in task.by}
    clusters = None
    if task.cluster is not None:
        found = _groups(task.cluster, sides, rows, targets, questions)
        if None in found:
            raise Refused("a row without a cluster")
        clusters = len(set(found))
    has_target = any(side.target is not None for side in sides)
    cells = _cells(sides, rows, targets)
    return Counts(
        has_target=has_target,
        whole=dict(Counter(cells[0])),
        groups={
            by: _by_group(names, cells[0], by_target=_is_target(by, sides))
            for by, names in groups.items()
        },
        rows=tally,
        controls=[dict(Counter(found)) for found in cells[1:]],
        clusters=clusters,
        by_id=None
        if sides[0].id is None
        else {sides[0].ids[row[0]]: cell for row, cell in zip(rows, cells[0], strict=True)},
    )


# -- one side ------------------------------------------------------------------------------------


def _side(path: Path, task: Task, questions: Questions) -> Side:
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


# -- ids and classes -----------------------------------------------------------------------------


def _refuse_unknown_groups(task: Task, sides: Sequence[Side]) -> None:
    for by in (*task.by, *([task.cluster] if task.cluster else [])):
        if not _is_target(by, sides) and not any(_has(side, by) for side in sides[:2]):
            raise Refused(f"no column {by!r} to group by")


def _has(side: Side, name: str) -> bool:
    if side.table.format == "npz":
        kept = {"logits", "probabilities", "class_names"}
        roles = {"id": side.id, "target": side.target, "label": side.label}
        if name in roles:
            return roles[name] is not None
        if name not in side.table.names or name in kept:
            return False
        array = side.table.arrays[name]
        return array.ndim == 1 and len(array) == side.height
    return name in side.table.names


def _is_target(by: str, sides: Sequence[Side]) -> bool:
    names = {side.target_name for side in sides if side.target_name is not None}
    return bool(names) and by in names | {"target"}


def _name_ids(sides: Sequence[Side], questions: Questions) -> None:
    without = [side for side in sides if side.id is None]
    if without and (len(without) < len(sides) or questions.in_spark):
        raise Refused("no ids")
    booleans = equality.has_booleans(side.id for side in sides if side.id is not None)
    for side in sides:
        if side.id is None:
            side.ids = [("row", row) for row in range(side.height)]
            continue
        side.ids = equality.id_keys(side.id, booleans=booleans, questions=questions)
        if None in side.ids:
            raise Refused("a row without an id")
        if len(set(side.ids)) < len(side.ids):
            raise Refused("an id twice")


def _name_classes(sides: Sequence[Side], questions: Questions) -> None:
    columns = [c for side in sides for c in (side.target, side.label) if c is not None]
    booleans = equality.has_booleans(columns)
    floats = {id(c): equality.is_float_column(c, questions) for c in columns}
    count_as_integers = _floats_count(sides, floats, questions)
    for side in sides:
        keyed = []
        for column in (side.target, side.label):
            if column is None:
                keyed.append([None] * side.height)
                continue
            floating = floats[id(column)]
            found = equality.class_keys(
                column, floats=floating, booleans=booleans, questions=questions
            )
            gaps = any(is_missing(cell) for cell in column.cells)
            if floating and not gaps and not count_as_integers:
                raise Refused("a float column without missing values among others")
            keyed.append(found)
        side.targets, side.labels = keyed
        if side.label is None:
            side.labels = _labels_of_scores(side, booleans=booleans, questions=questions)
        else:
            _name_all_scores(side, booleans=booleans, questions=questions)
            for row, label in enumerate(side.labels):
                if label is None:
                    side.bad.setdefault(row, "no predicted class")
    _doubt_unnamed(sides, questions)


def _floats_count(sides: Sequence[Side], floats: dict[int, bool], questions: Questions) -> bool:
    """Rule 4 (b): whether the targets and both label columns are all float columns."""
    compared = [c for side in sides[:2] for c in (side.target, side.label) if c is not None]
    others = [c for side in sides[2:] for c in (side.target, side.label) if c is not None]
    if not any(floats[id(c)] for c in (*compared, *others)):
        return False
    full = [c for c in compared if equality.present(c)]
    if len(full) < len(compared):
        questions.doubt("a column without any value among float columns")
    every = all(floats[id(c)] for c in full)
    if every and any(side.label is None for side in sides):
        questions.doubt("classes of scores among float columns")
    if others and every != all(floats[id(c)] for c in (*full, *others)):
        return (
            questions.ask("do only old and new decide whether floats count as integers?") == every
        )
    return every


def _scored_classes(side: Side, *, booleans: bool, questions: Questions) -> list[Key]:
    assert side.scores is not None
    names: Sequence[Any] = side.score_names or range(len(side.scores[0]))
    keys = [equality.class_name_key(name, booleans=booleans, questions=questions) for name in names]
    if len(set(keys)) < len(keys):
        questions.doubt("a class with two score columns")
    return keys


def _name_all_scores(side: Side, *, booleans: bool, questions: Questions) -> None:
    if side.scores is not None:
        _scored_classes(side, booleans=booleans, questions=questions)


def _labels_of_scores(side: Side, *, booleans: bool, questions: Questions) -> list[Key | None]:
    assert side.scores is not None
    classes = _scored_classes(side, booleans=booleans, questions=questions)
    side.known = set(classes)
    labels: list[Key | None] = []
    for row, scores in enumerate(side.scores):
        if row in side.bad:
            labels.append(None)
            continue
        best = max(range(len(scores)), key=lambda j: scores[j])  # the first of the largest
        labels.append(classes[best])
    return labels


def _doubt_unnamed(sides: Sequence[Side], questions: Questions) -> None:
    """Numbered classes and named ones meet only by a guess."""
    bare = [s for s in sides if s.scores is not None and s.score_names is None]
    if not bare:
        return
    named = [n for s in sides if s.scores is not None for n in s.score_names or []]
    keys = [key for s in sides for key in (*s.targets, *s.labels) if key is not None]
    if any(not equality.INTEGER.fullmatch(str(n)) for n in named) or any(
        kind != "int" for kind, _ in keys
    ):
        questions.doubt("numbered scores next to named classes")


# -- rows ----------------------------------------------------------------------------------------

Row = tuple[int, ...]


def _matched(
    sides: Sequence[Side], task: Task, questions: Questions
) -> tuple[list[Row], dict[str, int]]:
    if sides[0].id is None:
        if len({side.height for side in sides}) > 1:
            raise Refused("files without ids of several lengths")
        tally = {"matched": sides[0].height, "only_old": 0, "only_new": 0}
        if len(sides) > 2:
            tally["not_in_control"] = 0
        return [(row,) * len(sides) for row in range(sides[0].height)], tally
    places = [{key: row for row, key in enumerate(side.ids)} for side in sides]
    old, new, *others = (set(place) for place in places)
    both = old & new
    common = both.intersection(*others)
    if not common:
        raise Refused("no id in common")
    if task.on_missing == "error" and any(set(place) != common for place in places):
        raise Refused("ids on one side only")
    tally = {
        "matched": len(common),
        "only_old": len(old - both),
        "only_new": len(new - both),
    }
    if others:
        tally["not_in_control"] = len(both) - len(common)
    rows = [tuple(place[key] for place in places) for key in places[0] if key in common]
    return rows, tally


def _refuse_bad_rows(sides: Sequence[Side], rows: Sequence[Row], questions: Questions) -> None:
    for i, side in enumerate(sides):
        used = {row[i] for row in rows}
        for row, why in side.bad.items():
            if row not in used:
                questions.doubt(f"{why}, in a row that is left out")
            elif i >= 2 and side.label is not None and why != "no predicted class":
                questions.doubt(f"{why}, in a control with labels")
            else:
                raise Refused(why)
    for row in rows:
        known = {side.targets[at] for side, at in zip(sides, row, strict=True)} - {None}
        if len(known) > 1:
            raise Refused("two targets of one sample")


def _refuse_strange_classes(
    sides: Sequence[Side], rows: Sequence[Row], questions: Questions
) -> None:
    """Rule 6: labels of a side that occur nowhere else."""
    targets = {_target(sides, row) for row in rows} - {None}
    labels = [{side.labels[row[i]] for row in rows} - {None} for i, side in enumerate(sides)]
    every_target = {key for side in sides for key in side.targets} - {None}
    everywhere = [{*side.labels, *side.known} - {None} for side in sides]
    for i in range(len(sides)):
        other = 1 - i if i < 2 else 0
        strange = not labels[i] & (targets | labels[other])
        # Rows that are left out, and classes that scores know but no row has, are seen by some.
        strange_everywhere = not everywhere[i] & (every_target | everywhere[other])
        if i >= 2 and (strange or strange_everywhere):
            questions.doubt("a control whose labels occur nowhere else")
        elif strange and strange_everywhere:
            raise Refused("labels of one side that occur nowhere else")
        elif strange or strange_everywhere:
            questions.doubt("labels that occur elsewhere only where no row is counted")


def _target(sides: Sequence[Side], row: Row) -> Key | None:
    found = (side.targets[at] for side, at in zip(sides, row, strict=True))
    return next((key for key in found if key is not None), None)


# -- cells and groups ----------------------------------------------------------------------------


def _cells(
    sides: Sequence[Side], rows: Sequence[Row], targets: Sequence[Key | None]
) -> list[list[str]]:
    """The cell of each row: of new, then of each control."""
    return [
        [
            _cell(sides[0].labels[row[0]], sides[i].labels[row[i]], target)
            for row, target in zip(rows, targets, strict=True)
        ]
        for i in range(1, len(sides))
    ]


def _cell(old: Key | None, new: Key | None, target: Key | None) -> str:
    if target is None:
        return UNLABELLED[0] if old == new else UNLABELLED[1]
    if old == target:
        return CELLS[0] if new == target else CELLS[1]
    if new == target:
        return CELLS[2]
    return CELLS[3] if old == new else CELLS[4]


def _groups(
    by: str,
    sides: Sequence[Side],
    rows: Sequence[Row],
    targets: Sequence[Key | None],
    questions: Questions,
) -> list[str | None]:
    if _is_target(by, sides):
        if any(key == ("text", MISSING) for key in targets) and questions.ask(
            "is a class called (missing) shown with quotation marks?"
        ):
            return [None if key is None else equality.quoted(_shown(key)) for key in targets]
        return [None if key is None else _shown(key) for key in targets]
    found = []
    have = [(i, _column(side, by)) for i, side in enumerate(sides[:2]) if _has(side, by)]
    booleans = equality.has_booleans(column for _, column in have)
    for i, column in have:
        names = equality.group_names(column, booleans=booleans, questions=questions)
        if by == "id" and sides[i].id is not None:
            questions.doubt("grouped by id")
        found.append([names[row[i]] for row in rows])
    if any(names != found[0] for names in found):
        raise Refused(f"two values in column {by!r}")
    return found[0]


def _shown(key: Key) -> str:
    return equality.class_shown(key)


def _column(side: Side, name: str) -> Column:
    if side.table.format == "npz" and name in ("id", "target", "label"):
        column = {"id": side.id, "target": side.target, "label": side.label}[name]
        assert column is not None
        return column
    return side.table.column(name)


def _by_group(
    names: Sequence[str | None], cells: Sequence[str], *, by_target: bool
) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for name, cell in zip(names, cells, strict=True):
        if name is None and by_target:
            continue
        found.setdefault(MISSING if name is None else name, Counter())[cell] += 1
    return {name: dict(counts) for name, counts in found.items()}
