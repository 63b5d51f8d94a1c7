"""How the members of a run are trained: as one network, side by side, or one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipguard.training.config import Config
from flipguard.training.folder import Run, is_finished
from flipguard.training.follows import check_follows
from flipguard.training.fusing import train_together
from flipguard.training.jobs import until
from flipguard.training.lock import InUseError
from flipguard.training.members import member_folder, wanted_members
from flipguard.training.monitor import LineMonitor, Monitor, Report
from flipguard.training.outcomes import Stopped
from flipguard.training.pool_strategy import (
    TrainOne,
    apart,
    own_threads,
    threads_of,
    train_side_by_side,
)


def train_members(
    fabric: Any,
    config: Config,
    out: Path,
    *,
    train_one: TrainOne,
    reused: Sequence[Run] = (),
    starts: Sequence[str] = (),
    deadline: float | None,
    monitor: Monitor,
) -> list[Run] | None:
    """Train the members of a run that are not finished yet, and return all of them.

    Return None if training was stopped before. Reused members come last: the next update reuses
    the first ones, which are the newest. The others start from `starts`, one each, if there are
    any. `train_one` trains a single run.
    """
    report = monitor.note
    all_wanted = wanted_members(config, out, reused, starts)
    count, places = len(all_wanted), [member_folder(wanted, out) for wanted in all_wanted]
    if reused:
        report(f"{len(reused)} members taken over, {count} of this run's own")
    if not all_wanted:
        return list(reused)
    for folder in places:
        if is_finished(folder):
            check_follows(Run.read(folder))  # it may have started from what old was before
    # Lines: the members' epochs are not those of the run.
    lines = LineMonitor(report)
    if not train_together(fabric, all_wanted, places, deadline=deadline, monitor=lines):
        return None
    if apart(config.machine, fabric):
        all_wanted = [
            dataclasses.replace(wanted, machine=own_threads(wanted.machine))
            for wanted in all_wanted
        ]
        with threads_of(all_wanted[0].machine):
            outcome = train_side_by_side(
                fabric, all_wanted, places, train_one=train_one, deadline=deadline, report=report
            )
            if isinstance(outcome, Stopped):
                return None
            found = _one_by_one(fabric, all_wanted, places, train_one, deadline, report)
    else:
        found = _one_by_one(fabric, all_wanted, places, train_one, deadline, report)
    return None if found is None else [*found, *reused]


def _one_by_one(
    fabric: Any,
    all_wanted: Sequence[Config],
    places: Sequence[Path],
    train_one: TrainOne,
    deadline: float | None,
    report: Report,
) -> list[Run] | None:
    runs: list[Run] = []
    for index, (wanted, folder) in enumerate(zip(all_wanted, places, strict=True)):
        wanted = until(wanted, deadline)
        finished = is_finished(folder)
        report(f"member {index + 1} of {len(places)}: {folder}{' is finished' * finished}")

        def tell(line: str, finished: bool = finished) -> None:
            if not finished:
                report(f"  {line}")

        try:
            run = train_one(
                fabric, wanted, folder, resume=True, waits=True, monitor=LineMonitor(tell)
            )
        except InUseError:  # time was up before another process had trained it
            return None
        if not run.finished:
            return None
        runs.append(run)
    return runs
