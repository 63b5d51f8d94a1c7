"""Ctrl-C in training: the first one finishes and keeps the current epoch, a second stops at once.

Only programs that ask for it, such as the command line, behave so. A program that only calls
`train` keeps Python's KeyboardInterrupt.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal, TypeAlias

StopReason: TypeAlias = Literal["deadline", "interrupt"]


@dataclass(slots=True)
class _State:
    asked: bool = False
    waits: bool = False
    listeners: list[Callable[[], None]] = field(default_factory=list)
    elsewhere: Callable[[], bool] = lambda: False


_state = _State()


def interrupted() -> bool:
    """Return whether training is to stop after the current epoch."""
    return _state.asked or _state.elsewhere()


def is_waiting() -> bool:
    """Return whether a first Ctrl-C waits for the end of an epoch in this process."""
    return _state.waits


def stop_reason(deadline: float | None) -> StopReason | None:
    """Return why to stop after the current step of the work; None to continue.

    `deadline` is a time of ``time.monotonic``.
    """
    if interrupted():
        return "interrupt"
    return "deadline" if deadline is not None and time.monotonic() > deadline else None


def time_is_up(deadline: float | None) -> bool:
    """Return whether to stop after the current step of the work."""
    return stop_reason(deadline) is not None


def interrupt() -> None:
    """Ask training to stop, here and in listening processes, if a first Ctrl-C waits here."""
    if not _state.waits:  # the request would never be reset
        return
    _state.asked = True
    for tell in _state.listeners:
        tell()


def poll_interrupt(asked: Callable[[], bool]) -> None:
    """Make `interrupted` also call `asked`, by which a parent process asks this one to stop."""
    _state.elsewhere = asked


@contextmanager
def finish_epoch_on_interrupt(say: Callable[[], None]) -> Iterator[None]:
    """Context manager: the first Ctrl-C finishes the current epoch, the second raises.

    The first calls `say`, inside a signal handler, so `say` must not print through a buffer that
    may be in use. The second raises KeyboardInterrupt.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        # Before `say`: a second signal may arrive while this handler runs.
        again, _state.asked = _state.asked, True
        if again:
            signal.default_int_handler(number, frame)
        say()
        interrupt()

    ours = (
        threading.current_thread() is threading.main_thread()
        and multiprocessing.parent_process() is None
        # Another handler stays installed, and a shell ignores the signal in the background.
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield
        return
    signal.signal(signal.SIGINT, handle)
    _state.waits = True
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _state.asked = _state.waits = False


@contextmanager
def on_interrupt(tell: Callable[[], None]) -> Iterator[None]:
    """Context manager: call `tell` when training is to stop, perhaps inside a signal handler."""
    _state.listeners.append(tell)
    if interrupted():
        tell()
    try:
        yield
    finally:
        _state.listeners.remove(tell)
