"""Data sets of the datasets library, against tables of the same shape."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from flipguard.data import load_data
from flipguard.errors import InputError


class Table:
    """As much of the library's table as is used."""

    def __init__(self, columns: dict[str, list[Any]], names: Sequence[str] | None = None) -> None:
        self._columns = columns
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace() for name in columns}
        if names is not None:
            self.features["label"].names = list(names)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]


def library(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    fake = ModuleType("datasets")

    def load(_: str) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    fake.load_dataset = fake.load_from_disk = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)


TEXTS = Table({"text": ["a", "b", "c"], "label": [1, 0, 1]}, ["no", "yes"])


def test_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, {"train": TEXTS, "validation": Table({"text": ["d"], "label": [0]})})
    data = load_data("hf:some/mood")
    assert (data.name, data.kind, data.class_names) == ("mood", "text", ("no", "yes"))
    assert data.train.inputs(torch.tensor([2, 0])) == ["c", "a"]
    assert data.train.targets.tolist() == [1, 0, 1]
    assert data.test.inputs(torch.tensor([0])) == ["d"]


def test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [Image.new("L", (6, 4), value) for value in (10, 200)]
    table = Table({"img": images, "fine": ["cat", "ant"]})
    library(monkeypatch, {"train": table, "test": table})
    data = load_data("hf:pets:size=4,label=fine")
    assert (data.kind, data.class_names) == ("image", ("ant", "cat"))
    found = data.train.inputs(torch.tensor([0, 1]))
    assert isinstance(found, torch.Tensor)
    assert found.shape == (2, 3, 4, 4)
    assert found[:, 0, 0, 0].tolist() == [10, 200]


@pytest.mark.parametrize("wrapped", [True, False])
def test_one_table_is_split(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    table = Table({"sentence": [str(n) for n in range(50)], "label": [n % 2 for n in range(50)]})
    library(monkeypatch, {"train": table} if wrapped else table)
    data = load_data("hf:one:test=0.4")
    assert len(data.train) + len(data.test) == 50
    assert 10 < len(data.test) < 30


@pytest.mark.parametrize(
    ("spec", "found", "sentence"),
    [
        ("hf:x", FileNotFoundError("no x"), "that the datasets library loads, but got FileNotFou"),
        ("hf:x", {"test": TEXTS}, "`hf:x` to have a split 'train', but got 'test'; give a data"),
        ("hf:x", Table({"text": ["a"]}), "a column label or labels or target, but got 'text'"),
        ("hf:x", Table({"label": [1]}), "a column text or sentence or content or image or img, b"),
        ("hf:x:label=y", TEXTS, "to have a column y, but got 'text', 'label'; name it with the op"),
        ("hf:x:column=label", TEXTS, "'label' of hf:x to be text or images, but got int; name"),
        ("hf:x", Table({"text": ["a"], "label": [0.5]}), "whole numbers or text, but got 0.5; na"),
        ("hf:x:colour=red", TEXTS, "among column, label, size, test, seed, but got 'colour'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, spec: str, found: Any, sentence: str
) -> None:
    library(monkeypatch, found)
    with pytest.raises(InputError) as refused:
        load_data(spec)
    assert sentence in str(refused.value)


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="hf:x needs the package datasets, which is not installed"):
        load_data("hf:x")
