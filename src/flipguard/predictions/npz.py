"""NPZ prediction files, with numpy alone."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError

Array = npt.NDArray[Any]
SAVEZ_ARGUMENTS = ("file", "allow_pickle")

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


def read_arrays(path: Path) -> dict[str, Array]:
    """Every array of the file, refusing pickles and damage."""
    _must_be_an_archive(path)
    try:
        # Opened here, because numpy leaves a file open that turns out to be damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: _member(archive, name, path) for name in archive.files}
    except InputError:
        raise
    except DAMAGE as problem:
        raise _unreadable(path, first_sentence(problem)) from problem


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
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


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
