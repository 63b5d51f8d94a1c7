"""The table of named data sets, and the function that loads the data set of a spec."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from flipguard.data.arrays import load_npz
from flipguard.data.cifar import load_cifar
from flipguard.data.dataset import DataSet, Kind
from flipguard.data.hub import load_hub
from flipguard.data.image_folders import load_image_folder, load_tiny_imagenet
from flipguard.data.imagenet import load_imagenet
from flipguard.data.inaturalist import load_inaturalist
from flipguard.data.matlab import load_svhn
from flipguard.data.mnist import load_digits, load_idx, load_mnist1d
from flipguard.data.readers import data_root, located
from flipguard.data.texts import is_text_folder, load_agnews, load_texts
from flipguard.errors import InputError, listed
from flipguard.specs import Options

HUB = "hf:"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownData:
    """A named data set; `classes` is None if it depends on the files."""

    name: str
    kind: Kind
    classes: int | None
    sentence: str
    load: Callable[[Options, Path], DataSet] = field(repr=False)


ROWS = (
    KnownData(
        name="mnist1d",
        kind="vector",
        classes=10,
        sentence="Ten noisy waves of 40 values, drawn on the spot: options train, test, seed.",
        load=lambda options, _: load_mnist1d(options),
    ),
    KnownData(
        name="digits",
        kind="image",
        classes=10,
        sentence="1,797 digits of 8 by 8 pixels that come with scikit-learn: options test, seed.",
        load=lambda options, _: load_digits(options),
    ),
    KnownData(
        name="mnist",
        kind="image",
        classes=10,
        sentence="70,000 digits of 28 by 28 pixels, from the idx files in the folder mnist.",
        load=load_idx,
    ),
    KnownData(
        name="fashion-mnist",
        kind="image",
        classes=10,
        sentence="70,000 clothes of 28 by 28 pixels, from the idx files in fashion-mnist.",
        load=load_idx,
    ),
    KnownData(
        name="cifar10",
        kind="image",
        classes=10,
        sentence="60,000 photos of 32 by 32 pixels, from cifar10.npz or cifar-10-batches-py.",
        load=load_cifar,
    ),
    KnownData(
        name="cifar100",
        kind="image",
        classes=100,
        sentence="60,000 photos of 32 by 32 pixels, from cifar100.npz or cifar-100-python.",
        load=load_cifar,
    ),
    KnownData(
        name="tinyimagenet",
        kind="image",
        classes=200,
        sentence="110,000 photos of 64 by 64, from the folder tinyimagenet: options size, decode.",
        load=load_tiny_imagenet,
    ),
    KnownData(
        name="imagenet",
        kind="image",
        classes=1000,
        sentence="1.3 million photos, from the folder imagenet: options size, resize, labels.",
        load=load_imagenet,
    ),
    KnownData(
        name="inaturalist",
        kind="image",
        classes=None,
        sentence="Photos of species, 2017 or 2018, from the folder inaturalist: option year.",
        load=load_inaturalist,
    ),
    KnownData(
        name="svhn",
        kind="image",
        classes=10,
        sentence="99,289 house numbers, 32 by 32, from the .mat files in svhn: option extra.",
        load=load_svhn,
    ),
    KnownData(
        name="agnews",
        kind="text",
        classes=4,
        sentence="News in four topics, from train and test files, .csv or .jsonl, in agnews.",
        load=load_agnews,
    ),
)

DATA_SETS: Mapping[str, KnownData] = MappingProxyType({row.name: row for row in ROWS})
"""Every named data set, by name."""


def load_data(spec: str, *, root: Path | None = None) -> DataSet:
    """Load the data set of a spec: ``name[:key=value,...]`` or a path.

    A path is an .npz of arrays, a .jsonl or .jsonl.gz of texts, or a folder of text files or of
    class folders with images. After ``hf:`` it is a name or path for the datasets library. The
    files of named sets are read from `root`, or from the folder in FLIPGUARD_DATA, or from
    ``data``.

    >>> data = load_data("mnist1d:train=200,test=100,seed=3")
    >>> data.kind, len(data.class_names), len(data.train), len(data.test)
    ('vector', 10, 200, 100)
    """
    options = Options.of(spec.removeprefix(HUB))
    if spec.startswith(HUB):
        return load_hub(options.name, options)
    known = DATA_SETS.get(options.name)
    if known is not None:
        return known.load(options, data_root(root))
    path = located(options.name)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return load_texts(path, options)
    if path.suffix == ".npz":
        return load_npz(path, options)
    if path.is_dir():
        return (
            load_texts(path, options) if is_text_folder(path) else load_image_folder(path, options)
        )
    raise _unknown(options.name)


def _unknown(name: str) -> InputError:
    close = difflib.get_close_matches(name, DATA_SETS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the names are {', '.join(DATA_SETS)}."
    return InputError(
        "Expected `data` to be the name of a data set, an .npz or .jsonl file, or a folder, but "
        f"got {listed([name])}; {hint}"
    )
