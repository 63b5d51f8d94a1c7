"""CIFAR-10 and CIFAR-100, from one .npz file or from the folder of batches."""

from __future__ import annotations

import io
import pickle  # only to read arrays: see `_Arrays`
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.data.arrays import read_npz
from flipguard.data.dataset import ArraySplit, DataSet
from flipguard.data.readers import absent, class_names_of, indices_of, read_bytes, unreadable_file
from flipguard.errors import InputError
from flipguard.specs import Options

WHAT = "a batch of CIFAR images"
CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
BATCHES = {
    "cifar10": ([f"data_batch_{number}" for number in range(1, 6)], ["test_batch"], "labels"),
    "cifar100": (["train"], ["test"], "fine_labels"),
}
CLASSES = {"cifar10": 10, "cifar100": 100}
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def load_cifar(options: Options, root: Path) -> DataSet:
    """Read the images as uint8 [n, 3, 32, 32] in their original order."""
    options.finish()
    name = options.name
    if (root / f"{name}.npz").is_file():
        return _of_archive(name, root / f"{name}.npz")
    if (root / FOLDERS[name]).is_dir():
        return _of_batches(name, root / FOLDERS[name])
    raise absent(
        name,
        root / f"{name}.npz",
        f"put CIFAR-{CLASSES[name]} there as arrays {', '.join(ARRAYS)}, or its folder "
        f"{FOLDERS[name]} next to it",
    )


def _of_archive(name: str, path: Path) -> DataSet:
    arrays = read_npz(path)
    for wanted in ARRAYS:
        if wanted not in arrays:
            raise InputError(
                f"Expected {path} to hold an array `{wanted}`, but got none; write it with "
                f"numpy.savez(file, {'=…, '.join(ARRAYS)}=…)."
            )
    given = arrays.get("class_names")
    splits = []
    names = [str(one) for one in given] if given is not None else _names(name, arrays["y_train"])
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"].reshape(-1)
        splits.append(_split(images, labels.tolist(), names, f"`x_{part}` in {path}"))
    return DataSet.of(name=name, kind="image", class_names=names, train=splits[0], test=splits[1])


def _of_batches(name: str, folder: Path) -> DataSet:
    train, test, key = BATCHES[name]
    names: list[str] = list(CIFAR10)
    if name == "cifar100":
        meta = folder / "meta"
        names = [_text(one) for one in _wanted(_unpickled(meta), "fine_label_names", meta)]
    splits = []
    for files in (train, test):
        batches = [(folder / file, _unpickled(folder / file)) for file in files]
        pixels = [np.asarray(_wanted(batch, "data", path)) for path, batch in batches]
        labels = [label for path, batch in batches for label in _wanted(batch, key, path)]
        flat = np.concatenate(pixels)
        if flat.ndim != 2 or flat.shape[1] != 3 * 32 * 32:
            raise unreadable_file(folder / files[0], WHAT, f"its data is {list(flat.shape)}")
        images = flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        splits.append(_split(images, labels, names, str(folder / files[0])))
    return DataSet.of(name=name, kind="image", class_names=names, train=splits[0], test=splits[1])


def _split(images: Any, labels: Sequence[int], names: Sequence[str], where: str) -> ArraySplit:
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise InputError(
            f"Expected {where} to be uint8 [samples, 32, 32, 3], but got {images.dtype} "
            f"{list(images.shape)}; save the original pixels."
        )
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return ArraySplit(inputs=pixels, targets=indices_of(labels, names, where=where))


def _names(name: str, labels: Any) -> list[str]:
    return (
        list(CIFAR10) if name == "cifar10" else class_names_of([99, *labels.tolist()], where=name)
    )


class _Arrays(pickle.Unpickler):
    """Reads numbers, text and numpy's arrays, and refuses all else, which could run code."""

    def find_class(self, module: str, name: str) -> Any:
        plain = module.removeprefix("numpy.").replace("_core", "core")
        if (plain, name) == ("core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            # The files have 0 and 1 where numpy expects False and True.
            return lambda kind, align, copy: np.dtype(kind, align=bool(align), copy=bool(copy))
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickled(path: Path) -> Mapping[Any, Any]:
    content = read_bytes(path, WHAT)
    try:
        found = _Arrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as problem:  # a damaged pickle may raise any exception
        raise unreadable_file(path, WHAT, problem) from problem
    if not isinstance(found, dict):
        raise unreadable_file(path, WHAT, f"it holds a {type(found).__name__}")
    return found


def _wanted(batch: Mapping[Any, Any], key: str, path: Path) -> Any:
    found = batch.get(key.encode(), batch.get(key))
    if found is None:
        raise unreadable_file(path, WHAT, f"it holds no {key!r}")
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
