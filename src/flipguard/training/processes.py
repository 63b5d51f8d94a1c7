"""Train a run in several processes: each takes a share of every batch, and the first one writes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from flipguard.errors import FlipguardError, InputError
from flipguard.runs.config import Config, as_dict, from_dict
from flipguard.runs.folder import Run
from flipguard.training.interrupting import interrupted, is_waiting, on_interrupt, poll_interrupt
from flipguard.training.monitor import Monitor

NOTE, EPOCH, REFUSED, END = "note", "epoch", "refused", "end"


def train_in_processes(
    fabric: Any,
    config: Config,
    out: Path,
    *,
    train_one: Callable[..., Run],
    resume: bool,
    monitor: Monitor,
) -> Run:
    """Start the processes, pass their messages to the monitor, and wait for them.

    `train_one` trains a run in the processes of a fabric; each process imports it by its name.
    """
    from torch import multiprocessing
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    told = multiprocessing.get_context("spawn").SimpleQueue()
    # Not an `Event`: a process that is killed could keep its lock.
    asked = multiprocessing.get_context("spawn").RawValue("b", 0)
    patient = is_waiting()
    refusals: list[str] = []

    def listen() -> None:
        while (said := told.get())[0] != END:
            if said[0] == NOTE:
                monitor.note(said[1])
            elif said[0] == EPOCH:
                monitor.epoch(*said[1])
            else:
                refusals.append(said[1])

    def ask() -> None:
        asked.value = 1

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    others = set(multiprocessing.active_children())
    problem: BaseException | None = None
    try:
        with on_interrupt(ask):
            fabric.launch(_work, train_one, as_dict(config), out, resume, told, asked, patient)
    except (ProcessRaisedException, ProcessExitedException) as one:
        problem = one
    except KeyboardInterrupt:
        # Files are replaced as a whole, so none is left half written. The listener is not waited
        # for: a process that is killed while it writes to the queue would block it.
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        raise
    told.put((END, ""))
    listener.join()
    if problem is not None:
        if not refusals:
            if interrupted():  # while they were starting, before they could finish an epoch
                raise KeyboardInterrupt from problem
            raise problem
        raise InputError(refusals[0]) from problem
    return Run.read(out)


def _work(
    fabric: Any,
    train_one: Callable[..., Run],
    values: dict[str, Any],
    out: Path,
    resume: bool,
    told: Any,
    asked: Any,
    patient: bool,
) -> None:
    """Train in one of the processes; only the first one reports progress."""
    if patient:
        _leave_interrupts_to_parent()
        poll_interrupt(lambda: bool(asked.value))

    monitor = _QueueMonitor(told, talks=fabric.is_global_zero)
    try:
        train_one(fabric, from_dict(values), out, resume=resume, monitor=monitor)
    except FlipguardError as problem:
        told.put((REFUSED, str(problem)))
        raise


class _QueueMonitor:
    """Sends progress to the process that started this one."""

    def __init__(self, told: Any, *, talks: bool) -> None:
        self._told, self._talks = told, talks

    def note(self, text: str) -> None:
        if self._talks:
            self._told.put((NOTE, text))

    def epoch(
        self,
        done: int,
        of: int,
        rows: Sequence[Mapping[str, Any]],
        timing: Mapping[str, Any],
        seconds_left: float,
    ) -> None:
        if self._talks:
            self._told.put((EPOCH, (done, of, rows, timing, seconds_left)))


def _leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes, while the parent process lives."""
    parent = os.getppid()

    def handle(number: int, frame: FrameType | None) -> None:
        # If the parent has died, no other process can handle the signal.
        if os.getppid() != parent:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, handle)
