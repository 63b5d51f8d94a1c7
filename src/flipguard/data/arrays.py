"""Data sets in .npz files: arrays of inputs and targets, read with numpy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flipguard.archives import Array, read_archive
from flipguard.data.dataset import ArraySplit, DataSet, Ids, Kind
from flipguard.data.readers import Label, class_names_of, indices_of
from flipguard.data.subsets import part
from flipguard.errors import InputError, listed
from flipguard.specs import Options

VALIDATION = "validation_"
WRITE = (
    "write it with numpy.savez(file, train_inputs=…, train_targets=…, test_inputs=…, "
    "test_targets=…), or with inputs=… and targets=… to have it split"
)


def load_npz(path: Path, options: Options) -> DataSet:
    """Read train and test arrays, or split `inputs` and `targets` by id with a seed.

    The arrays ``validation_inputs``, ``validation_targets`` and ``validation_ids`` are the data's
    own validation split.
    """
    arrays = read_npz(path)
    # Read in any case, so that an unused option is not reported as a misspelt one.
    test_share, seed = options.share("test", 0.2), options.whole("seed", 0)
    options.finish()
    parts = ["train_", "test_"] if "train_inputs" in arrays else [""]
    read = {prefix: _part(arrays, prefix, path) for prefix in parts}
    names = _class_names(arrays, [labels for _, labels, _ in read.values()], path)
    split = partial(_split, names=names, path=path)
    kinds, splits = zip(*(split(*read[prefix], prefix=prefix) for prefix in parts), strict=True)
    if len(splits) == 1:
        tested = part(splits[0].ids, seed, test_share)
        train, test = splits[0].subset(~tested), splits[0].subset(tested)
    else:
        train, test = splits
        _check_shape(train, test, "test_", path)

    def validation() -> ArraySplit:
        _, own = split(*_part(arrays, VALIDATION, path), prefix=VALIDATION)
        _check_shape(train, own, VALIDATION, path)
        return own

    return DataSet.of(
        name=path.stem,
        kind=kinds[0],
        class_names=names,
        train=train,
        test=test,
        own_validation=validation if f"{VALIDATION}inputs" in arrays else None,
    )


def _split(
    inputs: Array,
    labels: list[Label],
    ids: Ids | None,
    *,
    prefix: str,
    names: list[str],
    path: Path,
) -> tuple[Kind, ArraySplit]:
    kind, tensor = _inputs(inputs, f"{prefix}inputs", path)
    targets = indices_of(labels, names, where=f"`{prefix}targets` in {path}")
    return kind, ArraySplit(inputs=tensor, targets=targets, ids=ids)


def _check_shape(train: ArraySplit, other: ArraySplit, prefix: str, path: Path) -> None:
    wanted, found = (list(split.all_inputs.shape[1:]) for split in (train, other))
    if wanted != found:
        raise InputError(
            f"Expected `{prefix}inputs` in {path} to be samples of the shape {wanted} that "
            f"`train_inputs` has, but got {found}; bring both to one shape."
        )


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of an archive; Python objects are never loaded."""
    return read_archive(path, kind="an .npz archive of arrays", write=WRITE)


def _part(
    arrays: Mapping[str, Array], prefix: str, path: Path
) -> tuple[Array, list[Label], Ids | None]:
    inputs = _wanted(arrays, f"{prefix}inputs", path)
    targets = _wanted(arrays, f"{prefix}targets", path)
    count = len(inputs) if inputs.ndim else 0
    if targets.ndim != 1 or targets.dtype.kind not in "iuU":
        raise InputError(
            f"Expected `{prefix}targets` in {path} to be one class index or name for each sample, "
            f"but got {targets.dtype} {list(targets.shape)}; save whole numbers or text [samples]."
        )
    if len(targets) != count:
        raise InputError(
            f"Expected `{prefix}targets` in {path} to be as long as `{prefix}inputs`, {count:,}, "
            f"but got {len(targets):,}; save one target for each input."
        )
    return inputs, targets.tolist(), _ids(arrays.get(f"{prefix}ids"), f"{prefix}ids", count, path)


def _wanted(arrays: Mapping[str, Array], name: str, path: Path) -> Array:
    if name not in arrays:
        raise InputError(
            f"Expected {path} to hold an array `{name}`, but got {listed(arrays, most=8) or 'none'}"
            f"; {WRITE}."
        )
    return arrays[name]


def _ids(ids: Array | None, name: str, count: int, path: Path) -> Ids | None:
    if ids is None:
        return None
    if ids.shape != (count,) or ids.dtype.kind not in "iuU":
        raise InputError(
            f"Expected `{name}` in {path} to be {count:,} whole numbers or texts, but got "
            f"{ids.dtype} {list(ids.shape)}; save one id for each input."
        )
    return ids.tolist() if ids.dtype.kind == "U" else torch.from_numpy(ids.astype(np.int64))


def _class_names(arrays: Mapping[str, Array], labels: list[list[Label]], path: Path) -> list[str]:
    if "class_names" not in arrays:
        return class_names_of(labels[0], where=str(path))
    names = arrays["class_names"]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise InputError(
            f"Expected `class_names` in {path} to be text, one for each class, but got "
            f"{names.dtype} {list(names.shape)}; save array.astype(str)."
        )
    return [str(name) for name in names]


def _inputs(inputs: Array, name: str, path: Path) -> tuple[Kind, Tensor]:
    """Return vectors as float32 [n, d], or images as uint8 or float32 [n, c, h, w]."""
    if inputs.dtype.kind not in "biuf":
        raise InputError(
            f"Expected `{name}` in {path} to be numbers, but got {inputs.dtype}; save floats, or "
            "uint8 for images."
        )
    if inputs.ndim not in (2, 4) or 0 in inputs.shape[1:]:
        raise InputError(
            f"Expected `{name}` in {path} to be [samples, features] or [samples, channels, height, "
            f"width], but got {list(inputs.shape)}; reshape it."
        )
    kind: Kind = "vector" if inputs.ndim == 2 else "image"
    if kind == "image" and inputs.shape[3] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4):
        raise InputError(
            f"Expected `{name}` in {path} to be [samples, channels, height, width], but got "
            f"{list(inputs.shape)}; save array.transpose(0, 3, 1, 2)."
        )
    if kind == "image" and inputs.dtype == np.uint8:
        return kind, torch.from_numpy(np.ascontiguousarray(inputs))
    floats = np.ascontiguousarray(inputs, dtype=np.float32)
    invalid = ~np.isfinite(floats.reshape(len(floats), -1)).all(axis=1)
    if invalid.any():
        raise InputError(
            f"Expected `{name}` in {path} to be finite, but got nan or infinite values in "
            f"{int(invalid.sum()):,} samples (the first at position {int(invalid.argmax())}); "
            "fix or remove them."
        )
    return kind, torch.from_numpy(floats)
