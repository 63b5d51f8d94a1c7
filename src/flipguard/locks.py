"""A lock on a folder: one process at a time writes there.

The operating system releases the lock when its process ends, for any reason. The file names the
process that holds the lock, and is removed at the end. A file left by a killed process holds no
lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flipguard.errors import InputError, printable

LOCK = ".lock"
ATTEMPTS = 1000  # at a file that others keep removing
WAIT = 0.1  # seconds until another look at a lock that another process holds
# Error numbers of file systems without locks, such as some network mounts.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})

_held: set[int] = set()


class InUseError(InputError):
    """Another process writes to the folder."""

    def __init__(self, message: str, *, holder: str = "another process") -> None:
        super().__init__(message)
        self.holder = holder


@contextmanager
def alone_in(
    folder: Path, *, report: Callable[[str], None], stops: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Keep other processes out of a folder, which is created if it does not exist.

    If another process holds the lock, raise; with `stops`, wait for that process, and raise only
    once `stops` returns True. A folder that was created for the lock and is still empty at the end
    is removed.
    """
    path = folder.absolute() / LOCK
    made = missing(path.parent)
    process = os.getpid()
    lock = _taken(path, folder, report) if stops is None else _awaited(path, folder, report, stops)
    try:
        yield
    finally:
        if lock is not None and os.getpid() == process:
            # Removed while it is held: who waits for it sees that, and makes a new one.
            with suppress(OSError):
                if _is_at(lock, path):
                    path.unlink()
            remove_empty(made)
            _held.discard(lock)
            os.close(lock)


def missing(folder: Path) -> list[Path]:
    """The folder and its parents that do not exist yet, innermost first."""
    place = folder.absolute()
    return [one for one in (place, *place.parents) if not os.path.lexists(one)]


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, until one is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def tidy(folder: Path) -> None:
    """Remove the lock's file if a killed process left it."""
    if (folder / LOCK).exists():
        with suppress(InputError), alone_in(folder, report=lambda _: None):
            pass


def _awaited(
    path: Path, folder: Path, report: Callable[[str], None], stops: Callable[[], bool]
) -> int | None:
    """Wait until the lock is free, and return it."""
    text: set[str] = set()
    while True:
        try:
            return _taken(path, folder, report)
        except InUseError as problem:
            if stops():
                raise
            if problem.holder not in text:
                report(f"waiting for {problem.holder}, which writes to {printable(str(folder))}")
            text.add(problem.holder)
        time.sleep(WAIT)


def _taken(path: Path, folder: Path, report: Callable[[str], None]) -> int | None:
    """Take the lock and return its open file; None if the file system has no locks."""
    for _ in range(ATTEMPTS):
        lock = _opened(path, folder)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = _holder(lock)
            os.close(lock)
            if problem.errno in NO_LOCKS:
                report(
                    f"{printable(str(folder))} cannot be locked ({problem.strerror}): make "
                    "sure that no other process writes there during this run"
                )
                with suppress(OSError):
                    path.unlink()
                return None
            raise InUseError(
                f"Expected to be the only process that writes to {printable(str(folder))}, but "
                f"{holder} does; wait until it has ended, or choose another `out=`.",
                holder=holder,
            ) from problem
        if _is_at(lock, path):
            _held.add(lock)
            with suppress(OSError):  # on a full disk: the lock is held anyway
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
            return lock
        os.close(lock)
    raise InUseError(
        f"Expected to lock {printable(str(folder))}, but other processes keep taking and removing "
        "the lock; try again."
    )


def _opened(path: Path, folder: Path) -> int | None:
    """Open the lock's file; None if its folder was removed meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(
            f"Expected to write to {printable(str(folder))}, but could not ({why}); choose "
            "another `out=`."
        ) from problem


def _holder(lock: int) -> str:
    """The process that holds a lock, as its file names it."""
    process, _, host = os.pread(lock, 300, 0).decode(errors="replace").strip().partition(" ")
    if not process.isdecimal() or not host:
        return "another process"
    return f"process {process} on {printable(host)}"


def _is_at(lock: int, path: Path) -> bool:
    """Whether an open file is still the file at that path."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    # A forked child has the files of its parent open, and would keep the lock when that has died.
    for lock in _held:
        with suppress(OSError):
            os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
