"""The table of data sets that have a name: what they are, and what reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from flipguard.data.base import DataSet, Kind
from flipguard.data.cifar import load_cifar
from flipguard.data.digits import load_digits
from flipguard.data.folders import load_known_folder
from flipguard.data.idx import load_idx
from flipguard.data.mnist1d import load_mnist1d
from flipguard.data.options import Options
from flipguard.data.texts import load_agnews


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownData:
    """A data set with a name; `classes` is None where it depends on the files."""

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
        load=load_known_folder,
    ),
    KnownData(
        name="imagenet",
        kind="image",
        classes=1000,
        sentence="1.3 million photos, from the folder imagenet: options size, resize, workers.",
        load=load_known_folder,
    ),
    KnownData(
        name="inaturalist",
        kind="image",
        classes=None,
        sentence="Photos of species, from the folder inaturalist: options size, resize, workers.",
        load=load_known_folder,
    ),
    KnownData(
        name="agnews",
        kind="text",
        classes=4,
        sentence="News in four topics, from train and test .jsonl files in the folder agnews.",
        load=load_agnews,
    ),
)

DATA_SETS: Mapping[str, KnownData] = MappingProxyType({row.name: row for row in ROWS})
"""Every named data set, by name."""
