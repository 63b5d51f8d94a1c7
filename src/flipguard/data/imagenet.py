"""ImageNet as it is distributed: class folders to learn from, and one flat folder to test on.

The classes of the flat folder are read from the development kit or from a file of labels.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flipguard.data.dataset import DataSet
from flipguard.data.image_folders import (
    Pictures,
    class_folders,
    files_by_class,
    image_names,
    is_labelled,
    load_image_folder,
)
from flipguard.data.matlab import read_mat
from flipguard.data.readers import absent, located, read_bytes, unreadable_file
from flipguard.errors import InputError, listed
from flipguard.specs import Options

# Where the folders train and val are, below the folder of the data set; the last is Kaggle's.
PLACES = ("", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")
TRAIN = ("train", "ILSVRC2012_img_train")
TEST = ("val", "ILSVRC2012_img_val")
KITS = ("ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12/ILSVRC2012_devkit_t12", "devkit")
TRUTH, META = "data/ILSVRC2012_validation_ground_truth.txt", "data/meta.mat"
LABEL_FILES = (
    *("LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt"),
    *("val_labels.csv", "val_labels.txt", "val.txt"),
)
WHAT = "a label per image"


def load_imagenet(options: Options, root: Path) -> DataSet:
    """Read ImageNet from the folder ``imagenet``; its option `labels` names a file of labels."""
    top = root / options.name
    place = next((top / one for one in PLACES if _inside(top / one, TRAIN) is not None), None)
    if place is None:
        raise absent(options.name, top, "put the folders train and val of ImageNet there")
    train, test = _inside(place, TRAIN), _inside(place, TEST)
    assert train is not None  # the place has it
    if test is None:
        raise InputError(
            f"Expected {place} to hold a folder val, but got none; unpack ILSVRC2012_img_val.tar "
            "there, into a folder of that name."
        )
    names = class_folders(train)
    if (train.name, test.name) == ("train", "val") and is_labelled(test, names):
        return load_image_folder(
            place, options, name=options.name, wider=256 / 224, test_folders=("val",)
        )
    given = options.text("labels")
    pictures = Pictures.of(options, wider=256 / 224)
    options.finish()
    files = image_names(entry.name for entry in test.iterdir())
    labels = _labels(files, names, places=(place, *_up_to(place, top)), given=given, test=test)
    return pictures.data_set(
        options.name,
        place,
        names,
        {
            train: files_by_class(place, train),
            test: [
                (f"{test.name}/{file}", label) for file, label in zip(files, labels, strict=True)
            ],
        },
    )


def _inside(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _up_to(place: Path, top: Path) -> Iterator[Path]:
    """Yield the folders above a place, up to the folder of the data set."""
    while place != top:
        place = place.parent
        yield place


def _labels(
    files: Sequence[str],
    names: Sequence[str],
    *,
    places: Sequence[Path],
    given: str | None,
    test: Path,
) -> list[str]:
    """Return the class of each image: from the given file, else the kit, else a known file."""
    if given is not None:
        path = located(given)
        near = (place / path for place in places)
        path = next((one for one in near if one.is_file()), path)
        return _of_file(path, files, names)
    for place in places:
        for kit in KITS:
            if (place / kit / TRUTH).is_file():
                return _of_kit(place / kit, files)
        for name in LABEL_FILES:
            if (place / name).is_file():
                return _of_file(place / name, files, names)
    raise InputError(
        f"Expected {places[-1]} to say the classes of the {len(files):,} images in {test}, but got "
        f"neither the development kit ({KITS[0]}) nor {' or '.join(LABEL_FILES)}; put one of them "
        "there, or name a file of labels: imagenet:labels=FILE."
    )


def _of_kit(kit: Path, files: Sequence[str]) -> list[str]:
    """Return the classes of the images by the development kit, which numbers the classes."""
    truth, meta = kit / TRUTH, kit / META
    try:
        synsets: Any = np.atleast_1d(read_mat(meta, ("synsets",))["synsets"])
        name_of = {int(one["ILSVRC2012_ID"]): str(one["WNID"]) for one in synsets}
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise unreadable_file(meta, "the table of ImageNet's classes", problem) from problem
    numbers = read_bytes(truth, WHAT).decode("ascii", "replace").split()
    odd = [one for one in numbers if not one.isdigit() or int(one) not in name_of]
    if odd:
        raise InputError(
            f"Expected {truth} to hold class numbers that {meta} explains, but got {listed(odd)}; "
            "use both files of one development kit."
        )
    labels = [name_of[int(one)] for one in numbers]
    return _one_each(truth, labels, files)


def _of_file(path: Path, files: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the classes of the images by a file: with file names, or one class per line.

    A class is the name of its folder. In a file with file names it may also be its place among the
    sorted folders, from 0.
    """
    try:
        content = read_bytes(path, WHAT).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise unreadable_file(path, WHAT, problem) from problem
    rows = [_words(line) for line in content.splitlines() if line.strip()]
    if all(len(row) == 1 for row in rows):
        labels = _one_each(path, [row[0] for row in rows], files)
        _known(path, labels, names)
        return labels
    stems = {Path(file).stem for file in files}
    if rows and Path(rows[0][0]).stem not in stems:
        rows = rows[1:]  # the header
    label_of = {Path(row[0]).stem: row[1] for row in rows if len(row) > 1}
    missing = [file for file in files if Path(file).stem not in label_of]
    if missing:
        raise InputError(
            f"Expected {path} to name the class of every image, but got none for {listed(missing)};"
            " use the file of labels that belongs to these images."
        )
    labels = [label_of[Path(file).stem] for file in files]
    if all(label.isdigit() for label in labels) and not set(labels) <= set(names):
        most = max(int(label) for label in labels)
        if most >= len(names):
            raise InputError(
                f"Expected the class numbers in {path} to be from 0 to {len(names) - 1}, the place "
                f"of each class among the {len(names)} sorted folders, but got {most}; write the "
                "names of the folders instead."
            )
        return [names[int(label)] for label in labels]
    _known(path, labels, names)
    return labels


def _words(line: str) -> list[str]:
    """Return the file name and the class of a line; Kaggle writes boxes after the class."""
    cells = next(csv.reader([line])) if "," in line else line.split()
    return [cell.split()[0] for cell in cells[:2] if cell.split()]


def _number(file: str) -> int:
    found = re.search(r"(\d+)$", Path(file).stem)
    return int(found[1]) if found else 0


def _one_each(path: Path, labels: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return the label of each image: by the image's number, from 1, else in their order.

    A subset of the images keeps its file numbers.
    """
    numbers = [_number(file) for file in files]
    if len(set(numbers)) == len(files) and all(1 <= one <= len(labels) for one in numbers):
        return [labels[number - 1] for number in numbers]
    if len(labels) != len(files):
        raise InputError(
            f"Expected {path} to hold {WHAT}, {len(files):,}, but got {len(labels):,}; use the "
            "file of labels that belongs to these images."
        )
    return list(labels)


def _known(path: Path, labels: Sequence[str], names: Sequence[str]) -> None:
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise InputError(
            f"Expected {path} to name classes by their folders ({listed(names)}), but got "
            f"{listed(unknown)}; write the names of the training folders."
        )
