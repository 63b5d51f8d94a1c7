"""Which source a user means: a folder, an array, a table, or a column of the predictions."""

from __future__ import annotations

import os
from pathlib import Path

from flipguard.comparison import Comparison
from flipguard.errors import InputError, listed, printable
from flipguard.predictions.read import FORMATS
from flipguard.report.samples.base import Samples
from flipguard.report.samples.pictures import ImageArray, ImageFolder
from flipguard.report.samples.texts import text_column, text_file


def samples_from(source: str | os.PathLike[str], result: Comparison) -> Samples:
    """The samples that `--samples` names."""
    text = os.fspath(source)
    if os.path.isdir(text):
        return ImageFolder(Path(text))
    if os.path.isfile(text):
        suffix = Path(text).suffix.lower()
        if suffix == ".npz":
            return ImageArray(Path(text))
        if suffix in FORMATS or Path(text).suffixes[-2:-1]:
            return text_file(Path(text))
        raise InputError(
            "Expected samples in a folder of images, an .npz, or a table (.csv, .jsonl, .parquet), "
            f"but got {printable(text)}; give one of these, or a column of the predictions."
        )
    sides = () if result.plan is None else (result.plan.new, result.plan.old)
    found = text_column(sides, text)
    if found is not None:
        return found
    columns = list(dict.fromkeys(c for side in sides for c in side.columns))
    raise InputError(
        f"Expected `samples` to be a folder of images, a file, or a column of the predictions, but "
        f"{printable(text, longest=80)} is none of these; columns are {listed(columns, most=8)}."
    )
