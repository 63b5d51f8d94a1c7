"""NPZ prediction files, with numpy alone."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from flipguard.archives import Array, read_archive, read_shapes
from flipguard.errors import InputError
from flipguard.predictions.replacing import replacing

SAVEZ_ARGUMENTS = ("file", "allow_pickle")


KIND = "NPZ"
WRITE = "save it with numpy.savez(file, ids=…, targets=…, labels=… or logits=…)"
LARGER = "write it as Parquet, which is read in pieces"


def read_arrays(path: Path, *, always: Collection[str]) -> dict[str, Array]:
    """The arrays named in `always`, and those with one entry per row of ids, classes or scores.

    All others are left in the file, whose size says nothing about what they unpack to.
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
