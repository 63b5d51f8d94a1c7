"""Reading prediction tables: one format per suffix, one lazy table out of each."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import polars as pl

from flipguard.archives import first_sentence
from flipguard.errors import InputError, listed
from flipguard.predictions.arrow_footer import read_arrow_footer
from flipguard.predictions.binary import BinaryScore, binary_score
from flipguard.predictions.compression import DAMAGE
from flipguard.predictions.formats import (
    CLASS_NAMES_KEY,
    SEPARATORS,
    format_of,
)
from flipguard.predictions.joined_files import (
    FileTable,
    joined_arrays,
    joined_tables,
    refuse_other_columns,
)
from flipguard.predictions.json_kinds import merged_shapes
from flipguard.predictions.json_lines import scan_json_lines, survey_lines
from flipguard.predictions.names import exactly
from flipguard.predictions.npz import npz_predictions
from flipguard.predictions.parquet_footer import column_names, read_parquet_footer
from flipguard.predictions.side_files import FileRows, GivenPath, SideFiles, files_of_side
from flipguard.predictions.table import SCORE_KINDS, Predictions, wide_columns, with_roles
from flipguard.predictions.text import FormatError, check_separated, refuse_doubles
from flipguard.run_document import is_run, predictions_of, run_name

# The words of Polars for text in a column of scores, and the first such text.
NO_NUMBER = re.compile(
    r"conversion from `str` to `f64` failed in column '(.*?)' for \d+ out of \d+ values: "
    r'\["(.*?)"(?:, "|\]|, …)',
    re.DOTALL,
)

FAULTS: tuple[type[BaseException], ...] = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    UnicodeDecodeError,
    FormatError,
    *DAMAGE,
)


def read_predictions(
    path: GivenPath | Sequence[GivenPath],
    *,
    id: str | None = None,
    target: str | None = None,
    label: str | None = None,
    correct: str | None = None,
    positive_score: str | None = None,
    threshold: float | None = None,
    positive: object = None,
) -> Predictions:
    """Open a prediction table by its suffix; rows are read when a comparison needs them.

    CSV, TSV and JSON Lines (also ``.gz`` and ``.zst``), Parquet, Arrow/Feather, and NPZ. The folder
    of a finished run means its predictions on the test set.

    Several files are one table: a list of paths, a pattern such as ``old/*.parquet``, or a folder
    that holds only files called ``part…``. They must have the same columns.

    `id`, `target` and `label` name the columns where they are not called so. `correct` names a
    column that says which rows are right, for graded answers. `positive_score` names a column with
    one score per row, which is of the class `positive` if its score is at least `threshold`.
    """
    several, binary = files_of_side(path), binary_score(positive_score, threshold, positive)
    if several is not None:
        asked = {"id": id, "target": target, "label": label, "correct": correct}
        return _read_several(several, binary, **asked)
    assert isinstance(path, str | os.PathLike)
    file = Path(path)
    if is_run(file):
        _refuse_grades(path, correct, binary)
        predictions = npz_predictions(predictions_of(file), id=id, target=target, label=label)
        return replace(predictions, name=run_name(file))
    if _is_npz(file):
        _refuse_grades(path, correct, binary)
        return npz_predictions(file, id=id, target=target, label=label)
    roles = _columns_of_roles(id=id, target=target, label=label, correct=correct)
    frame, class_names = scan_table(file, roles)
    return with_roles(
        frame,
        name=str(path),
        id=id,
        target=target,
        label=label,
        correct=correct,
        binary=binary,
        class_names=class_names,
        path=file,
    )


def _columns_of_roles(**given: str | None) -> frozenset[str]:
    """Return the columns of ids, classes and grades, in which a value must be plain."""
    if given["correct"] is None:
        del given["correct"]
    return frozenset(usual if name is None else name for usual, name in given.items())


def _read_several(
    several: SideFiles, binary: BinaryScore | None, **asked: str | None
) -> Predictions:
    """Return the predictions of several files as those of one."""
    kind, _ = format_of(several.paths[0])
    if kind == "npz":
        _refuse_grades(several.name, asked.pop("correct"), binary)
        parts = []
        for path in several.paths:
            _must_be_a_file(path)
            parts.append(npz_predictions(path, **asked))
        return joined_arrays(parts, several)
    roles = _columns_of_roles(**asked)
    files = _json_files(several, roles) if kind == "jsonl" else _tables(several, roles)
    if kind != "jsonl":
        refuse_other_columns(files)
    frame, class_names = joined_tables(files)
    rows = tuple(FileRows(file.path, file.frame) for file in files)
    found = with_roles(
        frame, name=several.name, class_names=class_names, path=None, binary=binary, **asked
    )
    if kind == "jsonl":
        # A key may be left out in any line, and so in all lines of a file.
        scores = found.scores.columns if found.scores is not None else []
        if binary is not None:
            scores = [binary.column]
        used = [found.id, found.target, found.label, found.correct, *scores]
        refuse_other_columns(files, {column for column in used if column is not None})
    return replace(found, files=rows)


def _tables(several: SideFiles, roles: frozenset[str]) -> list[FileTable]:
    files = []
    for path in several.paths:
        frame, class_names = scan_table(path, roles)
        columns = tuple(frame.collect_schema().names())
        files.append(FileTable(path=path, frame=frame, columns=columns, class_names=class_names))
    return files


def _json_files(several: SideFiles, roles: frozenset[str]) -> list[FileTable]:
    """Return files of JSON Lines; the type of a column is decided over all of them."""
    surveys = []
    for path in several.paths:
        _must_be_a_file(path)
        with _opening(path):
            surveys.append(survey_lines(path, roles))
    shapes = merged_shapes(survey.shapes for survey in surveys)
    files = []
    for survey in surveys:
        with _opening(survey.path):
            frame = survey.scanned(shapes)
            frame.collect_schema()
        files.append(FileTable(path=survey.path, frame=frame, columns=tuple(survey.shapes)))
    return files


def _refuse_grades(
    path: str | os.PathLike[str], correct: str | None, binary: BinaryScore | None
) -> None:
    found = {
        "correct": (correct, "grades"),
        "positive_score": (binary, "scores of one class"),
    }
    for argument, (given, what) in found.items():
        if given is not None:
            raise InputError(
                f"{path} has predictions in an NPZ file, which has no column of {what}; leave out "
                f"`{argument}=`, or write the table as CSV, JSON Lines or Parquet."
            )


def scan_table(path: Path, roles: frozenset[str]) -> tuple[pl.LazyFrame, list[str] | None]:
    """The columns of a file of any format but NPZ, checked, and the class names stored in it.

    The one way in for every table that a person gives us. `roles` are the columns of ids and
    classes, in which a value must be one name or one number.
    """
    _must_be_a_file(path)
    kind, _ = format_of(path)
    with _opening(path):
        frame, class_names = _LAZY[kind](path, roles)
        frame.collect_schema()
    return frame, class_names


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Name the file if it cannot be opened as a table."""
    try:
        yield
    except pl.exceptions.NoDataError as problem:
        raise InputError(
            f"{path} is empty; expected a header and at least one row of predictions."
        ) from problem
    except FAULTS as problem:
        raise unreadable(str(path), problem) from problem


def _is_npz(path: Path) -> bool:
    _must_be_a_file(path)
    return format_of(path)[0] == "npz"


def _must_be_a_file(path: Path) -> None:
    # Not the methods of `Path`, which raise where a name is longer than any file's could be.
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist; check the path.")
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder, not a file of predictions; name the file in it.")
    if not os.path.isfile(path):
        raise InputError(
            f"{path} is no regular file but a pipe or a device, and flipguard reads a file more "
            "than once; save it to a file first."
        )
    if re.search("[\ud800-\udfff]", str(path)):
        raise InputError(f"{str(path)!a} has a name that is no valid text; rename the file.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; expected a header and at least one row of predictions.")


# A reader takes the file, and the columns that hold ids and classes.
Reader = Callable[[Path, frozenset[str]], tuple[pl.LazyFrame, list[str] | None]]


def _separated(separator: str) -> Reader:
    def read(path: Path, _roles: frozenset[str]) -> tuple[pl.LazyFrame, None]:
        found = check_separated(path, separator)
        frame = scan_separated(path, separator, found.names)
        if found.blank_lines:
            # csv skips blank lines; Polars returns a row of nulls, which no other line gives.
            frame = frame.filter(pl.any_horizontal(pl.all().is_not_null()))
        return frame, None

    return read


def scan_separated(source: Path | IO[bytes], separator: str, names: list[str]) -> pl.LazyFrame:
    """A table of separated text; scores are read as numbers, everything else as text."""
    # Everything is read as text: the id "007" must not become 7.
    frame = pl.scan_csv(source, separator=separator, infer_schema=False, glob=False)
    # Polars leaves quotation marks in a header as they are written; those without a name it names.
    found = frame.collect_schema().names()
    frame = frame.rename({a: b for a, b in zip(found, names, strict=True) if b and a != b})
    wide = [c for kind in SCORE_KINDS for c in wide_columns(kind, names, str(source))[1]]
    lists = [c for c in names if c in SCORE_KINDS]
    numbers = [exactly(c).cast(pl.Float64) for c in wide]
    numbers += [_numbers_in(exactly(c)).alias(c) for c in lists]
    return frame.with_columns(numbers)


def _numbers_in(text: pl.Expr) -> pl.Expr:
    """Lists of numbers as JSON writes them; Polars would take true for 1."""
    text = pl.when(~text.str.contains_any(["true", "false"])).then(text)
    return text.str.json_decode(pl.List(pl.Float64))


def _json_lines(path: Path, roles: frozenset[str]) -> tuple[pl.LazyFrame, None]:
    return scan_json_lines(path, roles), None


# -- columnar files ----------------------------------------------------------------------------


def _parquet(path: Path, _roles: frozenset[str]) -> tuple[pl.LazyFrame, list[str] | None]:
    footer = read_parquet_footer(path)
    refuse_doubles(path, [] if footer is None else column_names(footer))
    with without_panic_text():
        frame = pl.scan_parquet(path, glob=False)
        frame.collect_schema()
        metadata = pl.read_parquet_metadata(path)
    return frame, _stored_class_names(path, metadata.get(CLASS_NAMES_KEY))


def _arrow(path: Path, _roles: frozenset[str]) -> tuple[pl.LazyFrame, list[str] | None]:
    names, metadata = read_arrow_footer(path)
    refuse_doubles(path, names)
    with without_panic_text():
        frame = pl.scan_ipc(path, glob=False)
        frame.collect_schema()
    return frame, _stored_class_names(path, metadata.get(CLASS_NAMES_KEY))


@contextmanager
def without_panic_text() -> Iterator[None]:
    """Discard what Rust prints about a panic while a schema is read.

    Rust writes to file descriptor 2, which the whole process shares: for that moment, what other
    threads write to standard error is lost too.
    """
    try:
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except (OSError, AttributeError):
        # There is no standard error to keep clean.
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _stored_class_names(path: Path, stored: str | None) -> list[str] | None:
    if stored is None:
        return None
    try:
        names = json.loads(stored)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str | int | float) for n in names):
        raise InputError(
            f"{path} has {listed([stored])} as '{CLASS_NAMES_KEY}' in "
            "its metadata, where a JSON list of class names is expected; correct it, or leave it "
            "out."
        )
    return [str(name) for name in names]


_LAZY: dict[str, Reader] = {
    **{kind: _separated(separator) for kind, separator in SEPARATORS.items()},
    "jsonl": _json_lines,
    "parquet": _parquet,
    "arrow": _arrow,
}


# -- what goes wrong ---------------------------------------------------------------------------


def unreadable(name: str, problem: BaseException) -> InputError:
    """The error for a file that the reader of its format cannot read."""
    no_number = NO_NUMBER.search(str(problem))
    if no_number:
        column, value = no_number.groups()
        return InputError(
            f"{name} has {listed([value])} in score column '{column}', where a number is expected; "
            "correct it (decimals are written with a point, not a comma), leave the row out, or "
            "rename the column if it is no score."
        )
    text = first_sentence(problem)
    text = text if len(text) <= 160 else text[:159] + "…"
    return InputError(
        f"{name} cannot be read ({text}); it may be truncated, or its suffix may not match its "
        "format."
    )


@contextmanager
def name_file_on_error(source: Predictions | str) -> Iterator[None]:
    """Name the file if reading it fails."""
    try:
        yield
    except FAULTS as problem:
        if not isinstance(source, str):
            for path, frame in source.files:
                with name_file_on_error(str(path)):
                    _read_all(frame)
        name = source if isinstance(source, str) else source.name
        raise unreadable(name, problem) from problem


@contextmanager
def name_any_file_on_error(sides: Iterable[Predictions]) -> Iterator[None]:
    """If a query over several files fails, read each file alone to find the one at fault."""
    try:
        yield
    except FAULTS:
        for side in sides:
            with name_file_on_error(side):
                _read_all(side.frame)
        raise


def _read_all(frame: pl.LazyFrame) -> None:
    frame.select(pl.all().null_count()).collect(engine="streaming")
