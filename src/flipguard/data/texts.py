"""Texts and labels in .jsonl files, plain or packed by gzip, and the tables of AG News."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flipguard.data.dataset import DataSet, TextSplit
from flipguard.data.readers import (
    Label,
    absent,
    class_names_of,
    indices_of,
    packed_or_not,
    read_bytes,
    unreadable_file,
)
from flipguard.data.subsets import part
from flipguard.errors import InputError, listed
from flipguard.specs import Options

WHAT = 'lines of {"text": …, "label": …}'
TRAIN = ("train.jsonl",)
VALIDATION = ("val.jsonl", "validation.jsonl", "valid.jsonl", "dev.jsonl")
TEST = ("test.jsonl", *VALIDATION)
AGNEWS_FOLDERS = ("agnews", "ag_news_csv")  # the second is the name in the archive
AGNEWS_WHAT = "rows of a class from 1 to 4, a title and a description"
AGNEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def load_texts(path: Path, options: Options) -> DataSet:
    """Read a folder with a train and a test file, or split one file by id with a seed."""
    if path.is_dir():
        options.finish()
        return _of_folder(path, path.name)
    test_share, seed = options.share("test", 0.2), options.whole("seed", 0)
    options.finish()
    texts, labels = read_jsonl(path)
    names = class_names_of(labels, where=str(path))
    whole = TextSplit(texts=texts, targets=indices_of(labels, names, where=str(path)))
    tested = part(whole.ids, seed, test_share)
    return DataSet.of(
        name=path.name.removesuffix(".gz").removesuffix(".jsonl"),
        kind="text",
        class_names=names,
        train=whole.subset(~tested),
        test=whole.subset(tested),
    )


def load_agnews(options: Options, root: Path) -> DataSet:
    """Read AG News from a folder ``agnews`` with two files."""
    options.finish()
    folder = next((root / one for one in AGNEWS_FOLDERS if (root / one).is_dir()), None)
    if folder is not None and packed_or_not(folder, "train.csv") is not None:
        return _of_tables(folder)
    if folder is None or not is_text_folder(folder):
        raise absent(
            "agnews",
            root / "agnews" / "train.csv",
            "put AG News there as train.csv and test.csv, or as train.jsonl and test.jsonl with "
            'lines of {"text": …, "label": 0 to 3}, plain or .gz',
        )
    return _of_folder(folder, "agnews", AGNEWS_CLASSES)


def _of_tables(folder: Path) -> DataSet:
    """Read the two tables of Zhang and LeCun: class from 1, title and description."""
    splits = []
    for name in ("train.csv", "test.csv"):
        path = packed_or_not(folder, name)
        if path is None:
            raise InputError(
                f"Expected {folder} to hold {name}, but got no such file; unpack AG News there."
            )
        try:
            content = read_bytes(path, AGNEWS_WHAT).decode("utf-8-sig")
            rows = [row for row in csv.reader(io.StringIO(content, newline=""), strict=True) if row]
        except (UnicodeDecodeError, csv.Error) as problem:
            raise unreadable_file(path, AGNEWS_WHAT, problem) from problem
        numbers = {str(place): place - 1 for place in range(1, len(AGNEWS_CLASSES) + 1)}
        odd = next((row for row in rows if len(row) != 3 or row[0] not in numbers), None)
        if odd is not None or not rows:
            told = listed([",".join(odd)]) if odd is not None else "an empty file"
            raise InputError(f"Expected {path} to be {AGNEWS_WHAT}, but got {told}; copy it again.")
        splits.append(
            TextSplit(
                texts=[f"{title} {description}" for _, title, description in rows],
                targets=torch.tensor([numbers[row[0]] for row in rows]),
            )
        )
    return DataSet.of(
        name="agnews", kind="text", class_names=AGNEWS_CLASSES, train=splits[0], test=splits[1]
    )


def is_text_folder(path: Path) -> bool:
    """Whether a folder has training texts."""
    return packed_or_not(path, *TRAIN) is not None


def _of_folder(folder: Path, name: str, class_names: Sequence[str] | None = None) -> DataSet:
    train, test = packed_or_not(folder, *TRAIN), packed_or_not(folder, *TEST)
    if train is None or test is None:
        missing = "train.jsonl" if train is None else "test.jsonl"
        raise InputError(
            f"Expected {folder} to hold {missing} or {missing}.gz, but got neither; add the file, "
            "or give the path of one file to have it split."
        )
    read = {path: read_jsonl(path) for path in (train, test)}
    names = class_names or class_names_of(read[train][1], where=str(train))
    validation = packed_or_not(folder, *VALIDATION)

    def split(path: Path) -> TextSplit:
        texts, labels = read[path] if path in read else read_jsonl(path)
        return TextSplit(texts=texts, targets=indices_of(labels, names, where=str(path)))

    return DataSet.of(
        name=name,
        kind="text",
        class_names=names,
        train=split(train),
        test=split(test),
        # A validation file without a test file is the test split.
        own_validation=None if validation in (None, test) else partial(split, validation),
    )


def read_jsonl(path: Path) -> tuple[list[str], list[Label]]:
    """Return the texts and labels of a file, in its order, without empty lines."""
    texts: list[str] = []
    labels: list[Label] = []
    try:
        content = read_bytes(path, WHAT).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise unreadable_file(path, WHAT, problem) from problem
    # Not splitlines, because a text may have other line breaks, which JSON keeps.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            text, label = _row(line, f"line {number} of {path}")
            texts.append(text)
            labels.append(label)
    if not texts:
        raise InputError(f"Expected {path} to be {WHAT}, but got an empty file; add samples.")
    return texts, labels


def _row(line: str, where: str) -> tuple[str, Label]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise InputError(
            f"Expected {where} to be one JSON object, but got {listed([line])}; the file may be "
            "truncated or of another format."
        ) from problem
    if not isinstance(row, dict):
        raise InputError(
            f"Expected {where} to be a JSON object, but got {listed([row])}; write "
            '{"text": …, "label": …}.'
        )
    for key in ("text", "label"):
        if key not in row:
            raise InputError(
                f"Expected {where} to hold {key!r}, but got {listed(row) or 'nothing'}; write "
                '{"text": …, "label": …}.'
            )
    text, label = row["text"], row["label"]
    if not isinstance(text, str):
        raise InputError(
            f"Expected 'text' in {where} to be text, but got {listed([text])}; quote it."
        )
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise InputError(
            f"Expected 'label' in {where} to be a whole number or text, but got {listed([label])}; "
            "write a class index or a class name."
        )
    return text, label
