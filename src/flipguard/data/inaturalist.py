"""iNaturalist 2017 and 2018 as they are distributed: folders of images, and lists in JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flipguard.data.dataset import DataSet
from flipguard.data.image_folders import Labelled, Pictures, load_image_folder
from flipguard.data.readers import absent, read_bytes, unreadable_file
from flipguard.errors import InputError, listed
from flipguard.specs import Options

YEARS = ("2017", "2018")
WIDER = 256 / 224
WHAT = "a list of iNaturalist: images, annotations and categories"


def load_inaturalist(options: Options, root: Path) -> DataSet:
    """Read iNaturalist from its folder; the option `year` chooses one of several lists."""
    top = root / options.name
    if not top.is_dir():
        raise absent(
            options.name,
            top,
            "put the folders of images and the lists train2017.json and val2017.json there, or "
            "those of 2018",
        )
    lists = [year for year in YEARS if (top / f"train{year}.json").is_file()]
    year = options.one_of("year", lists[0] if lists else "", YEARS)
    if not year:
        # The test folder has no labels.
        return load_image_folder(
            top, options, name=options.name, wider=WIDER, test_folders=("val",)
        )
    if year not in lists or not (top / f"val{year}.json").is_file():
        missing = f"{'val' if year in lists else 'train'}{year}.json"
        raise InputError(
            f"Expected {top} to hold {missing}, but got no such file; unpack the archive of "
            f"lists of iNaturalist {year} there."
        )
    pictures = Pictures.of(options, wider=WIDER)
    options.finish()
    paths = [top / f"{part}{year}.json" for part in ("train", "val")]
    train, test = (_list(path) for path in paths)
    names = _class_names(train, paths[0])
    parts = {path: _rows(one, names, path) for path, one in zip(paths, (train, test), strict=True)}
    first = top / parts[paths[0]][0][0]
    if not first.is_file():
        raise InputError(
            f"Expected {first}, the first image of {paths[0].name}, but got no such file; unpack "
            f"the images of iNaturalist {year} in {top}."
        )
    return pictures.data_set(options.name, top, list(names.values()), parts)


def _list(path: Path) -> Mapping[str, list[dict[str, Any]]]:
    try:
        found = json.loads(read_bytes(path, WHAT))
        for table, keys in (
            ("images", ("id", "file_name")),
            ("annotations", ("image_id", "category_id")),
            ("categories", ("id", "name")),
        ):
            for row in found[table]:
                for key in keys:
                    row[key]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise unreadable_file(path, WHAT, problem) from problem
    lists: Mapping[str, list[dict[str, Any]]] = found
    return lists


def _class_names(lists: Mapping[str, list[dict[str, Any]]], path: Path) -> dict[int, str]:
    """Return the name of each category, by number; duplicate names get their group and number."""
    rows = sorted(lists["categories"], key=lambda row: row["id"])
    count = Counter(str(row["name"]) for row in rows)
    names = {
        row["id"]: str(row["name"])
        if count[str(row["name"])] == 1
        else f"{row.get('supercategory', '')}/{row['name']}/{row['id']}"
        for row in rows
    }
    if len(names) < len(rows):
        again = [
            number for number, often in Counter(row["id"] for row in rows).items() if often > 1
        ]
        raise InputError(
            f"Expected the categories of {path} to have different numbers, but got "
            f"{listed(again)} more than once; copy the list again."
        )
    return names


def _rows(
    lists: Mapping[str, list[dict[str, Any]]], names: Mapping[int, str], path: Path
) -> Labelled:
    """Return the path and class of each image of a list, in its order."""
    category = {row["image_id"]: row["category_id"] for row in lists["annotations"]}
    unlabelled = [row["file_name"] for row in lists["images"] if row["id"] not in category]
    if unlabelled:
        raise InputError(
            f"Expected {path} to have a category for every image, but got none for "
            f"{listed(unlabelled)}; the lists of test images have none, so use train and val."
        )
    unknown = sorted({one for one in category.values() if one not in names})
    if unknown:
        raise InputError(
            f"Expected the categories of {path} to be among those of the training list, but got "
            f"{listed(unknown)}; use the lists of one year."
        )
    if not lists["images"]:
        raise InputError(f"Expected {path} to list images, but got none; copy the list again.")
    return [(row["file_name"], names[category[row["id"]]]) for row in lists["images"]]
