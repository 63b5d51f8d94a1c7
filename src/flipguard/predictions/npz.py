"""NPZ prediction files, with numpy alone."""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError
from flipguard.predictions.replacing import replacing

Array = npt.NDArray[Any]
SAVEZ_ARGUMENTS = ("file", "allow_pickle")
# What deflating can save at most: a member that claims to hold more was not made by it.
MOST_DEFLATED = 1_100

# What numpy and zipfile raise for a file that is cut short, altered, or made by something else.
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


def read_arrays(path: Path, *, always: Container[str]) -> dict[str, Array]:
    """The arrays named in `always`, and all others of one dimension; no pickles, no damage."""
    _must_be_an_archive(path)
    try:
        # Opened here, because numpy leaves a file open that turns out to be damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {}
            for info in archive.zip.infolist():
                name = info.filename.removesuffix(".npy")
                if name == info.filename:
                    continue
                dimensions, objects = _must_hold_its_array(archive.zip, info, path)
                if name in always or dimensions == 1 or objects:
                    arrays[name] = _member(archive, name, path)
            return arrays
    except InputError:
        raise
    except MemoryError as problem:
        raise InputError(
            f"{path} holds more than fits in memory; write it as Parquet, which is read in pieces."
        ) from problem
    except DAMAGE as problem:
        raise _unreadable(path, first_sentence(problem)) from problem


def _must_hold_its_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path
) -> tuple[int, bool]:
    """Refuses a header that claims more than is there, before memory is set aside for it.

    Gives the number of dimensions, and whether the elements are Python objects.
    """
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0  # of 3.0 too, but for the names of fields
        shape, _, dtype = read(member)
        held = info.file_size - member.tell()
    if dtype.hasobject:
        return len(shape), True
    claimed = math.prod(shape) * dtype.itemsize
    packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    most = (info.compress_size + 1) * MOST_DEFLATED
    if claimed > held or (packed and info.file_size > most):
        name = info.filename.removesuffix(".npy")
        held = min(held, most) if packed else held
        raise _unreadable(
            path, f"array '{name}' claims {claimed:,} bytes where at most {held:,} can be"
        )
    return len(shape), False


def _must_be_an_archive(path: Path) -> None:
    # What is no archive numpy takes for a pickle, and then offers to load it.
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        raise InputError(
            f"{path} is a single array, not an NPZ archive; "
            "save it with numpy.savez(file, ids=…, targets=…, labels=… or logits=…)."
        )
    if not start.startswith(b"PK"):
        raise _unreadable(path, "it is no archive of arrays")


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} cannot be read as NPZ ({why}); it may be truncated or of another format."
    )


def _member(archive: Any, name: str, path: Path) -> Array:
    try:
        array: Array = archive[name]
    except ValueError as problem:
        if "pickle" in str(problem).lower():
            raise InputError(
                f"{path} holds Python objects (a pickle) in array '{name}', which are never "
                "loaded because they can run code; save it as numbers or fixed-width text "
                "(for example array.astype(str))."
            ) from problem
        raise
    return array


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
    """Writes a prediction file atomically: the file is there whole, or as it was before."""
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


def first_sentence(problem: BaseException) -> str:
    """What another library says about a problem, cut to what fits in a sentence of ours."""
    text = " ".join(str(problem).split())
    return re.split(r"\.(?: |$)", text)[0] or type(problem).__name__
