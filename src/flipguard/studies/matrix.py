"""Every two of several models: which lines a study has for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from flipguard.studies.papers import PaperTable
from flipguard.studies.study import Line, Model

MATRIX = "every two"
"""The group of all cells."""


def matrix_lines(roles: Sequence[str], table: PaperTable) -> Iterator[Line]:
    """An untreated update for each old and each new model, also for two of one role."""
    for old, new in itertools.product(roles, repeat=2):
        yield Line(
            label=f"{old} to {new}",
            group=MATRIX,
            block=(table.data, MATRIX, old, new),
            old=Model(role=old, generation=1),
            new=Model(role=new, generation=0),
            pair=(old, new),
        )
