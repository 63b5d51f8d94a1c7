"""Decide which run is the old model, the control or a candidate.

Reading a run folder belongs to `flipguard.runs`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flipguard.errors import InputError, printable
from flipguard.predictions.side_files import files_of_side, files_read
from flipguard.run_document import RUN
from flipguard.runs.history import RunFolder, read_run


def common_old(runs: Sequence[RunFolder]) -> str:
    """The path of the old model that the runs were trained against, if they agree on one."""
    named = {old for run in runs for old in run.old}
    if len(named) != 1:
        told = "none" if not named else ", ".join(printable(n, longest=60) for n in sorted(named))
        raise InputError(
            f"Expected the runs to name one old model, but they name {told}; name it with `old=`."
        )
    (old,) = named
    # The path given at training, or a folder next to the runs if all were moved together.
    places = [Path(old), *(run.folder.parent / Path(old).name for run in runs)]
    for place in places:
        if os.path.isfile(place / RUN):
            return str(place)
    raise InputError(
        f"Expected the old run {printable(old)}, which the runs name, but it does not exist; give "
        "its path with `old=`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRoles:
    """The paths of the old model, the control and the candidates by name."""

    old: str
    control: str | None
    candidates: dict[str, str]
    folders: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """All files of all these runs."""
        places = {self.old, *self.folders, *self.candidates.values()}
        return [file for place in sorted(places) for file in files_read(place)]


def assign_roles(places: Sequence[str], *, old: str | None, control: str | None) -> RunRoles:
    """The roles of the given runs; old and control are found from the runs if not given."""
    for place in places:
        if not os.path.exists(place) and files_of_side(place) is None:
            raise InputError(
                f"Expected {printable(place)} to be a run or a prediction file, but it does not "
                "exist; check the path."
            )
    runs = {place: read_run(place) for place in places if os.path.isdir(place)}
    if old is None:
        if not runs:
            raise InputError(
                "Expected runs that name their old model, but got only prediction files; name the "
                "old one with `old=`."
            )
        old = common_old(list(runs.values()))
    if control is None and len(places) > 1:
        # With one path there would be no candidate left.
        control = next((p for p, run in runs.items() if run.method == "none"), None)
    candidates = list(places)
    if len(candidates) == 1 and same_place(candidates[0], control):
        control = None  # the only candidate cannot be its own control
    shown = [place for place in (*places, *([control] if control else [])) if os.path.isdir(place)]
    return RunRoles(
        old=old,
        control=control,
        candidates=dict(zip(_names(candidates), candidates, strict=True)),
        folders=tuple(dict.fromkeys(os.path.normpath(place) for place in shown)),
    )


def same_place(place: str, other: str | None) -> bool:
    """Whether two paths lead to the same file or folder."""
    return other is not None and os.path.realpath(place) == os.path.realpath(other)


def _names(places: Sequence[str]) -> list[str]:
    """The last part of each path; the whole path if that is a pattern or not unique."""
    last = [
        os.path.basename(os.path.normpath(place)) if os.path.exists(place) else place
        for place in places
    ]
    real = [os.path.realpath(place) for place in places]
    twice = next((place for place in places if real.count(os.path.realpath(place)) > 1), None)
    if twice is not None:
        raise InputError(f"{printable(twice)} is given twice; give each candidate once.")
    return [name if last.count(name) == 1 else p for name, p in zip(last, places, strict=True)]
