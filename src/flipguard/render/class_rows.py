"""The table of precision, recall and F1 of each class, as texts."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.groups import Group, Grouping
from flipguard.render.words import number

CLASS_HEADER = ("precision", "recall", "F1")


def has_classes(grouping: Grouping) -> bool:
    """Return whether each group is a class of the targets, whose false labels were counted."""
    return bool(grouping.groups) and grouping.groups[0].counts.layout.is_class


def class_rows(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Return the name of each class, and its precision, recall and F1, of old and new."""
    return [
        (group.name, [_both(group, metric) for metric in ("precision", "recall", "f1")])
        for group in groups
    ]


def _both(group: Group, metric: str) -> str:
    old, new = (number(name, group[name].value) for name in (f"{metric}_old", f"{metric}_new"))
    return f"{old} → {new}"
