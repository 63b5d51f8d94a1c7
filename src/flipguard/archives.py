"""NPZ archives: read without pickle and without trusting headers, and write with only numpy.

The meaning of the arrays belongs to the modules that read them.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError
from flipguard.files import replacing

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
ARCHIVE, ARRAY = b"PK", b"\x93NUMPY"
# The largest compression ratio of deflate: a member that claims more is damaged or hostile.
MOST_DEFLATED = 1_100
# Exceptions for a file that is truncated, altered, or of another format.
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

SAVEZ_ARGUMENTS = ("file", "allow_pickle")


KIND = "NPZ"
WRITE = "save it with numpy.savez(file, ids=…, targets=…, labels=… or logits=…)"
LARGER = "write it as Parquet, which is read in pieces"


def read_archive(
    path: Path,
    *,
    kind: str,
    write: str,
    larger: str = "split it",
    wanted: Callable[[Mapping[str, Shape]], Container[str]] = lambda shapes: shapes,
) -> dict[str, Array]:
    """The wanted arrays of an archive; `wanted` gets the shape of every array by name.

    For error messages: `kind` is what the file should be, `write` how to write one, and `larger`
    what to do with one that does not fit in memory.
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
    """Open an archive; raise if the file is damaged or not an archive."""
    try:
        # Opened here, because numpy leaves a file open that turns out to be damaged.
        with path.open("rb") as file:
            start = file.read(len(ARRAY))
            if start == ARRAY:
                raise InputError(f"{path} is a single array, not an NPZ archive; {write}.")
            # numpy takes a file that is not an archive for a pickle, and suggests loading it.
            if not start.startswith(ARCHIVE):
                raise unreadable_archive(path, kind, "it is no archive of arrays")
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
        raise unreadable_archive(path, kind, problem) from problem


def unreadable_archive(path: Path, kind: str, why: BaseException | str) -> InputError:
    """The error for a file that exists but cannot be read."""
    text = first_sentence(why) if isinstance(why, BaseException) else why
    return InputError(
        f"{path} cannot be read as {kind} ({text}); it may be truncated or of another format."
    )


def first_sentence(problem: BaseException) -> str:
    """The message of another library's error, shortened to fit into a sentence."""
    text = " ".join(str(problem).split())
    return re.split(r"\.(?: |$)", text)[0] or type(problem).__name__


def pickled(path: Path, where: str = "") -> InputError:
    """The error for an array of Python objects."""
    return InputError(
        f"{path} holds Python objects (a pickle){where}, which are never loaded because they can "
        "run code; save numbers or fixed-width text (for example array.astype(str))."
    )


def header_of(file: Any) -> tuple[Shape, np.dtype[Any]]:
    """The shape and type of the array that begins at the current position of the file."""
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
            raise unreadable_archive(path, kind, f"array '{name}' claims the shape {shape}")
    return members


def _array(archive: Any, name: str, member: _Member, path: Path, kind: str) -> Array:
    """Read an array; raise if its header claims more data than the file holds."""
    info, claimed, held = member.info, math.prod(member.shape) * member.dtype.itemsize, member.held
    packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    most = (info.compress_size + 1) * MOST_DEFLATED
    if claimed > held or (packed and info.file_size > most):
        held = min(held, most) if packed else held
        raise unreadable_archive(
            path, kind, f"array '{name}' claims {claimed:,} bytes where at most {held:,} can be"
        )
    array: Array = archive[info.filename]
    return array


def read_arrays(path: Path, *, always: Collection[str]) -> dict[str, Array]:
    """The arrays named in `always`, and those with one entry per row of ids, classes or scores.

    Other arrays are not read, because a small file can unpack to very large arrays.
    """
    # There is one class name per class, not per row.
    rowwise = set(always) - {"class_names"}

    def wanted(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        rows = {shape[:1] for name, shape in shapes.items() if name in rowwise}
        return [n for n, s in shapes.items() if n in always or (len(s) == 1 and s in rows)]

    return read_archive(path, kind=KIND, write=WRITE, larger=LARGER, wanted=wanted)


def array_names(path: Path) -> list[str]:
    """The names of all arrays in a file."""
    return list(read_shapes(path, kind=KIND, write=WRITE))


def write_npz(
    path: str | os.PathLike[str],
    *,
    ids: Sequence[object] | Array | None = None,
    targets: Sequence[object] | Array | None = None,
    labels: Sequence[object] | Array | None = None,
    logits: Array | None = None,
    probabilities: Array | None = None,
    class_names: Sequence[object] | None = None,
    slices: Mapping[str, Sequence[object] | Array] | None = None,
) -> None:
    """Write a prediction file atomically; if writing fails, an existing file is kept."""
    named = {
        "ids": ids,
        "targets": targets,
        "labels": labels,
        "logits": logits,
        "probabilities": probabilities,
        "class_names": class_names,
    }
    taken = [name for name in slices or {} if name in named or name in SAVEZ_ARGUMENTS]
    if taken:
        raise InputError(f"A slice cannot be called '{taken[0]}' in an NPZ; rename it.")
    named |= slices or {}
    arrays = {name: _plain(value, name) for name, value in named.items() if value is not None}
    with replacing(Path(path)) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _plain(value: Sequence[object] | Array, name: str) -> Array:
    array = np.asarray(value)
    if array.dtype == object:
        # Names arrive as objects from lists and data frames; text is what an NPZ can hold.
        if not all(isinstance(item, str) for item in array.ravel()):
            raise InputError(
                f"Expected `{name}` to hold numbers or text only, but got mixed Python objects; "
                "convert them to one type first."
            )
        array = array.astype(str)
    return array
