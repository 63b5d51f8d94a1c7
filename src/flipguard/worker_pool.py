"""A pool of worker processes; a job starts when a process is free and its needs are met.

The processes stay until all jobs are done, because importing torch takes seconds. They communicate
by the messages that `worker_process.py` describes; lines for people are never parsed. What a job
does, and how its progress is shown, is up to the caller: see `Job` and `PoolMonitor`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flipguard import worker_process

# Seconds that jobs have to finish an epoch after the deadline.
GRACE = 20.0
LONGEST = 86_400.0  # seconds of one wait; a lock cannot wait for centuries

Message: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = "queue.SimpleQueue[tuple[Worker | None, Message]]"
EndingKind: TypeAlias = Literal["finished", "stopped", "refused", "diverged", "crashed", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A call of a function in a worker process."""

    key: str
    call: str  # "module:function"
    arguments: Mapping[str, Any]  # must fit into JSON
    after: frozenset[str] = frozenset()  # results of other jobs that it needs
    makes: frozenset[str] = frozenset()  # its results; if empty, its key is the only one
    cost: float = 1.0

    @property
    def results(self) -> frozenset[str]:
        """Names of its results, which other jobs have in `after`."""
        return self.makes or frozenset({self.key})


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended, with a message.

    `refused` and `diverged` come with a sentence, `crashed` with a traceback, and `gone` with how
    the process ended, such as ``signal 9``.
    """

    kind: EndingKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class PoolResult:
    """The keys of the jobs that finished, and of all others."""

    finished: frozenset[str]
    unfinished: frozenset[str]


class PoolMonitor:
    """Receives the events of a pool. If one of its methods raises, all processes are ended."""

    def begun(self, job: Job) -> None:
        """Called when a job was given to a process."""

    def note(self, job: Job, text: str) -> None:
        """Called with a sentence for people."""

    def epoch(self, job: Job, done: int, of: int) -> None:
        """Called with the number of finished epochs of a job."""

    def ended(self, job: Job | None, ending: Ending) -> None:
        """Called at the end of a job; `job` is None if a process ended before it had one."""

    def made(self, job: Job, ending: Ending) -> Collection[str]:
        """Return which of a job's results exist now."""
        return job.results if ending.kind == "finished" else ()

    def skipped(self, job: Job) -> None:
        """Called for a job that is never started because a job that it needs diverged."""

    def meanwhile(self) -> None:
        """Called for slow work, after free processes have got their next jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The number of processes, the threads of each, and the GPUs."""

    processes: int = 1
    threads: int = 1
    gpus: tuple[str, ...] = ()  # CUDA device numbers, given to processes in turn

    def environment(self, index: int) -> dict[str, str]:
        """Return the environment variables that make a process see only its GPU."""
        if not self.gpus:
            return {}
        return {"CUDA_VISIBLE_DEVICES": self.gpus[index % len(self.gpus)]}


class Worker:
    """A worker process, seen from its parent; it is started by the constructor.

    Its messages go to a queue; the last one is ``{"gone": "signal 9"}`` or the like. It ends with
    this process, and on Linux with the thread that started it.
    """

    def __init__(self, messages: Messages, *, threads: int, environment: Mapping[str, str]) -> None:
        # Not forked, because other threads may hold locks. -P: modules are not searched for in the
        # script's folder.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", worker_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **environment},
        )
        self._messages = messages
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self.send({"path": [str(folder) for folder in sys.path], "threads": threads})

    def send(self, message: Message) -> None:
        """Send a message; if the process has ended, the queue reports it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Kill the process; files are replaced as a whole, so none is left half written."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        # Its own child processes, which read images, may keep the pipe open for a while.
        self._reader.join(timeout=1.0)
        if not self._reader.is_alive():
            self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = _message(line)
            if message is not None:
                self._messages.put((self, message))
        code = self._process.wait()
        self._messages.put((self, {"gone": f"signal {-code}" if code < 0 else f"code {code}"}))


def _message(line: str) -> Message | None:
    """Return a message; None for a line that Python or a start-up hook has printed."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class Schedule:
    """Gives the next job: the first one, in the given order, whose needs are met."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.waiting = list(jobs)
        self._missing = {name for job in jobs for name in job.results}

    def next(self) -> Job | None:
        """Remove and return the next job; None if no job's needs are met yet."""
        for index, job in enumerate(self.waiting):
            if not job.after & self._missing:
                return self.waiting.pop(index)
        return None

    def add_results(self, names: Collection[str]) -> None:
        """Record results that exist now."""
        self._missing -= set(names)

    def drop_dependents(self, names: Collection[str]) -> list[Job]:
        """Remove all jobs that need one of these results, directly or not, and return them."""
        lost, dropped = set(names), list[Job]()
        while found := [job for job in self.waiting if job.after & lost]:
            self.waiting = [job for job in self.waiting if not job.after & lost]
            lost = {name for job in found for name in job.results}
            dropped += found
        return dropped


class WorkerPool:
    """Processes that do jobs; `run` is called once.

    If a job is refused, crashes, or loses its process, others would fail as well, for example
    because the disk is full. So no more jobs are started, and the running ones are finished. If a
    job diverges, only the jobs that need its results are skipped.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._messages: Messages = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Job] = {}
        self._finished: set[str] = set()
        self._closed = False  # no more jobs are started

    def stop(self) -> None:
        """Ask all jobs to stop after their epoch, and start no more. Safe in a signal handler."""
        self._closed = True
        # `run` sends it on: a signal handler may interrupt a write, so it must not write itself.
        self._messages.put((None, {"stop": True}))

    def run(
        self, jobs: Sequence[Job], *, monitor: PoolMonitor, deadline: float | None = None
    ) -> PoolResult:
        """Do jobs until all are done or the deadline passes, in this order as far as needs allow.

        After the deadline, a time of `time.monotonic`, no job is started, and `GRACE` seconds later
        all processes are killed. Jobs themselves should stop in between.
        """
        self._schedule, self._monitor, self._deadline = Schedule(jobs), monitor, deadline
        try:
            self._start(min(self._settings.processes, len(jobs)))
            self._wait()
        finally:
            for worker in self._workers:
                worker.end()
        finished = frozenset(self._finished)
        return PoolResult(finished, frozenset(job.key for job in jobs) - finished)

    def _start(self, count: int) -> None:
        for index in range(count):
            try:
                worker = Worker(
                    self._messages,
                    threads=self._settings.threads,
                    environment=self._settings.environment(index),
                )
            except OSError as problem:
                self._end_job(None, Ending("crashed", str(problem)))
                return
            self._workers.append(worker)

    def _wait(self) -> None:
        """Handle messages until no job is running and none can be started."""
        while self._busy or self._may_begin():
            try:
                worker, message = self._messages.get(timeout=self._patience())
            except queue.Empty:
                if self._seconds_left() <= -GRACE:
                    return
                continue
            if worker is None:
                for one in self._workers:
                    one.send(message)
            elif worker in self._workers:
                self._handle(worker, message)
                self._give_jobs()
                self._monitor.meanwhile()

    def _may_begin(self) -> bool:
        # If all processes are idle, the waiting jobs need a job that was stopped before its end.
        return (
            not self._closed
            and bool(self._schedule.waiting)
            and self._seconds_left() > 0
            and len(self._idle) < len(self._workers)
        )

    def _seconds_left(self) -> float:
        """Return the seconds until the deadline; negative after it."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _patience(self) -> float | None:
        """Return how long to wait for a message: until the deadline, then until the grace ends."""
        left = self._seconds_left()
        if self._deadline is None:
            return None
        return min(left, LONGEST) if left > 0 else max(left + GRACE, 0.0)

    def _handle(self, worker: Worker, message: Message) -> None:
        job = self._busy.get(worker)
        if "ready" in message:
            self._idle.append(worker)
        elif "gone" in message or "crashed" in message:
            self._workers.remove(worker)  # further messages from it are ignored
            self._idle = [one for one in self._idle if one is not worker]
            self._busy.pop(worker, None)
            worker.end()
            kind: EndingKind = "gone" if "gone" in message else "crashed"
            self._end_job(job, Ending(kind, message[kind]))
        elif job is None or message.get("job") != job.key:
            return  # not a message: printed before the process redirected its output
        elif "note" in message:
            self._monitor.note(job, message["note"])
        elif "epoch" in message:
            self._monitor.epoch(job, message["epoch"], message["of"])
        else:
            del self._busy[worker]
            self._idle.append(worker)
            self._end_job(job, _ending(message))

    def _end_job(self, job: Job | None, ending: Ending) -> None:
        if ending.kind in ("refused", "crashed", "gone"):
            self._closed = True
        if job is not None:
            made = self._monitor.made(job, ending)
            self._schedule.add_results(made)
            if ending.kind == "finished":
                self._finished.add(job.key)
        self._monitor.ended(job, ending)
        if job is not None and ending.kind == "diverged":
            for other in self._schedule.drop_dependents(job.results - set(made)):
                self._monitor.skipped(other)

    def _give_jobs(self) -> None:
        while self._idle and not self._closed and self._seconds_left() > 0:
            job = self._schedule.next()
            if job is None:
                return
            worker = self._idle.pop()
            self._busy[worker] = job
            worker.send({"job": job.key, "call": job.call, "arguments": dict(job.arguments)})
            self._monitor.begun(job)


def _ending(message: Message) -> Ending:
    if "ended" in message:
        return Ending("finished" if message["ended"] == "finished" else "stopped")
    kind: EndingKind = "diverged" if "diverged" in message else "refused"
    return Ending(kind, message[kind])
