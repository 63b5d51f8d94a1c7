"""Batches of image files are decoded ahead: the same batches, and nothing left running."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.data import FolderSplit, build_augmentation, load_data
from flipguard.errors import InputError
from flipguard.training.batches import BatchSource
from flipguard.training.read_ahead import read_ahead
from tests.data.test_folders import draw

SIZES = [(40, 30), (30, 40), (25, 25), (64, 20)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(40):
        draw(tmp_path / f"train/{number % 2}/{number}.png", size=SIZES[number % 4], seed=number)
    draw(tmp_path / "test/0/0.png", size=(30, 30))
    return tmp_path


def epoch(photos: Path, workers: int, augment: str, *, number: int | None = 3) -> list[Any]:
    data = load_data(f"{photos}:size=16,workers={workers}")
    source = BatchSource(
        data.train,
        device=torch.device("cpu"),
        model="lenet5",
        augmentation=build_augmentation(augment),
        seed=5,
    )
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    return list(source.epoch_batches(order.split(7), epoch=number))


@pytest.mark.parametrize(
    "augment", ["none", "crop-flip", "random-resized-crop", "random-resized-crop+cutout:size=4"]
)
def test_batches_are_the_same_for_any_number_of_workers(photos: Path, augment: str) -> None:
    alone = epoch(photos, 0, augment)
    for workers in (1, 2, 5):
        for (inputs, target), (expected, right) in zip(
            epoch(photos, workers, augment), alone, strict=True
        ):
            assert torch.equal(inputs, expected)
            assert torch.equal(target, right)
    assert len(alone) == 6
    assert not torch.equal(epoch(photos, 2, augment, number=4)[0][0], alone[0][0]) or (
        augment == "none"
    )


def test_each_file_is_opened_once_in_an_epoch(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flipguard.data.readers import pillow

    opened: list[Path] = []
    whole = pillow().open

    def counted(path: Path) -> Any:
        opened.append(path)
        return whole(path)

    monkeypatch.setattr(pillow(), "open", counted)
    epoch(photos, 2, "random-resized-crop")
    assert len(opened) == len(set(opened)) == 40


def test_a_damaged_image_ends_the_epoch_with_its_name(photos: Path) -> None:
    (photos / "train/1/7.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"Expected .*/train/1/7.png to be an image, but got a fi"):
        epoch(photos, 2, "random-resized-crop")


def test_items_are_fetched_ahead_and_in_order() -> None:
    begun: list[int] = []

    def fetch(item: int) -> int:
        begun.append(item)
        time.sleep(0.001 * (item % 3))
        return item * item

    results = read_ahead(fetch, range(20), ahead=4)
    assert next(results) == 0
    deadline = time.monotonic() + 10
    while len(begun) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(begun) == [0, 1, 2, 3, 4]  # four ahead of the one that was used
    assert list(results) == [item * item for item in range(1, 20)]
    assert list(read_ahead(fetch, [], ahead=4)) == []


def test_an_epoch_that_is_left_leaves_no_threads() -> None:
    results = read_ahead(lambda item: item, range(100), ahead=3)
    assert next(results) == 0
    results.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("read-ahead")]


def test_an_exception_reaches_the_user_of_the_results() -> None:
    def fetch(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    results = read_ahead(fetch, range(5), ahead=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_of_many_files_the_sizes_of_some_are_looked_up(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = load_data(f"{photos}:size=16").train
    assert isinstance(split, FolderSplit)
    whole = split.fingerprint()
    monkeypatch.setattr("flipguard.data.image_folders.SIZED", 10)
    some = split.fingerprint()
    assert some != whole
    for place, changes in ((4, True), (5, False)):  # every fourth file is looked up
        path = photos / split.paths[place]
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert (split.fingerprint() != some) is changes
        path.write_bytes(content)
