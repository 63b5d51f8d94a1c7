"""The plain count: rows joined by hand, classes compared one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.fuzzing import equality
from tests.fuzzing.equality import Key
from tests.fuzzing.outcomes import (
    CELLS,
    UNLABELLED,
    Counts,
    Questions,
    Refused,
)
from tests.fuzzing.reading import Column
from tests.fuzzing.sides import Side, Task, side_of

MISSING = "(missing)"


def counted(task: Task, questions: Questions) -> Counts:
    """The counts of one reading of the files."""
    sides = [side_of(path, task, questions) for path in task.paths]
    _refuse_unknown_groups(task, sides, questions)
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


# -- ids and classes -----------------------------------------------------------------------------


def _refuse_unknown_groups(task: Task, sides: Sequence[Side], questions: Questions) -> None:
    for by in (*task.by, *([task.cluster] if task.cluster else [])):
        if _is_target(by, sides) and not _is_target(by, sides[:2]):
            questions.doubt("grouped by the targets of a control")
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
            gaps = any(cell is None for cell in equality.cells_of(column))
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
    named = any(s.scores is not None and s.score_names is not None for s in sides)
    keys = [key for s in sides for key in (*s.targets, *s.labels) if key is not None]
    if named or any(kind != "int" for kind, _ in keys):
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
