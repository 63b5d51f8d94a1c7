"""NPZ prediction files, with numpy alone."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError

Array = npt.NDArray[Any]


def read_arrays(path: Path) -> dict[str, Array]:
    """Every array of the file, refusing pickles and damage."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(
                    f"{path} is a single array, not an NPZ archive; "
                    "save it with numpy.savez(file, ids=…, targets=…, labels=… or logits=…)."
                )
            return {name: _member(archive, name, path) for name in archive.files}
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as problem:
        raise InputError(
            f"{path} cannot be read as NPZ ({_first_line(problem)}); "
            "it may be truncated or of another format."
        ) from problem


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
        **(slices or {}),
    }
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


def _first_line(problem: BaseException) -> str:
    text = str(problem).strip()
    return text.splitlines()[0] if text else type(problem).__name__
