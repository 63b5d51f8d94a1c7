"""Splits and data sets: positions, masks, ids that travel along, fingerprints, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipguard.data import ArraySplit, DataSet, Split, TextSplit
from flipguard.errors import InputError
from tests.effort import tries


def array_split(count: int = 6, **changes: Any) -> ArraySplit:
    arguments: dict[str, Any] = {
        "inputs": torch.arange(count * 2.0).view(count, 2),
        "targets": torch.arange(count) % 3,
        "ids": [f"id{place}" for place in range(count)],
    }
    return ArraySplit(**arguments | changes)


def text_split(count: int = 6, **changes: Any) -> TextSplit:
    arguments: dict[str, Any] = {
        "texts": [f"text {place}" for place in range(count)],
        "targets": torch.arange(count) % 3,
        "ids": torch.arange(count) + 100,
    }
    return TextSplit(**arguments | changes)


def rows(split: Split) -> list[Any]:
    inputs = split.inputs(torch.arange(len(split)))
    values = inputs.tolist() if isinstance(inputs, Tensor) else inputs
    ids = split.ids.tolist() if isinstance(split.ids, Tensor) else split.ids
    return list(zip(values, split.targets.tolist(), ids, split.ids_index.tolist(), strict=True))


@settings(max_examples=tries(50))
@given(st.lists(st.integers(0, 5), unique=True), st.booleans())
def test_a_subset_is_the_rows_asked_for(places: list[int], text: bool) -> None:
    split: Split = text_split() if text else array_split()
    whole = rows(split)
    found = split.subset(torch.tensor(places, dtype=torch.int64))
    assert type(found) is type(split)
    assert rows(found) == [whole[place] for place in places]
    mask = torch.tensor([place in places for place in range(6)])
    assert rows(split.subset(mask)) == [whole[place] for place in sorted(places)]
    assert rows(found.subset(torch.arange(len(found)))) == rows(found)


def test_inputs_may_repeat_though_ids_may_not() -> None:
    twice = torch.tensor([3, 3])
    assert text_split().inputs(twice) == ["text 3", "text 3"]
    assert array_split().inputs(twice).tolist() == [[6.0, 7.0], [6.0, 7.0]]
    with pytest.raises(InputError, match="Expected `ids` to differ, but got 'id3' more than once"):
        array_split().subset(twice)


def test_ids_are_positions_unless_given() -> None:
    split = text_split(ids=None)
    assert torch.equal(torch.as_tensor(split.ids), torch.arange(6))


def test_moving_keeps_everything() -> None:
    split = array_split(inputs=torch.zeros(6, 3, 4, 4, dtype=torch.uint8), ids=torch.arange(6) * 3)
    assert rows(split.to("cpu")) == rows(split)
    assert split.to("cpu").fingerprint() == split.fingerprint()


def test_a_fingerprint_sees_every_change() -> None:
    found = {
        array_split().fingerprint(),
        array_split(inputs=torch.arange(12.0).view(6, 2) + 1).fingerprint(),
        array_split(inputs=torch.arange(12.0).view(6, 2, 1)).fingerprint(),
        array_split(targets=torch.zeros(6, dtype=torch.int64)).fingerprint(),
        array_split(ids=torch.arange(6)).fingerprint(),
        array_split().subset(torch.tensor([1, 0, 2, 3, 4, 5])).fingerprint(),
        text_split().fingerprint(),
        text_split(texts=["text 0text 1", "", *(f"text {n}" for n in range(2, 6))]).fingerprint(),
        text_split(ids=[str(place) for place in range(6)]).fingerprint(),
    }
    assert len(found) == 9
    assert array_split().fingerprint() == array_split().fingerprint()
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in found)


def test_a_data_set_has_the_fingerprint_of_all_its_contents() -> None:
    def data(**changes: Any) -> str:
        arguments: dict[str, Any] = {
            "name": "x",
            "kind": "vector",
            "class_names": ["a", "b", "c"],
            "train": array_split(),
            "test": array_split(3),
        }
        return DataSet.of(**arguments | changes).fingerprint

    assert data() == data(name="other name")
    changed = [
        data(class_names=["a", "b", "d"]),
        data(test=array_split(4)),
        data(train=text_split()),
    ]
    assert len({data(), *changed}) == 4


HALF = torch.zeros(6, 2, dtype=torch.float16)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: array_split(inputs=HALF), "`inputs` to be uint8 or float32 [samples, ...], but"),
        (lambda: array_split(inputs=torch.zeros(6)), "`inputs` to be uint8 or float32 [samples,"),
        (lambda: array_split(inputs=torch.zeros(5, 2)), "`inputs` to be 6 samples, one for each"),
        (lambda: array_split(targets=torch.zeros(6)), "`targets` to be one class index for each"),
        (lambda: array_split(ids=["a"]), "`ids` to name the 6 samples, but got 1; give one id"),
        (lambda: array_split(ids=["a"] * 6), "`ids` to differ, but got 'a' more than once"),
        (lambda: array_split(ids=torch.zeros(6)), "`ids` to be whole numbers [samples] or a list"),
        (lambda: array_split(ids=torch.ones(6).long()), "`ids` to differ, but got 1 more than"),
        (lambda: text_split(texts=["a"]), "`texts` to be 6 samples, one for each target, but got"),
        (lambda: text_split().inputs(torch.tensor([6])), "`indices` to be from 0 to 5, but got 6"),
        (
            lambda: text_split().subset(torch.tensor([-1])),
            "`indices` to be from 0 to 5, but got -1",
        ),
        (lambda: text_split().subset(torch.ones(5) > 0), "to be positions or a mask of 6 samples"),
        (lambda: text_split().subset(torch.rand(6)), "to be positions or a mask of 6 samples"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(call: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        call()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"class_names": ["a", "b", "b"]}, "`class_names` to differ, but got 'b' more than once"),
        (
            {"class_names": ["a", "b"]},
            "train targets of x to be from 0 to 1, one for each of its 2 class names, but got 2",
        ),
        (
            {"test": text_split(targets=torch.tensor([0, 1, 2, 0, 1, -1]))},
            "test targets of x to be from 0 to 2, one for each of its 3 class names, but got -1",
        ),
        ({"train": array_split().subset(torch.zeros(6) > 0)}, "the train split of x to hold samp"),
    ],
)
def test_a_data_set_that_makes_no_sense_is_refused(changes: Any, sentence: str) -> None:
    arguments: dict[str, Any] = {
        "name": "x",
        "kind": "vector",
        "class_names": ["a", "b", "c"],
        "train": array_split(),
        "test": array_split(),
    }
    with pytest.raises(InputError, match=re.escape(sentence)):
        DataSet.of(**arguments | changes)
