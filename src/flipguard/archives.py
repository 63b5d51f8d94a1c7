"""NPZ archives from anywhere: no pickle is ever loaded, and no claim of a header is believed."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError

Array = npt.NDArray[Any]
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
    wanted: Callable[[str, int], bool] = lambda _name, _dimensions: True,
) -> dict[str, Array]:
    """The arrays of an archive that are wanted, by their name and number of dimensions.

    For the sentences that refuse a file: `kind` is what it should be, `write` how one is written,
    and `larger` what to do with one that does not fit in memory.
    """
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
                return _members(archive, path, kind, wanted)
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


def header_of(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array that begins where the file stands."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0  # of 3.0 too, but for the names of fields
    shape, _, dtype = read(file)
    return shape, dtype


def _members(
    archive: Any, path: Path, kind: str, wanted: Callable[[str, int], bool]
) -> dict[str, Array]:
    arrays = {}
    for info in archive.zip.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            continue
        with archive.zip.open(info) as member:
            shape, dtype = header_of(member)
            held = info.file_size - member.tell()
        if dtype.hasobject:
            raise pickled(path, f" in array '{name}'")
        if wanted(name, len(shape)):
            _must_hold(info, math.prod(shape) * dtype.itemsize, held, path, kind)
            arrays[name] = archive[name]
    return arrays


def _must_hold(info: zipfile.ZipInfo, claimed: int, held: int, path: Path, kind: str) -> None:
    """Refuses a header that claims more than is there, before memory is set aside for it."""
    packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    most = (info.compress_size + 1) * MOST_DEFLATED
    if claimed > held or (packed and info.file_size > most):
        name = info.filename.removesuffix(".npy")
        held = min(held, most) if packed else held
        raise unreadable(
            path, kind, f"array '{name}' claims {claimed:,} bytes where at most {held:,} can be"
        )
