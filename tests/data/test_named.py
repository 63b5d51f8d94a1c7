"""Named sets from small files of the same format: MNIST, Fashion-MNIST, CIFAR, digits."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import ArraySplit, load_data
from flipguard.errors import InputError

RANDOM = np.random.default_rng(0)


def pixels(split: object) -> Any:
    assert isinstance(split, ArraySplit)
    return split.all_inputs.numpy()


# -- idx -----------------------------------------------------------------------------------------


def write_idx(path: Path, array: Any) -> None:
    content = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, ending: str, dash: str = "-") -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for part, count in (("train", 20), ("t10k", 10)):
        arrays[part] = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{part}-images{dash}idx3-ubyte{ending}", arrays[part])
        write_idx(
            folder / f"{part}-labels{dash}idx1-ubyte{ending}", np.arange(count, dtype="u1") % 10
        )
    return arrays


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("dash", ["-", "."])
def test_idx_files(tmp_path: Path, name: str, ending: str, dash: str) -> None:
    arrays = write_mnist(tmp_path / name, ending, dash)
    data = load_data(name, root=tmp_path)
    assert (data.name, data.kind, len(data.class_names)) == (name, "image", 10)
    assert np.array_equal(pixels(data.train), arrays["train"][:, None])
    assert np.array_equal(pixels(data.test), arrays["t10k"][:, None])
    assert data.test.targets.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")]
)
def test_idx_files_where_torchvision_puts_them(tmp_path: Path, name: str, folder: str) -> None:
    arrays = write_mnist(tmp_path / folder, "")
    assert np.array_equal(pixels(load_data(name, root=tmp_path).train), arrays["train"][:, None])
    nearer = write_mnist(tmp_path / name, "")
    assert np.array_equal(pixels(load_data(name, root=tmp_path).train), nearer["train"][:, None])


def test_idx_files_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    with pytest.raises(InputError) as missing:
        load_data("mnist", root=tmp_path)
    assert str(missing.value) == (
        f"Expected `mnist` to be at {folder}/train-images-idx3-ubyte.gz, but got no such file; put "
        "the four idx files of MNIST there, or name the parent folder with `data_root=DIR` "
        "or FLIPGUARD_DATA."
    )
    write_mnist(folder, "")
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    for content, why in (
        (whole[:-1], "it holds 15,679 of 15,680 values"),
        (whole + b"!", "it holds 15,681 of 15,680 values"),
        (whole[:9], "its first bytes are not those of 3 axes of bytes"),
        (labels.read_bytes(), "its first bytes are not those of 3 axes of bytes"),
        (b"", "its first bytes are not those of 3 axes of bytes"),
        (whole[:4] + b"\xff" * 12, "it holds 0 of"),
    ):
        images.write_bytes(content)
        with pytest.raises(InputError) as refused:
            load_data("mnist", root=tmp_path)
        assert why in str(refused.value)
    images.write_bytes(whole)
    write_idx(labels, np.zeros(19, dtype=np.uint8))
    with pytest.raises(InputError, match="19 labels for 20 images"):
        load_data("mnist", root=tmp_path)
    write_idx(labels, np.full(20, 10, dtype=np.uint8))
    with pytest.raises(InputError, match=r"among its 10 classes .*, but got 10; fix"):
        load_data("mnist", root=tmp_path)


# -- CIFAR ---------------------------------------------------------------------------------------


def cifar_arrays(classes: int) -> dict[str, Any]:
    return {
        "x_train": RANDOM.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        "y_train": np.arange(10, dtype=np.uint8) * (classes // 10),
        "x_test": RANDOM.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "y_test": np.arange(4, dtype=np.uint8),
    }


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
@pytest.mark.parametrize("named", [True, False])
def test_cifar_from_an_archive(tmp_path: Path, name: str, classes: int, named: bool) -> None:
    arrays = cifar_arrays(classes)
    if named:
        arrays["class_names"] = np.array([f"class {place}" for place in range(classes)])
    np.savez(tmp_path / f"{name}.npz", **arrays)
    data = load_data(name, root=tmp_path)
    assert (data.name, data.kind, len(data.class_names)) == (name, "image", classes)
    assert np.array_equal(pixels(data.train), arrays["x_train"].transpose(0, 3, 1, 2))
    assert data.train.targets.tolist() == arrays["y_train"].tolist()
    assert torch.equal(torch.as_tensor(data.test.ids), torch.arange(4))
    if named:
        assert data.class_names[1] == "class 1"
    elif name == "cifar10":
        assert data.class_names[:2] == ("airplane", "automobile")


def batch(count: int, key: bytes) -> dict[bytes, Any]:
    data = RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"data": data, key: list(range(count)), b"filenames": [b"a.png"] * count}


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_from_batches(tmp_path: Path, protocol: int) -> None:
    ten, hundred = tmp_path / "cifar-10-batches-py", tmp_path / "cifar-100-python"
    ten.mkdir()
    hundred.mkdir()
    batches = {f"data_batch_{number}": batch(3, b"labels") for number in range(1, 6)}
    for file, content in (batches | {"test_batch": batch(4, b"labels")}).items():
        (ten / file).write_bytes(pickle.dumps(content, protocol))
    data = load_data("cifar10", root=tmp_path)
    expected = np.concatenate([one[b"data"] for one in batches.values()]).reshape(-1, 3, 32, 32)
    assert np.array_equal(pixels(data.train), expected)
    assert data.train.targets.tolist() == [0, 1, 2] * 5
    assert len(data.test) == 4
    names = {b"fine_label_names": [f"class {place}".encode() for place in range(100)]}
    for file, content in {
        "train": batch(5, b"fine_labels"),
        "test": batch(2, b"fine_labels"),
        "meta": names,
    }.items():
        (hundred / file).write_bytes(pickle.dumps(content, protocol))
    data = load_data("cifar100", root=tmp_path)
    assert (len(data.train), len(data.test), data.class_names[99]) == (5, 2, "class 99")


def test_cifar_batches_as_python_2_wrote_them(tmp_path: Path) -> None:
    values = RANDOM.integers(0, 256, (3, 3072), dtype=np.uint8)
    pickled = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff"
        b"\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x24\x00\x00"
        + values.tobytes()
        + b"tbU\x06labels](K\x07K\x01K\x02eu."
    )
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / file).write_bytes(pickled)
    data = load_data("cifar10", root=tmp_path)
    assert np.array_equal(pixels(data.test), values.reshape(3, 3, 32, 32))
    assert data.test.targets.tolist() == [7, 1, 2]


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def test_cifar_files_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    def refusal() -> str:
        with pytest.raises(InputError) as refused:
            load_data("cifar10", root=tmp_path)
        return str(refused.value)

    assert "to be at " in refusal()
    assert "or its folder cifar-10-batches-py next to it, or name the parent folder" in refusal()
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    first = folder / "data_batch_1"
    assert "data_batch_1 to be a batch of CIFAR images, but got no such file" in refusal()
    whole = pickle.dumps(batch(3, b"labels"), 2)
    for content, why in (
        (pickle.dumps(Harmful()), f"it asks for {os.system.__module__}.system"),
        (whole[:500], "cannot be read"),
        (b"", "cannot be read"),
        (pickle.dumps([1]), "it holds a list"),
    ):
        first.write_bytes(content)
        assert why in refusal()
    for file in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / file).write_bytes(pickle.dumps({b"data": np.zeros((3, 5), "u1"), b"labels": [1]}))
    assert "its data is [15, 5]" in refusal()
    first.write_bytes(pickle.dumps({b"data": np.zeros((3, 3072), "u1")}))
    assert "it holds no 'labels'" in refusal()
    arrays = cifar_arrays(10)
    np.savez(tmp_path / "cifar10.npz", x_train=arrays["x_train"])
    assert "to hold an array `y_train`, but got none; write it with numpy.savez(file" in refusal()
    np.savez(tmp_path / "cifar10.npz", **arrays | {"x_test": np.zeros((4, 3, 32, 32), "u1")})
    assert "to be uint8 [samples, 32, 32, 3], but got uint8 [4, 3, 32, 32]; save" in refusal()
    np.savez(tmp_path / "cifar10.npz", **arrays | {"y_test": np.array([1, 2, 3, 10])})
    assert "to be among its 10 classes ('airplane', " in refusal()
    np.savez(tmp_path / "cifar10.npz", **arrays | {"y_test": np.array([1, 2, 3])})
    assert "`inputs` to be 3 samples, one for each target, but got 4" in refusal()


# -- digits --------------------------------------------------------------------------------------


def test_digits() -> None:
    data = load_data("digits")
    assert (data.kind, len(data.class_names)) == ("image", 10)
    assert len(data.train) + len(data.test) == 1797
    assert len(data.test) == pytest.approx(1797 / 4, rel=0.1)
    assert not set(data.train.ids_index.tolist()) & set(data.test.ids_index.tolist())
    values = pixels(data.train)
    assert (values.min(), values.max(), values.shape[1:]) == (-1, 1, (1, 8, 8))
    assert load_data("digits").fingerprint == data.fingerprint
    assert load_data("digits:seed=1").fingerprint != data.fingerprint


def test_digits_need_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match="install it with: pip install scikit-learn"):
        load_data("digits")
