"""Arrays in MATLAB files, and the data set that is distributed in them: SVHN."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.data.dataset import ArraySplit, DataSet
from flipguard.data.readers import absent, indices_of, read_bytes, unreadable_file
from flipguard.specs import Options

WHAT = "a MATLAB file of version 5"
SVHN_WHAT = "images X [32, 32, 3, n] and labels y [n], from 1 to 10"
SVHN_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}
DIGITS = tuple("0123456789")


def load_svhn(options: Options, root: Path) -> DataSet:
    """Read the cropped digits, uint8 [n, 3, 32, 32]; `extra=yes` adds the extra training images."""
    extra = options.one_of("extra", "no", ("no", "yes")) == "yes"
    options.finish()
    folder = root / options.name
    parts = {}
    for part in ("train", "test", *(("extra",) if extra else ())):
        path = folder / SVHN_FILES[part]
        if not path.is_file():
            raise absent(options.name, path, "put the cropped digits of SVHN there (format 2)")
        parts[part] = _digits(path)
    if extra:
        images, labels = zip(parts["train"], parts["extra"], strict=True)
        parts["train"] = np.concatenate(images), np.concatenate(labels)
    splits = {
        part: ArraySplit(
            inputs=torch.from_numpy(images),
            targets=indices_of(labels.tolist(), DIGITS, where=str(folder / SVHN_FILES[part])),
        )
        for part, (images, labels) in parts.items()
    }
    return DataSet.of(
        name=options.name,
        kind="image",
        class_names=DIGITS,
        train=splits["train"],
        test=splits["test"],
    )


def _digits(path: Path) -> tuple[Any, Any]:
    found = read_mat(path, ("X", "y"), squeeze=False)
    images, labels = found["X"], np.ravel(found["y"])
    if (
        images.dtype != np.uint8
        or images.ndim != 4
        or images.shape != (32, 32, 3, len(labels))
        or not np.isin(labels, range(1, 11)).all()
    ):
        raise unreadable_file(
            path, SVHN_WHAT, f"X is {images.dtype} {list(images.shape)}, y is {list(labels.shape)}"
        )
    # The digit 0 has the label 10.
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def read_mat(path: Path, wanted: Sequence[str], *, squeeze: bool = True) -> dict[str, Any]:
    """Return some variables of a MATLAB file, by default without axes of length 1."""
    content = read_bytes(path, WHAT)
    matlab = importlib.import_module("scipy.io")  # takes half a second
    try:
        found = matlab.loadmat(io.BytesIO(content), squeeze_me=squeeze, variable_names=list(wanted))
    except Exception as problem:  # its readers may raise any exception for a damaged file
        raise unreadable_file(path, WHAT, problem) from problem
    missing = [name for name in wanted if name not in found]
    if missing:
        raise unreadable_file(path, WHAT, f"it has no {' and no '.join(missing)}")
    return {name: found[name] for name in wanted}
