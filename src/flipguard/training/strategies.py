"""Train the members of a run: as one network, in several processes, or one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flipguard.locks import InUseError, alone_in
from flipguard.runs.config import Config, Machine
from flipguard.runs.folder import CHECKPOINT, Run, is_finished
from flipguard.training.fused import train_group
from flipguard.training.fused_group import (
    CannotFuse,
    FusedGroup,
    begun_groups,
    fuses,
    listed_groups,
)
from flipguard.training.interrupting import time_is_up
from flipguard.training.jobs import until
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
from flipguard.training.record import check_follows


def train_together(
    fabric: Any,
    configs: Sequence[Config],
    folders: Sequence[Path],
    *,
    deadline: float | None,
    monitor: Monitor,
) -> bool:
    """Train members as one network if possible; return False if time was up before the end."""
    machine = configs[0].machine
    if fabric.world_size > 1 and machine.fuse != "on":
        return True  # every process takes its share of a batch, member after member
    stops = partial(time_is_up, deadline)
    with ExitStack() as stack:
        # All processes lock in the same order, so that no two wait for each other.
        ours = _to_lock(machine, fabric, folders)
        for folder in sorted(ours):
            try:
                stack.enter_context(alone_in(folder, report=monitor.note, stops=stops))
            except InUseError:
                return False
        return _train_groups(fabric, configs, folders, ours, deadline=deadline, monitor=monitor)


def _to_lock(machine: Machine, fabric: Any, folders: Sequence[Path]) -> set[Path]:
    """Return the folders of the members that are to be trained as one network."""
    if fabric.world_size > 1:
        return set()  # refused later
    names = {folder.name: folder for folder in folders}
    begun = [set(told["members"]) for told in listed_groups(folders[0].parent)]
    wanted = {names[name] for group in begun if group <= set(names) for name in group}
    if fuses(machine, fabric.device):
        fresh = {folder for folder in folders if _is_fresh(folder)}
        wanted |= fresh if len(fresh) > 1 else set()
    return {folder for folder in wanted if not is_finished(folder)}


def _train_groups(
    fabric: Any,
    configs: Sequence[Config],
    folders: Sequence[Path],
    ours: set[Path],  # folders that this process has locked
    *,
    deadline: float | None,
    monitor: Monitor,
) -> bool:
    machine = configs[0].machine
    for group in list(begun_groups(configs, folders, ours)) if fabric.world_size == 1 else ():
        if not train_group(fabric, group, deadline=deadline, monitor=monitor):
            return False
    if not fuses(machine, fabric.device):
        return True
    fresh = [index for index, folder in enumerate(folders) if _is_fresh(folder)]
    if len(fresh) < 2:
        return True
    size, streams = machine.fuse_chunk or len(fresh), machine.streams or 1
    try:
        _refuse_settings(fabric, configs[0])
        while len(fresh) > 1 and size > 1:
            group = FusedGroup(
                configs=tuple(configs[index] for index in fresh[:size]),
                folders=tuple(folders[index] for index in fresh[:size]),
                streams=streams,
            )
            try:
                if not train_group(fabric, group, deadline=deadline, monitor=monitor):
                    return False
            except CannotFuse as problem:
                fewer = 1 < problem.fitting < size
                if machine.fuse == "on" or not (fewer or problem.streams > streams):
                    raise
                size, streams = min(size, problem.fitting), max(streams, problem.streams)
                monitor.note(f"at most {size} members at once: {problem}")
                continue
            fresh = fresh[size:]
    except CannotFuse as problem:
        if machine.fuse == "on":
            raise
        monitor.note(f"members one by one: {problem}")
    return True


def _refuse_settings(fabric: Any, config: Config) -> None:
    machine = config.machine
    what = None
    if fabric.world_size > 1:
        what = f"{fabric.world_size} processes; use one"
    elif machine.precision == "16-mixed":
        what = "precision 16-mixed, which scales all gradients alike; use bf16-mixed or 32-true"
    if what is not None:
        raise CannotFuse(
            f"Expected members to be trained as one network, but got {what}, or `--fuse off`."
        )


def _is_fresh(folder: Path) -> bool:
    """Return whether a member is neither finished nor begun alone."""
    if (folder / CHECKPOINT).exists():
        return False
    return not is_finished(folder)


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
        report(f"{len(reused)} members reused, {count} new")
    if not all_wanted:
        return list(reused)
    for folder in places:
        if is_finished(folder):
            check_follows(Run.read(folder))  # the old run may have changed since the member began
    # As lines only, because the members' epochs are not epochs of the run.
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
        except InUseError:  # time was up while another process was training it
            return None
        if not run.finished:
            return None
        runs.append(run)
    return runs
