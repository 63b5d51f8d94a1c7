"""The public names of the package, and the imports that it needs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import MappingProxyType

import pytest

import flipguard.data
from flipguard.data import (
    AUGMENTATIONS,
    DATA_SETS,
    ArraySplit,
    FolderSplit,
    Split,
    TextSplit,
    load_data,
)
from flipguard.errors import InputError

PUBLIC = {
    "AUGMENTATIONS",
    "ArraySplit",
    "Augmentation",
    "CropFlip",
    "Cutout",
    "DATA_SETS",
    "DataSet",
    "FolderSplit",
    "InTurn",
    "KnownData",
    "NoAugmentation",
    "RandomResizedCrop",
    "ShiftScaleNoise",
    "Split",
    "TextSplit",
    "build_augmentation",
    "held_out_per_class",
    "stratified",
    "load_data",
    "part",
    "part_per_class",
    "random_classes",
    "seen_by",
}


def test_all_names_what_is_there() -> None:
    assert set(flipguard.data.__all__) == PUBLIC
    assert len(flipguard.data.__all__) == len(PUBLIC)
    for name in PUBLIC - {"AUGMENTATIONS", "DATA_SETS"}:
        assert getattr(flipguard.data, name).__doc__


def test_the_table_of_data_sets_says_what_each_is() -> None:
    assert list(DATA_SETS) == [
        "mnist1d",
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "tinyimagenet",
        "imagenet",
        "inaturalist",
        "svhn",
        "agnews",
    ]
    for name, row in DATA_SETS.items():
        assert row.name == name
        assert row.kind in ("vector", "image", "text")
        assert row.classes is None or row.classes > 1
        assert row.sentence.endswith(".")
        assert len(row.sentence) < 100
        assert "load" not in repr(row)


def test_the_tables_cannot_be_changed() -> None:
    assert isinstance(DATA_SETS, MappingProxyType)
    assert isinstance(AUGMENTATIONS, MappingProxyType)
    with pytest.raises(dataclasses.FrozenInstanceError):
        DATA_SETS["mnist1d"].classes = 3


@pytest.mark.parametrize("kind", [ArraySplit, TextSplit, FolderSplit])
def test_splits_are_splits(kind: type) -> None:
    assert issubclass(kind, Split)


def test_a_split_must_say_how_it_is_read() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Split(targets=None)  # type: ignore[abstract,arg-type]


def test_importing_needs_torch_and_numpy_alone() -> None:
    code = (
        "import sys, flipguard.data; "
        "print(*sorted({'polars', 'pyarrow', 'pydantic', 'duckdb', 'timm', 'torchvision', "
        "'transformers', 'lightning', 'sklearn', 'datasets', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("mnist1", "got 'mnist1'; did you mean mnist1d?"),
        ("no/such/thing", "got 'no/such/thing'; the names are mnist1d, digits, mnist, "),
        ("mnist1d:tain=3", "among train, test, seed, scale_coeff, "),
        ("mnist1d:train", "got 'mnist1d:train'; did you mean"),
        ("mnist1d:train=0", "`train` to be a whole number of at least 1, but got '0'; change it"),
        ("mnist1d:train=2.5", "`train` to be a whole number of at least 1, but got '2.5'"),
        ("mnist1d:train=1,train=2", "every option of `mnist1d` once, but got 'train' more"),
        ("mnist1d:train=1,test", "options of `mnist1d` to be key=value, but got 'test'; write"),
        ("mnist1d:iid_noise_scale=nan", "`iid_noise_scale` to be a number of at least 0, but"),
        ("digits:test=1", "`test` to be a share above 0 and below 1, but got '1'"),
        ("digits:test=2", "`test` to be a number from 0 to 1, but got '2'"),
        ("digits:train=2", "options of `digits` to be among test, seed, but got 'train'"),
        ("cifar10:size=3", "options of `cifar10` to be among none, but got 'size'"),
    ],
)
def test_a_spec_that_is_none_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        load_data(spec)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("Expected ")
