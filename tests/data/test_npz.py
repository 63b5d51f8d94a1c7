"""Somebody's own arrays: what is read, and one clear sentence for what cannot be."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.data import ArraySplit, load_data, part
from flipguard.errors import InputError
from tests.effort import tries

Arrays = dict[str, Any]
WRONG_SHAPE = "to be [samples, features] or [samples, channels, height, width], but got"


def two_parts(**changes: Any) -> Arrays:
    arrays = {
        "train_inputs": np.arange(12.0).reshape(6, 2),
        "train_targets": np.array([0, 1, 2, 0, 1, 2]),
        "test_inputs": np.ones((3, 2)),
        "test_targets": np.array([2, 1, 0]),
    }
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def saved(folder: Path, arrays: Arrays) -> str:
    np.savez(folder / "mine.npz", **arrays)
    return str(folder / "mine.npz")


def test_vectors(tmp_path: Path) -> None:
    data = load_data(saved(tmp_path, two_parts()))
    assert (data.name, data.kind, data.class_names) == ("mine", "vector", ("0", "1", "2"))
    assert data.train.inputs(torch.tensor([1])).tolist() == [[2.0, 3.0]]  # type: ignore[union-attr]
    assert data.train.inputs(torch.tensor([1])).dtype == torch.float32  # type: ignore[union-attr]
    assert data.test.targets.tolist() == [2, 1, 0]
    assert torch.equal(torch.as_tensor(data.test.ids), torch.arange(3))


def test_images_with_names_and_ids(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    arrays = two_parts(
        train_inputs=images,
        test_inputs=images[:3],
        train_ids=np.array(list("abcdef")),
        test_ids=np.array([30, 10, 20], dtype=np.int32),
        class_names=np.array(["x", "y", "z"]),
        train_targets=np.array(list("xyzzyx")),
    )
    data = load_data(saved(tmp_path, arrays))
    assert (data.kind, data.class_names) == ("image", ("x", "y", "z"))
    assert data.train.targets.tolist() == [0, 1, 2, 2, 1, 0]
    assert data.train.ids == list("abcdef")
    assert torch.equal(torch.as_tensor(data.test.ids), torch.tensor([30, 10, 20]))
    assert isinstance(data.train, ArraySplit)
    assert np.array_equal(data.train.all_inputs.numpy(), images)


@pytest.mark.parametrize("options", ["", ":seed=3", ":test=0.5,seed=1"])
def test_one_table_is_split_by_id(tmp_path: Path, options: str) -> None:
    inputs, targets = np.arange(200.0).reshape(100, 2), np.arange(100) % 4
    ids = np.array([f"sample {place}" for place in range(100)])
    path = saved(tmp_path, {"inputs": inputs, "targets": targets, "ids": ids})
    data = load_data(path + options)
    share = 0.5 if "test" in options else 0.2
    seed = int(options.partition("seed=")[2] or 0)
    tested = part(ids.tolist(), seed, share).numpy()
    assert data.test.ids == ids[tested].tolist()
    assert data.train.ids == ids[~tested].tolist()
    everything = torch.arange(len(data.test))
    assert data.test.inputs(everything).tolist() == inputs[tested].tolist()  # type: ignore[union-attr]


def test_the_fingerprint_is_of_the_contents(tmp_path: Path) -> None:
    first = load_data(saved(tmp_path, two_parts())).fingerprint
    np.savez_compressed(tmp_path / "packed.npz", **two_parts())
    assert load_data(str(tmp_path / "packed.npz")).fingerprint == first
    changed = two_parts(test_targets=np.array([2, 1, 1]))
    assert load_data(saved(tmp_path, changed)).fingerprint != first


NAN = np.array([[0, 1], [np.nan, 1], [np.inf, 0]])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (two_parts(test_targets=None), "to hold an array `test_targets`, but got 'train_inputs', "),
        ({"x": np.zeros(3)}, "to hold an array `inputs`, but got 'x'; write it with numpy.savez("),
        ({}, "to hold an array `inputs`, but got none; write it with numpy.savez("),
        (two_parts(train_targets=np.arange(5)), "to be as long as `train_inputs`, 6, but got 5"),
        (
            two_parts(train_targets=np.zeros(6)),
            "to be one class index or name for each sample, but",
        ),
        (two_parts(train_targets=np.zeros((6, 1), int)), "index or name for each sample, but got"),
        (two_parts(test_inputs=NAN), "`test_inputs` in "),
        (
            two_parts(test_inputs=NAN),
            "to be finite, but got nan or infinite values in 2 samples (the first at position 1);",
        ),
        (two_parts(test_inputs=np.ones((3, 4))), "of the shape [2] that `train_inputs` has, but"),
        (two_parts(test_inputs=np.array(list("abc"))), "to be numbers, but got <U1; save floats"),
        (two_parts(test_inputs=np.ones(3)), WRONG_SHAPE + " [3]; reshape it."),
        (two_parts(test_inputs=np.ones((3, 8, 8))), WRONG_SHAPE + " [3, 8, 8]; reshape it."),
        (two_parts(test_inputs=np.ones((3, 0))), WRONG_SHAPE + " [3, 0]; reshape it."),
        (two_parts(train_inputs=np.array(1.0)), "to be as long as `train_inputs`, 0, but got 6"),
        (
            two_parts(train_inputs=np.ones((6, 8, 8, 3)), test_inputs=np.ones((3, 8, 8, 3))),
            "but got [6, 8, 8, 3]; save array.transpose(0, 3, 1, 2).",
        ),
        (two_parts(class_names=np.array(["a", "b"])), "among its 2 classes ('a', 'b'), but got 2;"),
        (two_parts(class_names=np.arange(3)), "`class_names` in "),
        (two_parts(train_targets=np.array([0, 1, 2, 0, 1, -1])), "2'), but got -1; fix the"),
        (
            two_parts(test_targets=np.array([0, 1, 3])),
            "('0', '1', '2'), but got 3; fix the labels",
        ),
        (
            two_parts(train_targets=np.array([0, 1, 2, 0, 1, 10**12])),
            "count from 0, but got 1000000",
        ),
        (two_parts(train_ids=np.arange(5)), "`train_ids` in "),
        (two_parts(train_ids=np.zeros(6, int)), "Expected `ids` to differ, but got 0 more than"),
        (
            two_parts(train_targets=np.array(list("xyzzyx")), test_targets=np.array(list("xyq"))),
            "to be among its 3 classes ('x', 'y', 'z'), but got 'q'; fix the labels, or add",
        ),
        (
            {"inputs": np.ones((1, 2)), "targets": np.array([0])},
            "split of mine to hold samples, but got none; add some, or split the data another way.",
        ),
    ],
)
def test_arrays_that_make_no_sense_are_refused(
    tmp_path: Path, arrays: Arrays, sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        load_data(saved(tmp_path, arrays))
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("Expected ")


def test_numbers_are_indices_of_classes_that_text_names(tmp_path: Path) -> None:
    data = load_data(saved(tmp_path, two_parts(train_targets=np.array(list("xyzzyx")))))
    assert data.test.targets.tolist() == [2, 1, 0]


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    names = np.array([{"a": 1}, None, 2], dtype=object)
    np.savez(tmp_path / "mine.npz", **two_parts(), class_names=names, allow_pickle=True)
    with pytest.raises(
        InputError,
        match="holds Python objects \\(a pickle\\) in array 'class_names', which are never",
    ):
        load_data(str(tmp_path / "mine.npz"))


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(InputError, match=re.escape("mine.npz does not exist; check the path.")):
        load_data(str(path))
    path.write_bytes(b"hello")
    with pytest.raises(InputError, match=r"archive of arrays \(it is no archive of arrays\)"):
        load_data(str(path))
    np.save(path.with_suffix(".npy"), np.ones(3))
    path.with_suffix(".npy").rename(path)
    with pytest.raises(InputError, match="is a single array, not an NPZ archive; write it with"):
        load_data(str(path))


@settings(max_examples=tries(80))
@given(st.data())
def test_a_damaged_file_is_read_or_refused_but_never_anything_else(data: st.DataObject) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **two_parts())
    content = bytearray(buffer.getvalue())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.npz"
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            load_data(str(path))
