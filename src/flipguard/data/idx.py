"""MNIST and Fashion-MNIST from their idx files, plain or packed by gzip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flipguard.data.base import ArraySplit, DataSet
from flipguard.data.files import absent, packed_or_not, read_bytes, unreadable
from flipguard.data.labels import indices_of
from flipguard.data.options import Options

WHAT = "an idx file of bytes"
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
CLASSES = {"mnist": tuple("0123456789"), "fashion-mnist": FASHION}
TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}  # where it puts them


def load_idx(options: Options, root: Path) -> DataSet:
    """Reads the four files from a folder that has the data set's name, or torchvision's."""
    options.finish()
    name = options.name
    names = CLASSES[name]
    splits = []
    for part in ("train", "t10k"):
        images = read_idx(_found(name, root, f"{part}-images", 3), axes=3)
        path = _found(name, root, f"{part}-labels", 1)
        targets = indices_of(read_idx(path, axes=1).tolist(), names, where=str(path))
        if len(targets) != len(images):
            raise unreadable(path, WHAT, f"{len(targets):,} labels for {len(images):,} images")
        splits.append(ArraySplit(inputs=images[:, None], targets=targets))
    return DataSet.of(name=name, kind="image", class_names=names, train=splits[0], test=splits[1])


def read_idx(path: Path, *, axes: int) -> Tensor:
    """The bytes of an idx file as uint8 with so many axes."""
    content = read_bytes(path, WHAT)
    start = 4 + 4 * axes
    if content[:4] != bytes((0, 0, 8, axes)) or len(content) < start:
        raise unreadable(path, WHAT, f"its first bytes are not those of {axes} axes of bytes")
    shape = [int(size) for size in np.frombuffer(content, ">u4", axes, 4)]
    expected = int(np.prod([1, *shape], dtype=object))
    if len(content) - start != expected:
        raise unreadable(path, WHAT, f"it holds {len(content) - start:,} of {expected:,} values")
    values = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(values.copy())


def _found(name: str, root: Path, stem: str, axes: int) -> Path:
    file = f"{stem}-idx{axes}-ubyte"
    for folder in (root / name, root / TORCHVISION[name]):
        found = packed_or_not(folder, file, f"{stem}.idx{axes}-ubyte")
        if found is not None:
            return found
    title = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}[name]
    raise absent(name, root / name / f"{file}.gz", f"put the four idx files of {title} there")
