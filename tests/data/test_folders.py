"""Images in folders: found in order, decoded on demand, refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flipguard.data import ArraySplit, FolderSplit, load_data
from flipguard.errors import InputError


def draw(path: Path, *, size: tuple[int, int] = (8, 8), mode: str = "RGB", seed: int = 0) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    image.save(path)
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for seed, name in enumerate(["train/dog/b.png", "train/dog/a.PNG", "train/cat/in/c.png"]):
        draw(tmp_path / name, seed=seed)
    draw(tmp_path / "test/dog/d.png", seed=3)
    (tmp_path / "train/dog/notes.txt").write_text("no image")
    (tmp_path / "train/dog/.hidden.png").write_text("no image")
    (tmp_path / "train/.git").mkdir()
    (tmp_path / "train/README").write_text("no class")
    return tmp_path


def test_classes_and_images_are_found_in_order(pets: Path) -> None:
    data = load_data(f"{pets}:size=8")
    assert (data.name, data.kind, data.class_names) == (pets.name, "image", ("cat", "dog"))
    assert data.train.ids == ["train/cat/in/c.png", "train/dog/a.PNG", "train/dog/b.png"]
    assert data.train.targets.tolist() == [0, 1, 1]
    assert (data.test.ids, data.test.targets.tolist()) == (["test/dog/d.png"], [1])


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_images_are_decoded_as_they_are(pets: Path, workers: int) -> None:
    split = load_data(f"{pets}:size=8,workers={workers}").train
    assert isinstance(split, FolderSplit)
    expected = np.stack(
        [draw(pets / path, seed=2 - place) for place, path in enumerate(split.paths)]
    )
    found = split.inputs(torch.tensor([2, 0, 0]))
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), expected[[2, 0, 0]])
    assert np.array_equal(split.decoded().all_inputs.numpy(), expected)
    assert split.decoded().ids == split.ids
    part = split.subset(torch.tensor([2]))
    assert isinstance(part, FolderSplit)
    assert (part.ids, part.targets.tolist()) == (["train/dog/b.png"], [1])
    assert np.array_equal(part.inputs(torch.tensor([0])).numpy(), expected[2:])
    assert split.inputs(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 8, 8)


def test_images_can_be_decoded_at_once_and_held(pets: Path) -> None:
    later, now = (load_data(f"{pets}:size=8,decode={when}") for when in ("later", "now"))
    assert now.fingerprint == later.fingerprint
    assert isinstance(now.train, ArraySplit)
    assert not isinstance(later.train, ArraySplit)
    assert now.train.ids == later.train.ids
    positions = torch.tensor([2, 0])
    assert torch.equal(now.train.inputs(positions), later.train.inputs(positions))  # type: ignore[arg-type]
    for pick in (positions, torch.tensor([True, False, True])):
        part, same = now.train.subset(pick), later.train.subset(pick)
        assert isinstance(part, ArraySplit)
        assert part.to("cpu").fingerprint() == part.fingerprint() == same.fingerprint()
        assert part.ids == same.ids
        assert part.targets.tolist() == same.targets.tolist()
        assert torch.equal(part.all_inputs, same.inputs(torch.arange(2)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`decode` to be one of later, now, but got 'soon'"):
        load_data(f"{pets}:decode=soon")


@pytest.mark.parametrize("shape", [(20, 10), (10, 20), (10, 10), (3, 3), (101, 7), (9, 400)])
@pytest.mark.parametrize(("size", "resize"), [(8, 8), (8, 10), (10, 10), (1, 3)])
def test_every_shape_becomes_the_middle_square(
    tmp_path: Path, shape: tuple[int, int], size: int, resize: int
) -> None:
    pixels = draw(tmp_path / "a.png", size=shape)
    split = FolderSplit(
        root=tmp_path, paths=["a.png"], targets=torch.tensor([0]), size=size, resize=resize
    )
    found = split.inputs(torch.tensor([0]))
    assert found.shape == (1, 3, size, size)
    if min(shape) == resize:
        top, left = (shape[1] - size) // 2, (shape[0] - size) // 2
        assert np.array_equal(found[0], pixels[:, top : top + size, left : left + size])


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA"])
def test_every_mode_becomes_three_channels(tmp_path: Path, mode: str) -> None:
    pixels = draw(tmp_path / "a.png", mode=mode)
    split = FolderSplit(root=tmp_path, paths=["a.png"], targets=torch.tensor([0]), size=8)
    assert np.array_equal(split.inputs(torch.tensor([0]))[0], pixels)


def test_the_fingerprint_is_of_paths_sizes_and_cuts(pets: Path) -> None:
    first = load_data(f"{pets}:size=8").fingerprint
    assert load_data(f"{pets}:size=8,workers=1").fingerprint == first
    others = {load_data(f"{pets}:size=4").fingerprint}
    others.add(load_data(f"{pets}:size=8,resize=9").fingerprint)
    with (pets / "train/dog/b.png").open("ab") as file:
        file.write(b"!")
    others.add(load_data(f"{pets}:size=8").fingerprint)
    os.rename(pets / "train/dog/b.png", pets / "train/dog/e.png")
    others.add(load_data(f"{pets}:size=8").fingerprint)
    assert len(others | {first}) == 5


def test_a_corrupt_image_is_named(pets: Path) -> None:
    whole = (pets / "train/dog/b.png").read_bytes()
    split = load_data(f"{pets}:size=8").train
    for content in (b"", b"no image", whole[:60], whole[:-30]):
        (pets / "train/dog/b.png").write_bytes(content)
        assert split.inputs(torch.tensor([0, 1])).shape == (2, 3, 8, 8)  # type: ignore[union-attr]
        with pytest.raises(InputError, match=r"train/dog/b\.png to be an image, but got a file th"):
            split.inputs(torch.tensor([0, 2]))
    (pets / "train/dog/b.png").unlink()
    with pytest.raises(InputError, match=r"train/dog/b\.png to be an image"):
        split.inputs(torch.tensor([2]))


def test_folders_that_make_no_sense_are_refused(pets: Path, tmp_path: Path) -> None:
    def refusal(spec: str = f"{pets}:size=8") -> str:
        with pytest.raises(InputError) as refused:
            load_data(spec)
        return str(refused.value)

    assert "`resize` to be a whole number of at least 8, but got '4'" in refusal(
        f"{pets}:size=8,resize=4"
    )
    (pets / "train/fish").mkdir()
    assert "train/fish to hold images of the class 'fish', but got none; add some" in refusal()
    (pets / "train/fish").rmdir()
    draw(pets / "test/bird/x.png")
    assert "to be among its 2 classes ('cat', 'dog'), but got 'bird'; fix" in refusal()
    os.rename(pets / "test", pets / "other")
    assert "to hold a folder test or val or validation or valid, but got 'other', 'train'" in (
        refusal()
    )
    (pets / "other/empty").mkdir()
    assert "to hold a folder train, but got 'bird', 'dog', 'empty'; lay" in refusal(
        str(pets / "other")
    )
    assert "to hold a folder train, but got nothing; lay" in refusal(str(pets / "other/empty"))
    (pets / "none/train").mkdir(parents=True)
    (pets / "none/val").mkdir(parents=True)
    assert "train to hold one folder for each class, but got none" in refusal(str(pets / "none"))


def test_a_resize_below_the_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected `resize` to be at least `size`, 8 pixels, but"):
        FolderSplit(root=tmp_path, paths=[], targets=torch.arange(0), size=8, resize=4)


@pytest.mark.parametrize(
    ("name", "size", "resize"),
    [("imagenet", 224, 256), ("inaturalist", 224, 256), ("tinyimagenet", 64, 64)],
)
def test_named_folders(tmp_path: Path, name: str, size: int, resize: int) -> None:
    draw(tmp_path / name / "train/n01/images/n01_0.JPEG")
    draw(tmp_path / name / "train/n02/images/n02_0.JPEG")
    draw(tmp_path / name / "val/n02/val_0.JPEG")
    (tmp_path / name / "test/images").mkdir(parents=True)
    data = load_data(name, root=tmp_path)
    assert (data.name, data.class_names) == (name, ("n01", "n02"))
    assert data.test.ids == ["val/n02/val_0.JPEG"]
    assert isinstance(data.train, FolderSplit)
    assert (data.train.size, data.train.resize) == (size, resize)
    assert data.train.inputs(torch.tensor([0])).shape == (1, 3, size, size)


def test_tiny_imagenet_as_it_is_handed_out(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    draw(root / "train/n01/images/n01_0.JPEG")
    draw(root / "train/n02/images/n02_0.JPEG")
    draw(root / "val/images/val_0.JPEG")
    draw(root / "val/images/val_1.JPEG")
    table = root / "val/val_annotations.txt"
    table.write_text("val_0.JPEG\tn02\t0\t0\t62\t63\nval_1.JPEG\tn01\t4\t0\t62\t63\n")
    data = load_data("tinyimagenet:size=16", root=tmp_path)
    assert data.test.ids == ["val/images/val_0.JPEG", "val/images/val_1.JPEG"]
    assert data.test.targets.tolist() == [1, 0]
    table.write_text("val_7.JPEG\tn02\t0\t0\t62\t63\n")
    with pytest.raises(InputError, match=r"Expected line 1 of .* to name an image in "):
        load_data("tinyimagenet", root=tmp_path)


def test_tests_without_labels_are_passed_over_for_those_that_have_them(tmp_path: Path) -> None:
    draw(tmp_path / "train/n01/images/n01_0.JPEG")
    draw(tmp_path / "test/images/test_0.JPEG")
    draw(tmp_path / "val/images/val_0.JPEG")
    (tmp_path / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t62\t63\n")
    assert load_data(f"{tmp_path}:size=8").test.ids == ["val/images/val_0.JPEG"]
    draw(tmp_path / "test/n01/test_0.JPEG")
    with pytest.raises(InputError, match=r"test to be among its 1 classes .* but got 'images'"):
        load_data(f"{tmp_path}:size=8")
    (tmp_path / "test/images/test_0.JPEG").unlink()
    (tmp_path / "test/images").rmdir()
    assert load_data(f"{tmp_path}:size=8").test.ids == ["test/n01/test_0.JPEG"]


@pytest.mark.parametrize("name", ["imagenet", "tinyimagenet", "inaturalist"])
def test_a_missing_folder_says_where_it_goes(tmp_path: Path, name: str) -> None:
    what = "of images and the lists" if name == "inaturalist" else "train and val of"
    with pytest.raises(InputError, match=f"but got no such file; put the folders {what}"):
        load_data(name, root=tmp_path)
