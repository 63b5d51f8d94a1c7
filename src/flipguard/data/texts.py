"""Texts and labels in .jsonl files, plain or packed by gzip: one object per line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    folder = root / "agnews"
    if not is_text_folder(folder):
        raise absent(
            "agnews",
            folder / "train.jsonl.gz",
            "put AG News there as train.jsonl.gz and test.jsonl.gz, lines of "
            '{"text": …, "label": 0 to 3}',
        )
    return _of_folder(folder, "agnews", AGNEWS_CLASSES)


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
