"""Whether the data is here, and is that of finished runs, which are named by settings alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipguard.data import load_data
from flipguard.errors import InputError, printable
from flipguard.studies.graph import Node
from flipguard.training.config import Scope
from flipguard.training.folder import Run
from flipguard.training.material import scoped


def check_data(nodes: Sequence[Node]) -> None:
    """Refuses data that is missing, or is not that of the runs that are finished.

    Where all runs are finished, their data need not be here any more.
    """
    by_data: dict[tuple[str, str | None], list[Node]] = {}
    for node in nodes:
        by_data.setdefault((node.config.data, node.config.data_root), []).append(node)
    for (name, root), of_data in by_data.items():
        finished = [node for node in of_data if node.is_finished]
        try:
            data = load_data(name, root=None if root is None else Path(root))
        except InputError:
            if len(finished) == len(of_data):
                continue
            raise
        known: dict[Scope, str] = {}
        for node in finished:
            scope = node.config.scope
            if scope not in known:
                known[scope] = scoped(data, scope).fingerprint
            if Run.read(node.folder).document["data"]["fingerprint"] != known[scope]:
                raise InputError(
                    f"Expected finished runs to be of the {name} that is here, but "
                    f"{printable(str(node.folder))} was trained on another; choose another "
                    "`--out`, or remove the runs of the other data."
                )
