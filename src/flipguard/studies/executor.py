"""Training the runs of a plan in several processes, each as soon as what it needs is there.

Processes live as long as there is work, because importing torch takes seconds. Nothing is lost by
stopping: a run that was begun goes on from its state, and a finished one is never trained again.
"""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flipguard.errors import InputError
from flipguard.studies.graph import Node
from flipguard.training.checks import check_folder
from flipguard.training.config import Config, as_dict
from flipguard.training.seeds import Seeds
from flipguard.training.side_by_side import TRAIN_JOB
from flipguard.training.worker import DIVERGED, ENDED, FINISHED, LINE, READY, REFUSED
from flipguard.training.workforce import GONE, Said, Worker

TRAIN_SEVERAL_JOB = "flipguard.training.several:train_several_job"
Told = Callable[[int, int], None]
Finished = Callable[[Collection[Path]], None]
# The share that must be done before the time left is told: before, it is the time of starting.
TELLING = 0.05
# Runs in one network: beyond some, a GPU is full, and more would end together and late.
MOST_FUSED = 16
# Seconds that runs have to end an epoch once time is up; then they go on from an epoch before.
GRACE = 20.0
Job = tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """How many processes, with how many threads each, on which GPUs."""

    processes: int = 1
    threads: int = 1
    devices: tuple[str, ...] = ()  # of CUDA, by number; workers take them in turn
    fuse: bool = False  # untreated runs that differ by seed alone become one network

    def environment(self, index: int) -> Mapping[str, str] | None:
        """What makes a worker see its GPU alone."""
        if not self.devices:
            return None
        return {"CUDA_VISIBLE_DEVICES": self.devices[index % len(self.devices)]}


def train_all(
    nodes: Sequence[Node],
    crew: Crew,
    *,
    cost: Callable[[Node], float],
    deadline: float | None = None,
    progress: Told = lambda _done, _total: None,
    finished: Finished = lambda _: None,
    report: Callable[[str], None] = lambda _: None,
) -> int:
    """Trains every run that is not finished, in this order where it can; how many there were.

    `finished` is told the folders of runs as they are, while others are under way.

    A run that diverges is left out with all that need it, and named at the end. Whatever else is
    refused or fails would meet others too, as a full disk does: it stops them from being begun, and
    those that are under way are finished.
    At the deadline, by `time.monotonic`, all stop after the epoch that they are in.
    """
    left = [node for node in nodes if not node.is_finished]
    for node in left:
        check_folder(node.folder, node.config, resume=True)
    if left:
        _Work(left, crew, cost, deadline, progress, finished, report).train()
    return len(left)


@dataclass(slots=True)
class _Work:
    waiting: list[Node]
    crew: Crew
    cost: Callable[[Node], float]
    deadline: float | None
    progress: Told
    finished: Finished
    report: Callable[[str], None]
    busy: dict[Worker, Job] = field(default_factory=dict)
    units: dict[Path, int] = field(default_factory=dict)  # shares of the work, in milliseconds
    begun: dict[Path, float] = field(default_factory=dict)  # the share of a run that is done
    kinds: dict[Path, str] = field(default_factory=dict)
    done: float = 0.0  # units behind all of them
    diverged: list[str] = field(default_factory=list)  # what is said of runs that did
    failed: str | None = None

    def train(self) -> None:
        open_folders = {node.folder for node in self.waiting}
        # Once and not at every word of a worker: there may be thousands of runs.
        self.units = {n.folder: max(round(1000 * self.cost(n)), 1) for n in self.waiting}
        total = sum(self.units.values())
        said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        workers: list[Worker] = []
        idle: list[Worker] = []
        try:
            for index in range(min(self.crew.processes, len(self.waiting))):
                environment = self.crew.environment(index)
                workers.append(Worker(said, threads=self.crew.threads, environment=environment))
            while (self.waiting and self.failed is None and self._left() > 0) or self.busy:
                try:
                    worker, kind, text = said.get(timeout=self._patience())
                except queue.Empty:
                    if self._left() <= -GRACE:
                        break
                    continue
                ended: set[Path] = set()
                if kind == LINE:
                    self._count(worker, text)
                elif kind == READY:
                    idle.append(worker)
                elif kind == ENDED:
                    job = self.busy.pop(worker)
                    if text == FINISHED:
                        ended = {node.folder for node in job}
                        self._reach(job, 1.0)
                    idle.append(worker)
                elif kind == DIVERGED:
                    ended = self._leave_out(self.busy.pop(worker), text)
                    idle.append(worker)
                else:
                    self._fail(worker, kind, text)
                open_folders -= ended
                if self.failed is None:
                    while idle and self._left() > 0 and (job := self._ready(open_folders)):
                        self._give(idle.pop(), job)
                if self.done >= TELLING * total:
                    self.progress(min(round(self.done), total), total)
                if ended:
                    self.finished(ended)  # last: the workers have something to do meanwhile
                if not self.busy and len(idle) == len(workers):
                    break  # what is left needs a run that was stopped before its end
        finally:
            for worker in workers:
                worker.end()
        if self.failed is not None:
            raise InputError(self.failed)
        if self.diverged:
            others = len(self.diverged) - 1
            more = f" So it was with {others} other run{'s'[: others - 1]}." if others else ""
            raise InputError(self.diverged[0] + more)

    def _left(self) -> float:
        """Seconds that are left, below 0 once time is up."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def _patience(self) -> float | None:
        """Seconds to wait for a word: until time is up, and then until nobody is waited for."""
        left = self._left()
        if self.deadline is None:
            return None
        return left if left > 0 else max(left + GRACE, 0.0)

    def _reach(self, job: Job, share: float) -> None:
        for node in job:
            was = self.begun.get(node.folder, 0.0)
            self.done += self.units[node.folder] * (share - was)
            self.begun[node.folder] = share

    def _ready(self, open_folders: set[Path]) -> Job:
        """The next run whose needs are met, or several that can be one network."""
        ready = [node for node in self.waiting if not node.after & open_folders]
        if not ready:
            return ()
        job: Job = (ready[0],)
        if self.crew.fuse and can_be_fused(ready[0]):
            like = self._kind(ready[0])
            alike = [n for n in ready if can_be_fused(n) and self._kind(n) == like]
            share = -(-len(alike) // max(len(self.crew.devices), 1))
            job = tuple(alike[: min(share, MOST_FUSED)])
        taken = {node.folder for node in job}
        self.waiting = [node for node in self.waiting if node.folder not in taken]
        return job

    def _kind(self, node: Node) -> str:
        if node.folder not in self.kinds:
            self.kinds[node.folder] = kind_of(node)
        return self.kinds[node.folder]

    def _give(self, worker: Worker, job: Job) -> None:
        self.busy[worker] = job
        runs: list[dict[str, Any]] = [
            {"config": as_dict(self._timed(node.config)), "folder": str(node.folder)}
            for node in job
        ]
        if len(runs) == 1:
            worker.tell({"call": TRAIN_JOB, "arguments": runs[0]})
        else:
            worker.tell({"call": TRAIN_SEVERAL_JOB, "arguments": {"runs": runs}})

    def _timed(self, config: Config) -> Config:
        """With the time that is left, so that it stops by itself where it can be resumed."""
        if self.deadline is None:
            return config
        machine = dataclasses.replace(config.machine, minutes=max(self._left(), 0.0) / 60)
        return dataclasses.replace(config, machine=machine)

    def _count(self, worker: Worker, line: str) -> None:
        """Reads how far a run is from what it reports: ``epoch 3/30 …``."""
        word, _, rest = line.strip().partition(" ")
        done, _, of = rest.split(" ")[0].partition("/")
        if word == "epoch" and done.isdecimal() and of.isdecimal() and int(of):
            self._reach(self.busy.get(worker, ()), int(done) / int(of))

    def _leave_out(self, job: Job, text: str) -> set[Path]:
        """Gives up the runs of a job that diverged, and those that need them; what finished."""
        lost = [node for node in job if not node.is_finished]
        self.diverged += [f"{_told(node)} could not be trained: {text}" for node in lost]
        self.report(f"{self.diverged[-1]} What needs it is left out, and the others go on.")
        self._reach(job, 1.0)
        while lost:
            folders = {node.folder for node in lost}
            lost = [node for node in self.waiting if node.after & folders]
            gone = {node.folder for node in lost}
            self.waiting = [node for node in self.waiting if node.folder not in gone]
            self._reach(tuple(lost), 1.0)
        return {node.folder for node in job if node.is_finished}

    def _fail(self, worker: Worker, kind: str, text: str) -> None:
        job = self.busy.pop(worker, ())
        where = _told(job[0]) if job else "A run"
        last = (text.strip().splitlines() or [kind])[-1]
        if kind == REFUSED:
            told = f"{where} could not be trained: {text}"
        elif kind == GONE:
            told = (
                f"{where} could not be trained: its process was ended from outside ({last}), "
                "perhaps for want of memory; run the same command again with fewer `--processes`, "
                "and it goes on from there."
            )
        else:
            told = f"{where} could not be trained ({last}); what is finished stays as it is."
        if self.failed is None:
            self.failed = told
            if self.busy:
                self.report(f"{told} Runs that are under way are finished first.")


def _told(node: Node) -> str:
    """A run as refusals name it: what it is, and where."""
    return f"{node.name} ({node.folder})"


def can_be_fused(node: Node) -> bool:
    """Whether it is a run that can be part of one network with others."""
    config = node.config
    return config.method == "none" and not config.old and not config.fine_tune


def kind_of(node: Node) -> str:
    """All of a configuration but its seeds: runs that agree in it can be one network."""
    config = dataclasses.replace(node.config, seeds=Seeds())
    return repr(as_dict(config))
