"""ImageNet, iNaturalist, SVHN and AG News in the layouts in which they are distributed."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from flipguard.data import ArraySplit, DataSet, TextSplit, load_data
from flipguard.errors import InputError
from tests.data.test_folders import draw

WNIDS = ["n01440764", "n01443537", "n02084071"]
# The class of each image; the kit numbers the classes in another order than the folders' names.
TRUE = [2, 0, 1, 1, 0]
KIT_NUMBER = {"n01440764": 3, "n01443537": 1, "n02084071": 2}
KIT = "ILSVRC2012_devkit_t12"


def images(root: Path, *, place: str = "") -> Path:
    """ImageNet as it is unpacked: class folders, and a flat folder."""
    folder = root / "imagenet" / place
    for seed, name in enumerate(WNIDS):
        draw(folder / f"train/{name}/{name}_{seed}.JPEG", seed=seed)
    for number in range(1, len(TRUE) + 1):
        draw(folder / f"val/ILSVRC2012_val_{number:08}.JPEG", seed=10 + number)
    return folder


def kit(folder: Path) -> Path:
    """The development kit as it is distributed: a struct of classes, and one number per line."""
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(KIT_NUMBER[name], name, f"words of {name}", 0) for name in reversed(WNIDS)]
    # Classes that are no leaves have numbers above the leaves'.
    synsets = np.array([*rows, (4, "n00001740", "entity", 3)], dtype=kind).reshape(-1, 1)
    (folder / KIT / "data").mkdir(parents=True)
    scipy.io.savemat(folder / KIT / "data/meta.mat", {"synsets": synsets})
    numbers = [KIT_NUMBER[WNIDS[place]] for place in TRUE]
    truth = folder / KIT / "data/ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("".join(f"{number}\n" for number in numbers))
    return folder / KIT


def checked(data: DataSet) -> DataSet:
    assert (data.name, data.class_names) == ("imagenet", tuple(WNIDS))
    assert data.train.targets.tolist() == [0, 1, 2]
    assert isinstance(data.test.ids, list)
    assert [Path(one).name for one in data.test.ids] == [
        f"ILSVRC2012_val_{number:08}.JPEG" for number in range(1, len(TRUE) + 1)
    ]
    assert data.test.targets.tolist() == TRUE
    assert data.test.inputs(torch.tensor([4, 0])).shape == (2, 3, 8, 8)
    return data


LABELS: dict[str, Any] = {
    # Kaggle's: boxes after the class.
    "LOC_val_solution.csv": "ImageId,PredictionString\n"
    + "".join(
        f"ILSVRC2012_val_{number:08},{WNIDS[place]} 1 2 3 4 {WNIDS[place]} 5 6 7 8\n"
        for number, place in reversed(list(enumerate(TRUE, start=1)))
    ),
    "imagenet_2012_validation_synset_labels.txt": "".join(f"{WNIDS[place]}\n" for place in TRUE),
    # Caffe's: places among the sorted classes.
    "val.txt": "".join(
        f"ILSVRC2012_val_{number:08}.JPEG {place}\n" for number, place in enumerate(TRUE, start=1)
    ),
    "val_labels.csv": "file,class\n"
    + "".join(
        f"ILSVRC2012_val_{number:08}.JPEG,{WNIDS[place]}\n"
        for number, place in enumerate(TRUE, start=1)
    ),
}


@pytest.mark.parametrize("place", ["", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_with_the_development_kit(tmp_path: Path, place: str) -> None:
    images(tmp_path, place=place)
    kit(tmp_path / "imagenet")
    checked(load_data("imagenet:size=8", root=tmp_path))


@pytest.mark.parametrize("name", LABELS)
def test_imagenet_with_a_file_of_labels(tmp_path: Path, name: str) -> None:
    images(tmp_path, place="ILSVRC/Data/CLS-LOC")
    (tmp_path / "imagenet" / name).write_text(LABELS[name])
    checked(load_data("imagenet:size=8", root=tmp_path))
    # By any name, and before the kit.
    kit(tmp_path / "imagenet")
    (tmp_path / "imagenet" / name).rename(tmp_path / "imagenet/mine.txt")
    checked(load_data("imagenet:size=8,labels=mine.txt", root=tmp_path))
    checked(load_data(f"imagenet:size=8,labels={tmp_path}/imagenet/mine.txt", root=tmp_path))


def test_imagenet_flat_and_in_folders_are_the_same_data(tmp_path: Path) -> None:
    def content() -> set[tuple[str, int, bytes]]:
        test = load_data("imagenet:size=8", root=tmp_path).test
        pixels = test.inputs(torch.arange(len(test)))
        assert isinstance(pixels, torch.Tensor)
        assert isinstance(test.ids, list)
        return {
            (Path(name).name, target, image.numpy().tobytes())
            for name, target, image in zip(test.ids, test.targets.tolist(), pixels, strict=True)
        }

    folder = images(tmp_path)
    kit(folder)
    flat = content()
    for number, place in enumerate(TRUE, start=1):
        target = folder / "val" / WNIDS[place]
        target.mkdir(exist_ok=True)
        shutil.move(folder / f"val/ILSVRC2012_val_{number:08}.JPEG", target)
    assert content() == flat


def test_a_part_of_the_images_keeps_its_numbers_in_the_kit(tmp_path: Path) -> None:
    folder = images(tmp_path)
    kit(folder)
    for number in (1, 4):
        (folder / f"val/ILSVRC2012_val_{number:08}.JPEG").unlink()
    assert load_data("imagenet", root=tmp_path).test.targets.tolist() == [0, 1, 0]


def test_a_part_of_the_images_keeps_its_lines_in_a_file(tmp_path: Path) -> None:
    folder = images(tmp_path)
    name = "imagenet_2012_validation_synset_labels.txt"
    (folder / name).write_text(LABELS[name])
    for number in (1, 4):
        (folder / f"val/ILSVRC2012_val_{number:08}.JPEG").unlink()
    assert load_data("imagenet", root=tmp_path).test.targets.tolist() == [0, 1, 0]


@pytest.mark.parametrize("names", [["a", "b"], ["a_1", "b_1"]])
@pytest.mark.parametrize("labels", ["kit", "val_labels.txt"])
def test_more_labels_than_images_without_numbers(
    tmp_path: Path, names: list[str], labels: str
) -> None:
    folder = images(tmp_path)
    if labels == "kit":
        kit(folder)
    else:
        (folder / labels).write_text(LABELS["imagenet_2012_validation_synset_labels.txt"])
    shutil.rmtree(folder / "val")
    for name in names:
        draw(folder / f"val/{name}.JPEG", seed=1)
    with pytest.raises(InputError, match="hold a label per image, 2, but got 5; use the file"):
        load_data("imagenet", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("val.txt", "a 0\nb 1\n", "name the class of every image, but got none for 'ILSVRC2012_v"),
        ("val.txt", LABELS["val.txt"].replace(" 2", " 3"), "from 0 to 2, .* but got 3; write the"),
        ("val_labels.txt", "n01440764\n" * 4, "hold a label per image, 5, but got 4; use the file"),
        ("val_labels.txt", "n01440764\n" * 4 + "cat\n", "by their folders .* but got 'cat'; write"),
        ("val_labels.txt", "1\n" * 5, "by their folders .* but got '1'; write the names"),
        ("val_labels.txt", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_labels_of_imagenet_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, content: str | bytes, why: str
) -> None:
    folder = images(tmp_path)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=why):
        load_data("imagenet", root=tmp_path)


def test_imagenet_without_labels_says_what_is_missing(tmp_path: Path) -> None:
    folder = images(tmp_path)
    with pytest.raises(InputError) as missing:
        load_data("imagenet", root=tmp_path)
    assert str(missing.value) == (
        f"Expected {folder} to say the classes of the 5 images in {folder}/val, but got neither "
        "the development kit (ILSVRC2012_devkit_t12) nor LOC_val_solution.csv or "
        "imagenet_2012_validation_synset_labels.txt or val_labels.csv or val_labels.txt or "
        "val.txt; put one of them there, or name a file of labels: imagenet:labels=FILE."
    )
    given = kit(folder)
    truth = given / "data/ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("1\n2\n7\n1\n1\n")
    with pytest.raises(InputError, match=r"class numbers that .*meta.mat explains, but got '7'"):
        load_data("imagenet", root=tmp_path)
    truth.write_text("1\n2\n")
    with pytest.raises(InputError, match="hold a label per image, 5, but got 2"):
        load_data("imagenet", root=tmp_path)
    (given / "data/meta.mat").write_bytes(b"no such format")
    with pytest.raises(InputError, match=r"meta.mat to be a MATLAB file of version 5, but got a"):
        load_data("imagenet", root=tmp_path)
    shutil.rmtree(folder / "val")
    with pytest.raises(InputError, match="hold a folder val, but got none; unpack ILSVRC2012_img"):
        load_data("imagenet", root=tmp_path)


# -- iNaturalist -----------------------------------------------------------------------------------


def species(root: Path, year: str = "2017", *, same_names: bool = False) -> dict[str, Any]:
    """Write images and lists as iNaturalist has them; return the lists."""
    top = root / "inaturalist"
    folder = "train_val_images" if year == "2017" else f"train_val{year}"
    categories = [
        {"id": 7, "name": "Parus major", "supercategory": "Aves"},
        {"id": 2, "name": "Abies alba", "supercategory": "Plantae"},
        {"id": 5, "name": "Abies alba" if same_names else "Boa", "supercategory": "Reptilia"},
    ]
    made: dict[str, Any] = {}
    number = 0
    for part, of in (("train", [7, 2, 5, 5]), ("val", [2, 7])):
        lists: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
        for category in of:
            number += 1
            name = f"{folder}/group/{category}/{number:032x}.jpg"
            draw(top / name, seed=number)
            lists["images"].append({"id": number, "file_name": name, "width": 8, "height": 8})
            lists["annotations"].insert(
                0, {"id": 100 - number, "image_id": number, "category_id": category}
            )
        made[part] = lists
        (top / f"{part}{year}.json").write_text(json.dumps(lists))
    return made


@pytest.mark.parametrize("year", ["2017", "2018"])
def test_inaturalist_with_its_lists(tmp_path: Path, year: str) -> None:
    made = species(tmp_path, year)
    data = load_data("inaturalist:size=8", root=tmp_path)
    assert data.class_names == ("Abies alba", "Boa", "Parus major")
    assert data.train.ids == [one["file_name"] for one in made["train"]["images"]]
    assert data.train.targets.tolist() == [2, 0, 1, 1]
    assert data.test.targets.tolist() == [0, 2]
    assert data.test.inputs(torch.tensor([1])).shape == (1, 3, 8, 8)


def test_one_of_two_years_is_chosen(tmp_path: Path) -> None:
    species(tmp_path, "2017")
    species(tmp_path, "2018")
    chosen = [load_data(f"inaturalist{rest}", root=tmp_path) for rest in ("", ":year=2018")]
    folders = [str(one.train.ids[0]).partition("/")[0] for one in chosen]
    assert folders == ["train_val_images", "train_val2018"]


def test_species_of_one_name_are_told_apart(tmp_path: Path) -> None:
    species(tmp_path, same_names=True)
    names = load_data("inaturalist", root=tmp_path).class_names
    assert names == ("Plantae/Abies alba/2", "Reptilia/Abies alba/5", "Parus major")


def test_lists_of_inaturalist_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = species(tmp_path)
    top = tmp_path / "inaturalist"

    def refused(part: str, lists: Any, why: str) -> None:
        (top / f"{part}2017.json").write_text(json.dumps(lists))
        with pytest.raises(InputError, match=why):
            load_data("inaturalist", root=tmp_path)
        (top / f"{part}2017.json").write_text(json.dumps(made[part]))

    refused("val", {**made["val"], "annotations": []}, "a category for every image, but got none")
    refused("train", {"images": []}, r"train2017.json to be a list of iNaturalist")
    refused("train", [], r"train2017.json to be a list of iNaturalist")
    odd = [{**one, "category_id": 9} for one in made["val"]["annotations"]]
    refused("val", {**made["val"], "annotations": odd}, "training list, but got 9; use the lists")
    twice = made["train"]["categories"] * 2
    refused("train", {**made["train"], "categories": twice}, "different numbers, but got 2, 5, 7")
    refused("val", {**made["val"], "images": []}, "to list images, but got none")
    with pytest.raises(InputError, match=r"hold train2018.json, but got no such file"):
        load_data("inaturalist:year=2018", root=tmp_path)
    shutil.rmtree(top / "train_val_images")
    with pytest.raises(InputError, match=r"the first image of train2017.json, but got no such"):
        load_data("inaturalist", root=tmp_path)
    (top / "val2017.json").unlink()
    with pytest.raises(InputError, match=r"to hold val2017.json, but got no such file; unpack"):
        load_data("inaturalist", root=tmp_path)


# -- SVHN ------------------------------------------------------------------------------------------


def house_numbers(root: Path, parts: dict[str, int]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    (root / "svhn").mkdir()
    made = {}
    for part, count in parts.items():
        arrays = {
            "X": random.integers(0, 256, (32, 32, 3, count), dtype=np.uint8),
            "y": (np.arange(count, dtype=np.uint8) % 10 + 1).reshape(-1, 1),
        }
        scipy.io.savemat(root / f"svhn/{part}_32x32.mat", arrays, do_compression=True)
        made[part] = arrays
    return made


def test_svhn_is_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    made = house_numbers(tmp_path, {"train": 12, "test": 11, "extra": 1})
    data = load_data("svhn", root=tmp_path)
    assert (data.kind, data.class_names) == ("image", tuple("0123456789"))
    for part, split in (("train", data.train), ("test", data.test)):
        assert isinstance(split, ArraySplit)
        # torchvision.datasets.SVHN: labels % 10 and axes (3, 2, 0, 1), after checking MD5 sums.
        assert np.array_equal(split.all_inputs.numpy(), made[part]["X"].transpose(3, 2, 0, 1))
        assert split.targets.tolist() == [(place + 1) % 10 for place in range(len(split))]
    more = load_data("svhn:extra=yes", root=tmp_path)
    assert (len(more.train), len(more.test)) == (13, 11)
    assert more.fingerprint != data.fingerprint


def test_files_of_svhn_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="put the cropped digits of SVHN there"):
        load_data("svhn", root=tmp_path)
    house_numbers(tmp_path, {"train": 12, "test": 11})
    path = tmp_path / "svhn/test_32x32.mat"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"test_32x32.mat to be a MATLAB file of version 5, but"):
        load_data("svhn", root=tmp_path)
    scipy.io.savemat(path, {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    with pytest.raises(InputError, match=r"X is float64 \[32, 32, 3, 2\], y is \[2\]"):
        load_data("svhn", root=tmp_path)
    scipy.io.savemat(path, {"X": np.zeros((32, 32, 3, 2), "u1")})
    with pytest.raises(InputError, match="it has no y"):
        load_data("svhn", root=tmp_path)
    with pytest.raises(InputError, match="Expected `extra` to be one of no, yes"):
        load_data("svhn:extra=maybe", root=tmp_path)


# -- AG News ---------------------------------------------------------------------------------------

NEWS = [
    ("3", "Wall St. Bears Claw Back", 'Short-sellers, "ultra-cynics", are seeing green again.'),
    ("1", "Caf\u00e9 summit", "Line one\\line two"),
    ("4", 'A "quoted" title', "With, commas"),
    ("2", "Goal", "Late\nwinner"),
]


@pytest.mark.parametrize("folder", ["agnews", "ag_news_csv"])
def test_agnews_as_tables(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    for name in ("train.csv", "test.csv"):
        with (tmp_path / folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(NEWS)
    data = load_data("agnews", root=tmp_path)
    assert isinstance(data.train, TextSplit)
    assert data.train.texts == [f"{title} {text}" for _, title, text in NEWS]
    assert [data.class_names[place] for place in data.train.targets.tolist()] == [
        *("Business", "World", "Sci/Tech", "Sports")
    ]


@pytest.mark.parametrize("row", ["5,a,b", "1,a", "1,a,b,c", '"1","a'])
def test_a_table_of_agnews_that_makes_no_sense_is_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "agnews").mkdir()
    (tmp_path / "agnews/train.csv").write_text(f"1,a,b\n{row}\n")
    with pytest.raises(InputError, match=r"train.csv to be rows of a class from 1 to 4, a title"):
        load_data("agnews", root=tmp_path)
    (tmp_path / "agnews/train.csv").write_text("1,a,b\n")
    with pytest.raises(InputError, match=r"to hold test.csv, but got no such file"):
        load_data("agnews", root=tmp_path)
