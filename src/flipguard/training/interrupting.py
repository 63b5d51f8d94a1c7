"""What a first Ctrl-C does: the epoch under way is finished and kept. A second one stops at once.

Only a program that asks for it behaves so, as the command line does. Whoever calls `train` in code
of their own keeps Python's KeyboardInterrupt.
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
    """Whether training is to stop when the epoch under way has ended."""
    return _state.asked or _state.elsewhere()


def is_waiting() -> bool:
    """Whether a first Ctrl-C waits for the end of an epoch here."""
    return _state.waits


def stop_reason(deadline: float | None) -> StopReason | None:
    """Return why to stop after what is under way; None to go on.

    `deadline` is a time of ``time.monotonic``.
    """
    if interrupted():
        return "interrupt"
    return "deadline" if deadline is not None and time.monotonic() > deadline else None


def time_is_up(deadline: float | None) -> bool:
    """Whether to stop after what is under way."""
    return stop_reason(deadline) is not None


def interrupt() -> None:
    """Asks training to stop, here and in the processes that listen; only where it is waited for."""
    if not _state.waits:  # nobody would take it back afterwards
        return
    _state.asked = True
    for tell in _state.listeners:
        tell()


def poll_interrupt(asked: Callable[[], bool]) -> None:
    """Where else to look: a process that was started to train is asked by the one that did it."""
    _state.elsewhere = asked


@contextmanager
def finish_epoch_on_interrupt(say: Callable[[], None]) -> Iterator[None]:
    """Within it a first Ctrl-C is said, and waits; a second one is a KeyboardInterrupt.

    `say` is called amid anything, so it must not print by way of a buffer that may be in use.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        # Before it is said: a second signal may come at once, and amid this very handler.
        again, _state.asked = _state.asked, True
        if again:
            signal.default_int_handler(number, frame)
        say()
        interrupt()

    ours = (
        threading.current_thread() is threading.main_thread()
        and multiprocessing.parent_process() is None
        # Somebody else's handler is theirs, and in the background a shell has it ignored.
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
    """Within it `tell` is called once training is to stop, perhaps amid a signal's handler."""
    _state.listeners.append(tell)
    if interrupted():
        tell()
    try:
        yield
    finally:
        _state.listeners.remove(tell)
