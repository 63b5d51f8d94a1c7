"""What a policy must come to, as far as that can be told without intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzzing import equality
from tests.fuzzing.outcomes import CELLS, UNLABELLED, Counts, Judged, Questions, Refused
from tests.fuzzing.reading import is_missing, read

RIGHT_OLD = ("both_right", "negative_flip")
WRONG_NEW = ("negative_flip", "wrong_same", "wrong_different")
DIFFERENT = ("negative_flip", "positive_flip", "wrong_different", "unlabelled_different")


def total(cells: Mapping[str, int], names: Sequence[str]) -> int:
    """The number of rows in some cells."""
    return sum(cells.get(name, 0) for name in names)


def fraction(metric: str, cells: Mapping[str, int]) -> tuple[int, int]:
    """A metric as a part and a whole."""
    labelled = total(cells, CELLS)
    if metric == "churn":
        return total(cells, DIFFERENT), labelled + total(cells, UNLABELLED)
    part = {
        "negative_flip_rate": cells.get("negative_flip", 0),
        "positive_flip_rate": cells.get("positive_flip", 0),
        "accuracy_gain": cells.get("positive_flip", 0) - cells.get("negative_flip", 0),
        "error_rate_new": total(cells, WRONG_NEW),
        "wrong_to_wrong": cells.get("wrong_different", 0),
    }[metric]
    return part, labelled


def judged(
    counts: Counts,
    rules: Sequence[Mapping[str, Any]],
    pinned: Path | None,
    questions: Questions,
) -> Counts:
    """The counts with the rows of a verdict; what cannot be judged is refused."""
    _refuse_strangers(counts)
    points: list[tuple[str, str | None, str | None, str]] = []
    values: dict[tuple[str, str | None, str | None], float | None] = {}
    for rule in rules:
        metric, by = rule["metric"], rule.get("by")
        if metric != "churn" and not counts.has_target:
            raise Refused("a rule that needs targets")
        for group, cells in _groups(counts, rule).items():
            part, n = fraction(metric, cells)
            values[metric, by, group] = part / n if n else None
            if rule["judge"] == "point":
                points.append((metric, by, group, _verdict(rule, part, n)))
    flipped = None if pinned is None else _pinned(counts, pinned, questions)
    return replace(
        counts, judged=Judged(points=sorted(points, key=str), values=values, pinned=flipped)
    )


def _refuse_strangers(counts: Counts) -> None:
    """Nothing can break where old, or a control, is never right."""
    for cells in (counts.whole, *counts.controls):
        right = RIGHT_OLD if cells is counts.whole else ("both_right", "positive_flip")
        if counts.has_target and total(cells, CELLS) and not total(cells, right):
            raise Refused("a model that is never right")


def _groups(counts: Counts, rule: Mapping[str, Any]) -> Mapping[str | None, Mapping[str, int]]:
    by = rule.get("by")
    if by is None:
        return {None: counts.whole}
    groups = counts.groups[by]
    if "only" not in rule:
        return dict(groups)
    if any(name not in groups for name in rule["only"]):
        raise Refused("a rule about a group that is not there")
    return {name: groups[name] for name in rule["only"]}


def _verdict(rule: Mapping[str, Any], part: int, n: int) -> str:
    if n < rule.get("min_n", 0):
        return "not_judged"
    if not n:
        return "inconclusive"
    value = part / n
    inside = rule.get("min", float("-inf")) <= value <= rule.get("max", float("inf"))
    return "pass" if inside else "fail"


def _pinned(counts: Counts, path: Path, questions: Questions) -> list[str]:
    """The pinned ids that flipped, as they are shown."""
    if not counts.has_target or counts.by_id is None:
        raise Refused("pinned samples need targets and ids")
    table = read(path, questions)
    if "id" not in table.names:
        raise Refused("pinned samples without ids")
    column = table.column("id")
    if any(is_missing(cell) for cell in column.cells):
        raise Refused("a pinned row without an id")
    keys = equality.id_keys(column, booleans=False, questions=questions)
    if len(set(keys)) < len(keys):
        questions.doubt("a sample that is pinned twice")
    flipped = []
    for key in dict.fromkeys(keys):
        if key not in counts.by_id:
            raise Refused("a pinned id that was not compared")
        cell = counts.by_id[key]
        if cell == "unlabelled_different":
            raise Refused("a pinned sample without a target has another label")
        if cell == "negative_flip" and key is not None:
            flipped.append(str(key[1]))
    return sorted(flipped)
