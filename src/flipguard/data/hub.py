"""Data sets that the `datasets` library reads: a name or a path after ``hf:``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flipguard.data.dataset import ArraySplit, DataSet, Split, TextSplit
from flipguard.data.readers import Label, as_pixels, class_names_of, indices_of, located
from flipguard.data.subsets import part
from flipguard.errors import InputError, listed
from flipguard.specs import Options

TEXT, IMAGE, LABEL = (
    ("text", "sentence", "content"),
    ("image", "img"),
    ("label", "labels", "target"),
)
TEST = ("test", "validation", "val", "valid", "dev")


def load_hub(place: str, options: Options) -> DataSet:
    """Read one text or image column and one label column; a single table is split by id."""
    column, label_column = options.text("column"), options.text("label")
    size = options.whole("size", 224, least=1)
    test_share, seed = options.share("test", 0.2), options.whole("seed", 0)
    options.finish()
    tables, of_validation = _tables(place)
    first = tables[0]
    label = _column(first, label_column, LABEL, "label", place)
    wanted = _column(first, column, TEXT + IMAGE, "column", place)
    given = getattr(first.features[label], "names", None)
    names = given or class_names_of(_labels(first, label, place), where=place)
    splits = [_split(table, wanted, label, names, size, place) for table in tables]
    if len(splits) == 1:
        tested = part(splits[0].ids, seed, test_share)
        splits = [splits[0].subset(~tested), splits[0].subset(tested)]
    own = partial(_split, of_validation, wanted, label, names, size, place)
    return DataSet.of(
        name=Path(place).name,
        kind="text" if isinstance(splits[0], TextSplit) else "image",
        class_names=names,
        train=splits[0],
        test=splits[1],
        own_validation=None if of_validation is None else own,
    )


def _tables(place: str) -> tuple[list[Any], Any]:
    """Return the training and the test table, or one table of both, and the validation table."""
    try:
        library = importlib.import_module("datasets")
    except ImportError as problem:
        raise InputError(
            f"hf:{place} needs the package datasets, which is not installed; install it with: "
            "pip install datasets."
        ) from problem
    path = located(place)
    saved = (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()
    try:
        found = library.load_from_disk(str(path)) if saved else library.load_dataset(place)
    # The library raises various exceptions for what it cannot find, read or reach.
    except Exception as problem:
        why = " ".join(str(problem).split()).rstrip(".")
        raise InputError(
            f"Expected `hf:{place}` to be a data set that the datasets library loads, but got "
            f"{type(problem).__name__} ({why}); check the name or the path."
        ) from problem
    if not isinstance(found, dict):
        return [found], None
    train = found.get("train")
    others = [name for name in TEST if name in found]
    if train is None:
        raise InputError(
            f"Expected `hf:{place}` to have a split 'train', but got {listed(found)}; give a data "
            "set with one."
        )
    # A validation table without a test table is the test split.
    validation = found[others[1]] if len(others) > 1 else None
    return [train, *(found[name] for name in others[:1])], validation


def _column(table: Any, asked: str | None, usual: Sequence[str], key: str, place: str) -> str:
    columns = list(table.column_names)
    found = next((name for name in ([asked] if asked else usual) if name in columns), None)
    if found is None:
        raise InputError(
            f"Expected `hf:{place}` to have a column {' or '.join([asked] if asked else usual)}, "
            f"but got {listed(columns)}; name it with the option {key}=…."
        )
    return found


def _labels(table: Any, label: str, place: str) -> list[Label]:
    labels: list[Label] = list(table[label])
    invalid = [one for one in labels if isinstance(one, bool) or not isinstance(one, int | str)]
    if invalid:
        raise InputError(
            f"Expected the column {label!r} of hf:{place} to be whole numbers or text, but got "
            f"{listed(invalid)}; name another with the option label=…."
        )
    return labels


def _split(
    table: Any, column: str, label: str, names: Sequence[str], size: int, place: str
) -> Split:
    targets = indices_of(_labels(table, label, place), names, where=f"hf:{place}")
    values = table[column]
    first = values[0] if len(values) else ""
    if isinstance(first, str):
        return TextSplit(texts=[str(value) for value in values], targets=targets)
    if not hasattr(first, "convert"):
        raise InputError(
            f"Expected the column {column!r} of hf:{place} to be text or images, but got "
            f"{type(first).__name__}; name another with the option column=…."
        )
    return ArraySplit(inputs=_pixels(values, size), targets=targets)


def _pixels(values: Sequence[Any], size: int) -> Tensor:
    images = torch.empty((len(values), 3, size, size), dtype=torch.uint8)
    for place, image in enumerate(values):
        images[place] = as_pixels(image, size=size, resize=size)
    return images
