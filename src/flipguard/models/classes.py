"""Classes of models by name: which output is which class of the data, and tensors row by row."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from flipguard.errors import InputError, listed, printable
from flipguard.models.registry import build_model
from flipguard.models.shapes import Shape

Labels = Sequence[Sequence[str]]
"""The names of each class; a class may have several, such as 'tench' and 'n01440764'."""


def rows_of_classes(labels: Labels, names: Sequence[str]) -> list[int]:
    """Return the index of the label that has each name, or -1 where none or several have it.

    Upper case, underscores and the parts between commas do not matter.

    >>> rows_of_classes([("n01440764", "tench, Tinca tinca"), ("dog",)], ["Dog", "Tench", "cat"])
    [1, 0, -1]
    """
    whole, parts = defaultdict(set), defaultdict(set)
    for index, names_of_one in enumerate(labels):
        for label in names_of_one:
            whole[_plain(label)].add(index)
            for part in label.split(","):
                parts[_plain(part)].add(index)
    found = []
    for name in names:
        named = whole.get(_plain(name)) or parts.get(_plain(name)) or set()
        found.append(next(iter(named)) if len(named) == 1 else -1)
    known = [index for index in found if index >= 0]
    return [index if index < 0 or known.count(index) == 1 else -1 for index in found]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def tensors_by_class(spec: str, *, classes: int, input_shape: Shape | None) -> frozenset[str]:
    """Return the names of a model's tensors that have one row per class.

    >>> sorted(tensors_by_class("mlp:hidden=3", classes=3, input_shape=(3,)))
    ['head.bias', 'head.weight']
    """
    one, other = (
        build_model(spec, classes=count, input_shape=input_shape, seed=0).state_dict()
        for count in (classes, classes + 1)
    )
    return frozenset(name for name in one if one[name].shape != other[name].shape)


def with_classes(
    given: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    rows: Sequence[int],
    by_class: frozenset[str],
) -> dict[str, Tensor]:
    """Return given weights for a model of other classes, whose own weights are `own`.

    Row i of the tensors `by_class` is row `rows[i]` of the given ones; where that is -1, the row
    stays the own one.
    """
    state = dict(given)
    known = [index for index, row in enumerate(rows) if row >= 0]
    for name in by_class:
        mixed = own[name].clone()
        if known:
            mixed[known] = given[name][[rows[index] for index in known]].to(mixed)
        state[name] = mixed
    return state


def given_labels(path: Path) -> list[str]:
    """Return the classes in a file, in order: one per line, or as JSON a list or names by index."""
    try:
        text = path.read_text(encoding="utf-8")
        told = json.loads(text) if path.suffix == ".json" else text.splitlines()
        if isinstance(told, dict):
            told = [told[str(index)] for index in range(len(told))]
        names = [str(name).strip() for name in told if not isinstance(name, list | dict)]
        if len(names) != len(told):
            raise ValueError("a name that is no text")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(
            f"Expected {printable(str(path))} to list the classes, one name per line, or as JSON a "
            f"list or names by index from 0, but it cannot be read ({why})."
        ) from problem
    names = [name for name in names if name] if path.suffix != ".json" else names
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not names or twice:
        raise InputError(
            f"Expected {printable(str(path))} to list every class once, but got "
            f"{listed(twice) + ' more than once' if twice else 'none'}."
        )
    return names
