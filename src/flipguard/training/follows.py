"""The runs whose weights a run follows: old models, the members of its ensemble, given guides.

`run.json` records a digest of each of their weights, so that no run goes on with other weights than
those it was begun with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from flipguard.errors import InputError, listed, printable
from flipguard.training.folder import MODEL, Run, digest_of, is_finished


def follows(out: Path, runs: Iterable[Run]) -> dict[str, str]:
    """The digests of the runs' weights, by their paths seen from a run's folder."""
    # Relative, so that a folder of runs can be moved as a whole.
    return {os.path.relpath(run.folder, out): weights_of(run) for run in runs}


def weights_of(run: Run) -> str:
    """The digest of a finished run's weights."""
    return str(run.document.get("weights") or digest_of(run.folder / MODEL))


def recorded_key(folder: str) -> str:
    """Return the key of the run in a folder; a run without one counts by its weights."""
    document = Run.read(Path(folder)).document
    return str(document.get("key") or document.get("weights", ""))


def follows_same(run: Run, there: Sequence[str], here: Sequence[str]) -> bool:
    """Whether the runs in some folders are those that a run named, or have the same weights.

    Paths alone do not tell: one may be relative, or the runs may have been moved.
    """
    return len(there) == len(here) and all(
        os.path.realpath(first) == os.path.realpath(second)
        or (
            is_finished(Path(second)) and weights_of(Run.read(Path(second))) in run.follows.values()
        )
        for first, second in zip(there, here, strict=True)
    )


def changed_since(run: Run) -> list[str]:
    """The runs that it follows whose weights are others now, by paths seen from its folder."""
    return [
        place
        for place, digest in run.follows.items()
        if is_finished(run.folder / place) and weights_of(Run.read(run.folder / place)) != digest
    ]


def check_follows(run: Run) -> None:
    """Refuses to go on with a run if weights that it follows are others now."""
    if changed := changed_since(run):
        raise InputError(
            f"Expected {printable(str(run.folder))} to go on with the weights that it was begun "
            f"with, but those of {listed(changed)} (paths relative to it) have changed; restore "
            f"them, or remove {printable(str(run.folder))} to begin again."
        )
