"""Files of stored logits, with numpy alone."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError

Array = npt.NDArray[Any]
ARCHIVE, ARRAY = b"PK", b"\x93NUMPY"
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


class Stored(NamedTuple):
    """What a file of logits holds."""

    logits: Array
    ids: Array | None = None
    class_names: tuple[str | int, ...] | None = None


def read_stored(path: Path) -> Stored:
    """The logits of a file, and the ids and names of classes if it holds them."""
    if path.suffix not in (".npz", ".npy"):
        raise InputError(
            f"Expected `path` to end in .npz or .npy, but got {path}. Write the logits with "
            "numpy.savez(file, logits=…, ids=…) or numpy.save(file, logits)."
        )
    try:
        with path.open("rb") as file:
            start = file.read(len(ARRAY))
    except FileNotFoundError as problem:
        raise InputError(f"{path} does not exist; check the path of the logits.") from problem
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}).") from problem
    if not start.startswith(ARCHIVE if path.suffix == ".npz" else ARRAY):
        raise _unreadable(path, "its content is of another kind")
    try:
        return _archive(path) if path.suffix == ".npz" else Stored(_mapped(path))
    except InputError:
        raise
    except MemoryError as problem:
        raise InputError(
            f"{path} holds more than fits in memory; write it with numpy.save as .npy, which is "
            "read row by row."
        ) from problem
    except DAMAGE as problem:
        raise _unreadable(path, " ".join(str(problem).split()).rstrip(".")) from problem


def _archive(path: Path) -> Stored:
    # Opened here, because numpy leaves a file open that turns out to be damaged.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if "logits" not in archive.files:
            raise InputError(
                f"{path} holds no array 'logits'; write it with numpy.savez(file, logits=…, ids=…)."
            )
        found = {
            name: _member(archive, name, path)
            for name in ("logits", "ids", "class_names")
            if name in archive.files
        }
    logits, names = found["logits"], found.get("class_names")
    if names is not None and names.shape != logits.shape[1:]:
        raise InputError(
            f"{path} holds {len(names)} 'class_names' for logits of the shape "
            f"{list(logits.shape)}; write a name for each column of the logits."
        )
    return Stored(logits, found.get("ids"), None if names is None else tuple(names.tolist()))


def _member(archive: Any, name: str, path: Path) -> Array:
    with archive.zip.open(f"{name}.npy") as member:
        if _holds_objects(member):
            raise _pickled(path, f" in array '{name}'")
    array: Array = archive[name]
    return array


def _mapped(path: Path) -> Array:
    with path.open("rb") as file:
        if _holds_objects(file):
            raise _pickled(path, "")
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _holds_objects(file: Any) -> bool:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0  # of 3.0 too, but for the names of fields
    return bool(read(file)[2].hasobject)


def _pickled(path: Path, where: str) -> InputError:
    return InputError(
        f"{path} holds Python objects (a pickle){where}, which are never loaded because they can "
        "run code; save numbers or fixed-width text (for example array.astype(str))."
    )


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} cannot be read as logits ({why}); it may be truncated or of another format."
    )
