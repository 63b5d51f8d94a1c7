"""NPZ archives from anywhere: no pickle is ever loaded, and no claim of a header is believed."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
ARCHIVE, ARRAY = b"PK", b"\x93NUMPY"
# What deflating can save at most: a member that claims to hold more was not made by it.
MOST_DEFLATED = 1_100
# What is raised for a file that is cut short, altered, or made by something else.
DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_archive(
    path: Path,
    *,
    kind: str,
    write: str,
    larger: str = "split it",
    wanted: Callable[[Mapping[str, Shape]], Container[str]] = lambda shapes: shapes,
) -> dict[str, Array]:
    """The arrays of an archive that are wanted; `wanted` is told the shape of each by its name.

    For the sentences that refuse a file: `kind` is what it should be, `write` how one is written,
    and `larger` what to do with one that does not fit in memory.
    """
    with _archive(path, kind=kind, write=write, larger=larger) as archive:
        members = _members(archive, path, kind)
        names = wanted({name: member.shape for name, member in members.items()})
        return {
            name: _array(archive, name, member, path, kind)
            for name, member in members.items()
            if name in names
        }


def read_shapes(path: Path, *, kind: str, write: str) -> dict[str, Shape]:
    """The shape of every array of an archive, from the headers alone."""
    with _archive(path, kind=kind, write=write, larger="split it") as archive:
        return {name: m.shape for name, m in _members(archive, path, kind).items()}


@contextmanager
def _archive(path: Path, *, kind: str, write: str, larger: str) -> Iterator[Any]:
    """An open archive; what is none, or is damaged, is refused in a sentence."""
    try:
        # Opened here, because numpy leaves a file open that turns out to be damaged.
        with path.open("rb") as file:
            start = file.read(len(ARRAY))
            if start == ARRAY:
                raise InputError(f"{path} is a single array, not an NPZ archive; {write}.")
            # What is no archive numpy takes for a pickle, and then offers to load it.
            if not start.startswith(ARCHIVE):
                raise unreadable(path, kind, "it is no archive of arrays")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                yield archive
    except InputError:
        raise
    except FileNotFoundError as problem:
        raise InputError(f"{path} does not exist; check the path.") from problem
    except MemoryError as problem:
        raise InputError(f"{path} holds more than fits in memory; {larger}.") from problem
    except DAMAGE as problem:
        raise unreadable(path, kind, problem) from problem


def unreadable(path: Path, kind: str, why: BaseException | str) -> InputError:
    """The refusal of a file that is there but cannot be read."""
    told = first_sentence(why) if isinstance(why, BaseException) else why
    return InputError(
        f"{path} cannot be read as {kind} ({told}); it may be truncated or of another format."
    )


def first_sentence(problem: BaseException) -> str:
    """What another library says about a problem, cut to what fits in a sentence of ours."""
    text = " ".join(str(problem).split())
    return re.split(r"\.(?: |$)", text)[0] or type(problem).__name__


def pickled(path: Path, where: str = "") -> InputError:
    """The refusal of Python objects."""
    return InputError(
        f"{path} holds Python objects (a pickle){where}, which are never loaded because they can "
        "run code; save numbers or fixed-width text (for example array.astype(str))."
    )


def header_of(file: Any) -> tuple[Shape, np.dtype[Any]]:
    """Shape and type of the array that begins where the file stands."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0  # of 3.0 too, but for the names of fields
    shape, _, dtype = read(file)
    return shape, dtype


class _Member(NamedTuple):
    """An array that has not been read: its place in the archive, and what its header says."""

    info: zipfile.ZipInfo
    shape: Shape
    dtype: np.dtype[Any]
    held: int


def _members(archive: Any, path: Path, kind: str) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    for info in archive.zip.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            continue
        if name in members:
            raise InputError(
                f"{path} holds more than one array '{name}'; give each a different name."
            )
        with archive.zip.open(info) as member:
            shape, dtype = header_of(member)
            members[name] = _Member(info, shape, dtype, info.file_size - member.tell())
        if dtype.hasobject:
            raise pickled(path, f" in array '{name}'")
        if any(length < 0 for length in shape):
            raise unreadable(path, kind, f"array '{name}' claims the shape {shape}")
    return members


def _array(archive: Any, name: str, member: _Member, path: Path, kind: str) -> Array:
    """Reads an array, unless its header claims more than is there."""
    info, claimed, held = member.info, math.prod(member.shape) * member.dtype.itemsize, member.held
    packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    most = (info.compress_size + 1) * MOST_DEFLATED
    if claimed > held or (packed and info.file_size > most):
        held = min(held, most) if packed else held
        raise unreadable(
            path, kind, f"array '{name}' claims {claimed:,} bytes where at most {held:,} can be"
        )
    array: Array = archive[info.filename]
    return array
