"""Read the arrays of an NPZ file as predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from flipguard.archives import Array, array_names, read_arrays
from flipguard.errors import InputError, listed
from flipguard.predictions.names import RECOGNISED, ROW, column_of
from flipguard.predictions.table import SCORE_KINDS, Predictions, recognised

NPZ_NAMES = (
    *("ids", "targets", "labels", "class_names", *SCORE_KINDS),
    *(name for names in RECOGNISED.values() for name in names),
)


def npz_predictions(
    path: Path, *, id: str | None, target: str | None, label: str | None
) -> Predictions:
    """The predictions in an NPZ file, whose arrays may have the names of columns."""
    asked = {name for name in (id, target, label) if name is not None}
    arrays = read_arrays(path, always={*NPZ_NAMES, *asked})
    given = {"id": id, "target": target, "label": label}
    roles: dict[str, str | None] = {}
    for role in given:
        roles[role] = _array_of(role, arrays, {**given, **roles}, path)
    taken: dict[str, Array | None] = {}
    for role, found in roles.items():
        taken[f"{role}s"] = None if found is None else arrays.pop(found)
        _check_values(path, str(found), taken[f"{role}s"])
    logits = arrays.pop("logits", None)
    probabilities = arrays.pop("probabilities", None)
    class_names = arrays.pop("class_names", None)
    _check_values(path, "class_names", class_names)
    main = next((a for a in (taken["labels"], logits, probabilities) if a is not None), None)
    if main is None:
        raise InputError(
            f"{path} has neither labels nor logits nor probabilities (arrays: "
            f"{listed(array_names(path), most=8)}); name the array of predicted classes with "
            "`label=`."
        )
    if main.ndim and not len(main):
        raise InputError(f"{path} has columns but no rows; give at least one row.")
    slices = {
        name: array
        for name, array in arrays.items()
        if _is_plain(array) and array.shape == main.shape[:1]
    }
    predictions = Predictions.from_arrays(
        ids=taken["ids"],
        targets=taken["targets"],
        labels=taken["labels"],
        logits=_as_double(logits),
        probabilities=_as_double(probabilities),
        class_names=None if class_names is None else class_names.tolist(),
        slices=slices,
        name=str(path),
    )
    return replace(predictions, path=path, recognised=recognised(roles, given))


def _array_of(
    role: str, arrays: Mapping[str, Array], given: Mapping[str, str | None], path: Path
) -> str | None:
    """Return the name of the array in a role: the one asked for, or one with a well-known name."""
    name = given[role]
    if role == "id" and name == ROW and ROW not in arrays:
        return None
    if name is not None and name not in arrays:
        raise InputError(
            f"{path} has no array '{name}', which `{role}=` asks for; "
            f"its arrays are {listed(array_names(path), most=12)}."
        )
    # An id that is overlooked would leave rows to be matched by their position.
    return name or column_of(role, arrays, given, str(path), also=f"{role}s")


def _is_plain(array: Array) -> bool:
    """Whether an array holds numbers or text that every table can hold."""
    return array.dtype.kind in "biufUS" and (array.dtype.kind in "US" or array.dtype.itemsize <= 8)


def _check_values(path: Path, name: str, array: Array | None) -> None:
    """Ids, classes and names: one plain value per entry."""
    if array is None:
        return
    if array.ndim != 1:
        raise InputError(
            f"{path} has '{name}' of shape {array.shape}; expected one value per entry, in an "
            "array of one dimension."
        )
    if not _is_plain(array):
        raise InputError(
            f"{path} has '{name}' of type {array.dtype}; save numbers of at most 64 bits, or text."
        )


def _as_double(scores: Array | None) -> Array | None:
    """Scores of more than 64 bits as doubles, the most that is computed with."""
    wide = scores is not None and scores.dtype.kind == "f" and scores.dtype.itemsize > 8
    return scores.astype(np.float64) if scores is not None and wide else scores
