"""Whether the data is here, and is that of earlier runs, which are named by settings alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipguard.data import load_data
from flipguard.data.base import DataSet
from flipguard.errors import InputError
from flipguard.studies.graph import Node
from flipguard.training.checks import check_data
from flipguard.training.config import Scope
from flipguard.training.material import scoped


def check_data_of(nodes: Sequence[Node]) -> None:
    """Refuses data that is missing, or is not that of runs that were begun or finished before.

    Where all runs are finished, their data need not be here any more.
    """
    by_data: dict[tuple[str, str | None], list[Node]] = {}
    for node in nodes:
        by_data.setdefault((node.config.data, node.config.data_root), []).append(node)
    for (name, root), of_data in by_data.items():
        try:
            data = load_data(name, root=None if root is None else Path(root))
        except InputError:
            if all(node.is_finished for node in of_data):
                continue
            raise
        seen: dict[Scope, DataSet] = {}
        for node in of_data:
            scope = node.config.scope
            if scope not in seen:
                seen[scope] = scoped(data, scope)
            check_data(node.folder, node.config, seen[scope])
