"""Members in several processes at once, on a CPU: each alone, with a thread or so of its own.

Small networks gain nothing from a second thread, and a second process is worth almost all of a
core. A member ends in the same bytes, however many are trained beside it, and as it would alone
with as many threads. Each is an ordinary run in a folder of its own, which goes on from its state.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from flipguard.errors import DivergedError, InputError
from flipguard.training.config import Config, Machine, as_dict
from flipguard.training.devices import cores, peak_memory
from flipguard.training.folder import DAMAGES, HISTORY, TIMING, Run, is_finished, read_lines
from flipguard.training.interrupting import interrupted, passed_on, time_is_up
from flipguard.training.lock import InUseError
from flipguard.training.monitor import Report
from flipguard.training.worker import DIVERGED, ENDED, FAILED, LINE, READY, REFUSED, STOP
from flipguard.training.workforce import Said, Worker

# What a process is told to call for a member. By its name, because it calls what calls this.
TRAIN_JOB = "flipguard.training.train:train_job"
# Seconds that further processes must save: a start takes about half of it, most for torch.
WORTH = 6.0
TOLD_EVERY = 5.0  # seconds between lines on how far all have come
# The share that must be done before the time left is told: before, it is the time of starting.
TELLING = 0.05


class TrainOne(Protocol):
    """Trains a single run."""

    def __call__(
        self,
        fabric: Any,
        config: Config,
        out: Path,
        *,
        resume: bool,
        waits: bool = False,
        report: Report,
    ) -> Run:
        """Train in the processes of a fabric, or in new ones if it is None."""


def apart(machine: Machine, fabric: Any) -> bool:
    """Whether members are trained alone, each with few threads: by ``auto`` on a CPU."""
    return machine.fuse == "auto" and fabric.device.type == "cpu" and fabric.world_size == 1


def own_threads(machine: Machine) -> Machine:
    """The machine of a member that is trained apart.

    One thread, also where it is trained alone: what it ends in must not depend on the number of
    cores, nor on whether there was enough to do for several processes.
    """
    return dataclasses.replace(machine, threads=machine.threads or 1)


@contextmanager
def threads_of(machine: Machine) -> Iterator[None]:
    """As many threads as a machine says, for a while; the student may have more."""
    was = torch.get_num_threads()
    torch.set_num_threads(machine.threads or was)
    try:
        yield
    finally:
        torch.set_num_threads(was)


def train_side_by_side(
    fabric: Any,
    configs: Sequence[Config],
    folders: Sequence[Path],
    *,
    train_one: TrainOne,
    deadline: float | None,
    report: Report,
) -> bool:
    """Trains members in several processes, where that is faster; False if stopped before.

    The first member is trained here for an epoch, which is then known to last so long. If all
    that is left, shared by the processes, saves more than their start costs, they are started;
    if not, nothing is done, and whoever called goes on with one member after the other.
    """
    left = [i for i, folder in enumerate(folders) if not is_finished(folder)]
    machine = configs[0].machine
    most = cores() // (machine.threads or 1)
    # One of several processes already, as those of a pool are: the cores are taken.
    nested = multiprocessing.parent_process() is not None
    if len(left) < 2:
        return True
    if most < 2 or nested or not sys.executable:
        report(f"members one by one: {_why_alone(machine, nested)}")
        return True
    lines: list[str] = []
    for first in left:
        begun = _epochs_of(folders[first]) > 0
        if begun or _begin(train_one, fabric, configs[first], folders[first], lines.append):
            break
    else:
        return True  # other processes train all of them, and are waited for

    def tell_first_epoch() -> None:
        for line in lines:
            report(f"  member {first + 1}: {line}")

    if time_is_up(deadline):
        tell_first_epoch()
        # Every start comes further by an epoch: if not here, then one member after the other.
        return begun and not interrupted()
    each = float(_timing_of(folders[first])[-1]["seconds"])
    left = [i for i, folder in enumerate(folders) if not is_finished(folder)]
    crew = Crew(configs, folders, left, deadline=deadline, report=report)
    processes = min(most, len(left), _fitting())
    seconds = each * (crew.epochs - crew.done)
    if deadline is not None:
        seconds = min(seconds, deadline - time.monotonic())
    if processes < 2 or seconds * (1 - 1 / processes) < WORTH:
        if processes == 1 < len(left):
            report("members one by one: memory for one process; `--fuse off` gives it all threads")
        elif len(left) > 1:
            report(
                f"members one by one: about {seconds:.0f} s for all of them, of which further "
                "processes would save less than their start takes"
            )
        tell_first_epoch()
        return True
    return crew.train(processes)


class Crew:
    """Members that are being trained in several processes."""

    def __init__(
        self,
        configs: Sequence[Config],
        folders: Sequence[Path],
        left: Sequence[int],
        *,
        deadline: float | None,
        report: Report,
    ) -> None:
        self._configs, self._folders, self._waiting = configs, folders, list(left)
        self._deadline, self._report = deadline, report
        self._at = {index: _epochs_of(folders[index]) for index in left}
        self.epochs = configs[0].recipe.epochs * len(left)
        self._began, self._before = time.monotonic(), self.done
        self._told = self._began

    @property
    def done(self) -> int:
        """Epochs behind all of them."""
        return sum(self._at.values())

    def train(self, processes: int) -> bool:
        """Trains them; False if time was up, or somebody interrupted it, before all had ended."""
        threads = self._configs[0].machine.threads or 1
        said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        workers: list[Worker] = []
        busy: dict[Worker, int] = {}
        in_time, listening = True, ExitStack()
        each = "one thread" if threads == 1 else f"{threads} threads"
        more = cores() // processes  # members with more threads end in other last digits
        self._report(
            f"{len(self._waiting)} members side by side: {processes} processes, {each} each"
            + (f"; `machine.threads={more}` would use all cores" if more > threads else "")
        )
        try:
            try:
                for _ in range(processes):
                    workers.append(Worker(said, threads=threads))
            except OSError as problem:
                return self._go_on_alone(str(problem))
            # Put where this waits: a signal's handler may come amid anything, and must not write.
            listening.enter_context(passed_on(lambda: said.put((workers[0], STOP, ""))))
            starting = set(workers)
            while busy or (starting and in_time):
                worker, kind, text = said.get()
                if kind == STOP:
                    in_time = False
                    for one in workers:
                        one.stop()
                    continue
                if kind == LINE:
                    self._count(busy[worker], text)
                    continue
                if kind == READY:
                    if len(starting) == processes:
                        self._began = self._told = time.monotonic()
                    starting.discard(worker)
                elif kind == ENDED:
                    self._tell_end(busy.pop(worker))
                    in_time = in_time and text == "finished"
                elif worker in starting:
                    return self._go_on_alone(text)
                else:
                    self._refuse(kind, text, busy.get(worker))
                if self._waiting and in_time:
                    busy[worker] = self._waiting.pop(0)
                    self._give(worker, busy[worker])
        finally:
            listening.close()
            for worker in workers:
                worker.end()
        return in_time

    def _go_on_alone(self, why: str) -> bool:
        """Where no process can be started, this one does it all."""
        last = (why.strip().splitlines() or [""])[-1]
        self._report(f"members one by one: no further process starts here ({last})")
        return True

    def _give(self, worker: Worker, index: int) -> None:
        config = self._configs[index]
        if self._deadline is not None:
            minutes = max(self._deadline - time.monotonic(), 0.0) / 60
            machine = dataclasses.replace(config.machine, minutes=minutes)
            config = dataclasses.replace(config, machine=machine)
        folder = str(self._folders[index])
        job = {"config": as_dict(config), "folder": folder, "waits": True}
        worker.tell({"call": TRAIN_JOB, "arguments": job})

    def _count(self, index: int, line: str) -> None:
        """Counts the epochs; now and then, how far all have come."""
        word, _, rest = line.partition(" ")
        at = rest.partition("/")[0]
        if word != "epoch" or not at.isdecimal():
            self._report(f"  member {index + 1}: {line}")
            return
        self._at[index] = int(at)
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY:
            self._told = now
            self._report(f"  {self.done} of {self.epochs} epochs{self._time_left(now)}")

    def _time_left(self, now: float) -> str:
        done = self.done - self._before
        left = self.epochs - self.done
        if done < TELLING * (done + left):
            return ""
        return f"  {(now - self._began) / done * left:.0f} s left"

    def _tell_end(self, index: int) -> None:
        rows = read_lines(self._folders[index] / HISTORY)
        if not _epochs_of(self._folders[index]):
            return  # it was stopped before it began
        rate = rows[-1]["test"]["error_rate"] if rows else float("nan")
        self._report(
            f"  member {index + 1} of {len(self._configs)}: epoch "
            f"{_epochs_of(self._folders[index])}/{self._configs[index].recipe.epochs}"
            f"  test error {rate:.2%}"
        )

    def _refuse(self, kind: str, text: str, index: int | None) -> None:
        """What one process refuses, all do; the others' members have their states."""
        if kind in (REFUSED, DIVERGED):
            raise (DivergedError if kind == DIVERGED else InputError)(text)
        who = "a process for members" if index is None else f"the process of member {index + 1}"
        if kind == FAILED:
            raise RuntimeError(f"In {who}:\n{text}")
        raise InputError(
            f"Expected {who} to live, but it was ended from outside ({text}), perhaps for want of "
            "memory; go on with `--resume`, or with `--fuse off`, which trains one at a time."
        )


def _begin(train_one: TrainOne, fabric: Any, config: Config, folder: Path, report: Report) -> bool:
    """Trains a member for an epoch, and keeps its state: nothing that is measured is lost.

    False if another process trains it.
    """
    machine = dataclasses.replace(config.machine, minutes=0.0)
    hurried = dataclasses.replace(config, machine=machine)
    try:
        train_one(fabric, hurried, folder, resume=True, report=report)
    except InUseError:
        return False
    return True


def _why_alone(machine: Machine, nested: bool) -> str:
    if nested:
        return "this is one of several processes already"
    if not sys.executable:
        return "no further process starts here (it is not known where Python is)"
    threads = machine.threads or 1
    return f"{threads} threads for each leave no cores for another" if threads > 1 else "one core"


def _epochs_of(folder: Path) -> int:
    """How many epochs of a member are kept: its history may have a row for some of them only."""
    return len(_timing_of(folder))


def _timing_of(folder: Path) -> list[dict[str, Any]]:
    """What is told of a member's epochs; nothing if it is damaged, until it is written again."""
    try:
        return [row for row in read_lines(folder / TIMING) if float(row["seconds"]) >= 0]
    except (*DAMAGES, InputError):
        return []


def _fitting() -> int:
    """How many processes like this one fit into the memory that is free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):
        return sys.maxsize  # not known here
    return free // max(peak_memory(torch.device("cpu")), 1)
