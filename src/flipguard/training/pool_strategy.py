"""Train members in several processes at once on a CPU, each with one thread or a few.

Small networks gain nothing from a second thread, but a second process uses almost all of another
core. A member's bytes do not depend on how many members are trained at the same time; they equal
those of training it alone with as many threads. Each member is an ordinary run in its own folder,
and resumes from its checkpoint.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flipguard.errors import DivergedError, InputError
from flipguard.formatting import format_percent
from flipguard.locks import InUseError
from flipguard.run_document import DAMAGES
from flipguard.runs.config import Config, Machine
from flipguard.runs.folder import is_finished, read_lines
from flipguard.runs.history import HISTORY, TIMING, measured_split
from flipguard.training.devices import cores, peak_memory
from flipguard.training.interrupting import interrupted, on_interrupt, stop_reason
from flipguard.training.jobs import train_job_for
from flipguard.training.monitor import LineMonitor, Report
from flipguard.training.outcomes import Declined, Done, Outcome, Stopped
from flipguard.training.strategy import Member, Strategy, TrainingContext
from flipguard.worker_pool import Ending, Job, PoolMonitor, PoolSettings, WorkerPool

# Seconds that more processes must save. To start takes about half of it, mostly to import torch.
WORTH = 6.0
TOLD_EVERY = 5.0  # seconds between progress lines
# The share that must be done before the time left is shown: earlier estimates include the start.
TELLING = 0.05


def apart(machine: Machine, fabric: Any) -> bool:
    """Return whether members are trained alone with few threads each: by ``auto`` on a CPU."""
    return machine.fuse == "auto" and fabric.device.type == "cpu" and fabric.world_size == 1


def own_threads(machine: Machine) -> Machine:
    """Return the machine settings of a member that is trained in its own process.

    It has one thread by default, even if it is trained alone: the result must not depend on the
    number of cores, or on whether there was enough work for several processes.
    """
    return dataclasses.replace(machine, threads=machine.threads or 1)


@contextmanager
def threads_of(machine: Machine) -> Iterator[None]:
    """Context manager: use the machine's number of threads, then as many as before."""
    was = torch.get_num_threads()
    torch.set_num_threads(machine.threads or was)
    try:
        yield
    finally:
        torch.set_num_threads(was)


class PoolStrategy(Strategy):
    """Members in several processes, where that is faster than one after the other."""

    def train(self, members: Sequence[Member], context: TrainingContext) -> Outcome:
        """Train the members that are left if more processes save more time than they cost.

        The first member is trained in this process for an epoch, to measure how long one takes.
        """
        report, deadline = context.monitor.note, context.deadline
        left = [i for i, member in enumerate(members) if not is_finished(member.folder)]
        machine = members[0].config.machine
        most = cores() // (machine.threads or 1)
        # One of several processes already: the cores are taken.
        nested = multiprocessing.parent_process() is not None
        if len(left) < 2:
            return Declined()
        if most < 2 or nested or not sys.executable:
            return Declined(_why_alone(machine, nested))
        lines: list[str] = []
        for first in left:
            begun = epochs_of(members[first].folder) > 0
            if begun or _begin(context, members[first], lines.append):
                break
        else:
            return Declined()  # other processes train all of them, and are waited for
        if reason := stop_reason(deadline):
            # Every start trains an epoch at least: if not here, then one member after the other.
            if begun and not interrupted():
                return Declined()
            if lines:
                report(f"member {first + 1} of {len(members)}: {members[first].folder}")
            for line in lines:
                report(f"  {line}")
            return Stopped(reason)
        left = [i for i, member in enumerate(members) if not is_finished(member.folder)]
        processes = min(most, len(left), _fitting())
        seconds = _seconds_left(members, first, left, deadline)
        if processes >= 2 and seconds * (1 - 1 / processes) >= WORTH:
            return train_in_pool(
                [member.config for member in members],
                [member.folder for member in members],
                left,
                processes=processes,
                deadline=deadline,
                report=report,
            )
        why: str | None = None
        if processes == 1 < len(left):
            why = "there is memory for one process; `machine.fuse=off` gives it all threads"
        elif len(left) > 1:
            why = (
                f"about {seconds:.0f} s for all of them; more processes would save less than their "
                "start takes"
            )
        return Declined(why, {first: lines})


def _seconds_left(
    members: Sequence[Member], measured: int, left: Sequence[int], deadline: float | None
) -> float:
    """Return how long the members left take one by one, by the epoch that was `measured`."""
    seconds = float(_timing_of(members[measured].folder)[-1]["seconds"]) * sum(
        members[i].config.recipe.epochs - epochs_of(members[i].folder) for i in left
    )
    return seconds if deadline is None else min(seconds, deadline - time.monotonic())


def train_in_pool(
    configs: Sequence[Config],
    folders: Sequence[Path],
    left: Sequence[int],  # the indices of those to train
    *,
    processes: int,
    deadline: float | None,
    report: Report,
) -> Outcome:
    """Train members in this number of processes."""
    threads = configs[0].machine.threads or 1
    each = "one thread" if threads == 1 else f"{threads} threads"
    more = cores() // processes  # only proposed: more threads change the last digits of results
    report(
        f"{len(left)} members side by side: {processes} processes, {each} each"
        + (f"; `machine.threads={more}` would use all cores" if more > threads else "")
    )
    pool = WorkerPool(PoolSettings(processes=processes, threads=threads))
    members = MemberMonitor(pool, configs, folders, left, report)
    # The pool has no deadline: each job trains at least one epoch, however long that takes.
    jobs = [train_job_for(configs[i], folders[i], deadline=deadline, waits=True) for i in left]
    try:
        with on_interrupt(pool.stop):
            result = pool.run(jobs, monitor=members)
    except _NoProcessError as problem:
        return Declined(f"no more processes can be started here ({_last_line(str(problem))})")
    return Stopped(stop_reason(None) or "deadline") if result.unfinished else Done()


class _NoProcessError(Exception):
    """A worker process ended before any was given a member."""


def _killed(who: str, how: str) -> InputError:
    return InputError(
        f"Expected {who} to finish, but it was killed ({how}), perhaps because memory ran out; "
        "resume with `resume=True`, or with `machine.fuse=off`, which trains one member at a time."
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


class MemberMonitor(PoolMonitor):
    """Reports the progress of members that are trained in a pool."""

    def __init__(
        self,
        pool: WorkerPool,
        configs: Sequence[Config],
        folders: Sequence[Path],
        left: Sequence[int],
        report: Report,
    ) -> None:
        self._pool, self._configs, self._folders, self._report = pool, configs, folders, report
        self._index = {str(folders[index]): index for index in left}  # by the key of the job
        self._done = {str(folders[index]): epochs_of(folders[index]) for index in left}
        self._epochs = configs[0].recipe.epochs * len(left)
        self._done_before = sum(self._done.values())
        self._began: float | None = None
        self._reported = time.monotonic()

    def begun(self, job: Job) -> None:  # noqa: ARG002
        """Start to measure time at the first job, when a process has started."""
        if self._began is None:
            self._began = self._reported = time.monotonic()

    def note(self, job: Job, text: str) -> None:
        """Report a note with the number of the member."""
        self._report(f"  member {self._index[job.key] + 1}: {text}")

    def epoch(self, job: Job, done: int, of: int) -> None:  # noqa: ARG002
        """Report the progress of all members every few seconds."""
        self._done[job.key] = done
        now = time.monotonic()
        if now - self._reported >= TOLD_EVERY:
            self._reported = now
            epochs = f"{sum(self._done.values())} of {self._epochs} epochs"
            self._report(f"  {epochs}{self._time_left(now)}")

    def ended(self, job: Job | None, ending: Ending) -> None:
        """Report the end of a member; raise if it failed, because the others would fail as well.

        The other members keep their checkpoints.
        """
        if job is None and self._began is None:
            raise _NoProcessError(ending.text)
        if job is None:
            raise _killed("a process", _last_line(ending.text))
        index = self._index[job.key]
        who = f"the process of member {index + 1}"
        if ending.kind == "diverged":
            raise DivergedError(ending.text)
        if ending.kind == "refused":
            raise InputError(ending.text)
        if ending.kind == "crashed":
            raise RuntimeError(f"In {who}:\n{ending.text}")
        if ending.kind == "gone":
            raise _killed(who, ending.text)
        if ending.kind == "stopped":
            self._pool.stop()
        self._report_end(index)

    def _report_end(self, index: int) -> None:
        done, folder = epochs_of(self._folders[index]), self._folders[index]
        if not done:
            return  # it was stopped before its first epoch
        rows = read_lines(folder / HISTORY)
        split = measured_split(rows[-1]) if rows else None
        told = ""
        if split is not None:
            told = f"  {split} error {format_percent(rows[-1][split]['error_rate'])}"
        self._report(
            f"  member {index + 1} of {len(self._configs)}: epoch "
            f"{done}/{self._configs[index].recipe.epochs}{told}"
        )

    def _time_left(self, now: float) -> str:
        done = sum(self._done.values())
        trained, left = done - self._done_before, self._epochs - done
        if self._began is None or trained < TELLING * (trained + left):
            return ""
        return f"  {(now - self._began) / trained * left:.0f} s left"


def _begin(context: TrainingContext, member: Member, report: Report) -> bool:
    """Train a member for one epoch and keep its checkpoint.

    Return False if another process trains it.
    """
    machine = dataclasses.replace(member.config.machine, minutes=0.0)
    hurried = dataclasses.replace(member.config, machine=machine)
    try:
        context.train_one(
            context.fabric, hurried, member.folder, resume=True, monitor=LineMonitor(report)
        )
    except InUseError:
        return False
    return True


def _why_alone(machine: Machine, nested: bool) -> str:
    if nested:
        return "this is one of several processes already"
    if not sys.executable:
        return "no more processes can be started here (the path of Python is not known)"
    threads = machine.threads or 1
    return f"{threads} threads each leave no cores for another" if threads > 1 else "one core"


def epochs_of(folder: Path) -> int:
    """Return the number of saved epochs of a member; only some may have a row in its history."""
    return len(_timing_of(folder))


def _timing_of(folder: Path) -> list[dict[str, Any]]:
    """Return the timing rows of a member's epochs; none if the file is damaged."""
    try:
        return [row for row in read_lines(folder / TIMING) if float(row["seconds"]) >= 0]
    except (*DAMAGES, InputError):
        return []


def _fitting() -> int:
    """Return how many processes like this one fit into the free memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):
        return sys.maxsize  # not known here
    return free // max(peak_memory(torch.device("cpu")), 1)
