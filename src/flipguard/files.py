"""Write files atomically, and compute checksums.

File formats belong to the modules that own them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flipguard.errors import InputError, printable


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces `path` at the end, or is removed if anything fails.

    A pipe or a device is written directly and never replaced.
    """
    check_writable(path)
    if is_device(path):
        with as_refused(path):
            yield path
        return
    partial = _partial(path)
    try:
        with as_refused(path):
            yield partial
            os.replace(partial, path)
    finally:
        # If the disk refuses the name itself, there is no file to remove.
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise if a path cannot be written, as far as can be checked without writing."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name a file in it to write to.")
    if not os.path.isdir(path.parent):
        raise InputError(
            f"{path} cannot be written because {path.parent} is no folder; create it first."
        )
    with as_refused(path), suppress(FileNotFoundError):
        os.lstat(path if is_device(path) else _partial(path))  # a name may be too long
    if not os.access(path if is_device(path) else path.parent, os.W_OK):
        raise InputError(
            f"{path} cannot be written: you have no permission to write there; choose another path."
        )


@contextmanager
def as_refused(path: Path) -> Iterator[None]:
    """Turn errors of the disk into an error that names the file to be written."""
    try:
        yield
    except OSError as problem:
        text = problem.strerror or str(problem) or type(problem).__name__
        raise InputError(
            f"{path} cannot be written ({text}); check free space and permissions, or choose "
            "another path."
        ) from problem


def is_device(path: Path) -> bool:
    """Whether a path is a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` once all is on disk; it is removed if anything fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _to_disk(temporary)
        temporary.replace(path)
        _to_disk(path.parent)
    except OSError as problem:
        raise InputError(
            f"Expected to write {printable(str(path))}, but could not "
            f"({problem.strerror or problem}); make room or write elsewhere, and what was there "
            "before is still there."
        ) from problem
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def save(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file atomically with a function that takes a path."""
    from safetensors import SafetensorError

    with atomic_write(path) as temporary:
        try:
            write(temporary)
        except InputError as problem:
            if isinstance(problem.__cause__, OSError):
                raise problem.__cause__ from None  # told with the name of the file that is meant
            raise
        except (RuntimeError, SafetensorError) as problem:
            # torch and safetensors raise their own errors if a disk is full.
            raise OSError("the disk did not take all of it") from problem


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
