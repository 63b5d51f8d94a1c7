"""Files of stored logits, with numpy alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from flipguard.archives import (
    ARCHIVE,
    ARRAY,
    DAMAGE,
    Array,
    header_of,
    pickled,
    read_archive,
    unreadable,
)
from flipguard.errors import InputError

KIND = "logits"
WRITE = "write it with numpy.savez(file, logits=…, ids=…)"


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
        raise unreadable(path, KIND, "its content is of another kind")
    return _archive(path) if path.suffix == ".npz" else Stored(_mapped(path))


def _archive(path: Path) -> Stored:
    found = read_archive(
        path,
        kind=KIND,
        write=WRITE,
        larger="write it with numpy.save as .npy, which is read row by row",
        wanted=lambda _: Stored._fields,
    )
    if "logits" not in found:
        raise InputError(f"{path} holds no array 'logits'; {WRITE}.")
    logits, names = found["logits"], found.get("class_names")
    if names is not None and names.shape != logits.shape[1:]:
        raise InputError(
            f"{path} holds {len(names)} 'class_names' for logits of the shape "
            f"{list(logits.shape)}; write a name for each column of the logits."
        )
    return Stored(logits, found.get("ids"), None if names is None else tuple(names.tolist()))


def _mapped(path: Path) -> Array:
    try:
        with path.open("rb") as file:
            if header_of(file)[1].hasobject:
                raise pickled(path)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except InputError:
        raise
    except DAMAGE as problem:
        raise unreadable(path, KIND, problem) from problem
    return array
