"""Read class scores in pieces: in order, by position, or from a copy on disk."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.errors import InputError, listed
from flipguard.predictions.names import exactly
from flipguard.predictions.table import Predictions, refuse_one_class

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

# Bytes of scores to read at a time: enough to keep both cores busy, little enough to be bounded.
BYTES_PER_READ = 64 << 20
BYTES_PER_ZEROS = 1 << 20


class ScoreReader(ABC):
    """Return rows of scores from first to last."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Rows start..stop, shape (stop - start, classes); `start` never goes back."""


class ArrayReader(ScoreReader):
    """Scores that lie in an array, in memory or mapped from disk, perhaps in another order."""

    def __init__(self, array: Array, positions: IntArray | None = None) -> None:
        self._array = array
        self._positions = positions

    def read(self, start: int, stop: int) -> Array:
        if self._positions is None:
            return self._array[start:stop]
        return self._array[self._positions[start:stop]]


class ColumnReader(ScoreReader):
    """Scores in the columns of a table, streamed in the table's order."""

    def __init__(self, predictions: Predictions) -> None:
        self._batches = score_batches(predictions)
        self._pending: list[Array] = []
        self._at = 0

    def read(self, start: int, stop: int) -> Array:
        if start != self._at:
            raise AssertionError("Scores in columns are read front to back.")
        have = sum(len(piece) for piece in self._pending)
        while have < stop - start:
            self._pending.append(next(self._batches))
            have += len(self._pending[-1])
        rows = self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending)
        self._pending = [rows[stop - start :]]
        self._at = stop
        return rows[: stop - start]


def width(predictions: Predictions) -> int:
    """The number of classes that the scores are of: at least two."""
    classes = _width(predictions)
    column = predictions.scores.list_column if predictions.scores is not None else None
    refuse_one_class(predictions.name, f"column '{column}'", classes)
    return classes


def _width(predictions: Predictions) -> int:
    scores = predictions.scores
    if scores is None:
        raise AssertionError("These predictions have no scores.")
    if scores.array is not None:
        return int(scores.array.shape[1])
    if scores.wide_columns is not None:
        return len(scores.wide_columns)
    column = exactly(str(scores.list_column))
    dtype = predictions.frame.collect_schema()[str(scores.list_column)]
    if isinstance(dtype, pl.Array):
        return int(dtype.shape[0])
    first = predictions.frame.select(column.list.len()).head(1).collect()
    if not first.height:
        raise InputError(f"{predictions.name} has columns but no rows; give at least one row.")
    found = first.item()
    classes = int(found) if found is not None else 0
    if classes == 0:
        raise InputError(
            f"{predictions.name} has no scores in the first row of column '{scores.list_column}'; "
            "give every row one score per class."
        )
    if scores.class_names is not None and len(scores.class_names) != classes:
        raise InputError(
            f"{predictions.name} has {classes:,} scores a row in column '{scores.list_column}' "
            f"but names {len(scores.class_names):,} classes; they must be as many."
        )
    return classes


def reader(predictions: Predictions, positions: IntArray | None, spool: Path) -> ScoreReader:
    """The scores in the order of `positions` (row numbers), or as they are if it is None."""
    scores = predictions.scores
    if scores is None:
        raise AssertionError("These predictions have no scores.")
    if scores.array is not None:
        return ArrayReader(scores.array, positions)
    if positions is None:
        return ColumnReader(predictions)
    return ArrayReader(_spooled(predictions, positions, spool))


@contextmanager
def spool_folder() -> Iterator[Path]:
    """A folder on disk for scores that have to be read in another order than they are stored in."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="flipguard-")
    except OSError as problem:
        raise InputError(
            f"No temporary folder can be made ({problem.strerror or problem}); set TMPDIR to a "
            "folder that you may write to."
        ) from problem
    with folder as name:
        yield Path(name)


def _spooled(predictions: Predictions, positions: IntArray, folder: Path) -> Array:
    """The rows at `positions`, in that order, in a file on disk: columns cannot be jumped about."""
    classes = width(predictions)
    destination = np.full(predictions.height, -1, dtype=np.int64)
    destination[positions] = np.arange(len(positions))
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".scores", delete=False) as file:
        path = Path(file.name)
    out: Array = np.empty((0, classes))
    at = 0
    for batch in score_batches(predictions):
        if at == 0:
            _reserve(path, len(positions) * classes * batch.dtype.itemsize)
            out = np.memmap(path, dtype=batch.dtype, mode="r+", shape=(len(positions), classes))
        rows = destination[at : at + len(batch)]
        out[rows[rows >= 0]] = batch[rows >= 0]
        at += len(batch)
    return out


def _reserve(path: Path, size: int) -> None:
    """Reserve the disk space now: a memory map without space would kill the process silently."""
    try:
        with path.open("r+b", buffering=0) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
                return
            for start in range(0, size, BYTES_PER_ZEROS):
                file.write(bytes(min(BYTES_PER_ZEROS, size - start)))
    except OSError as problem:
        raise InputError(
            f"{path.parent.parent} has no room for a temporary file of {size:,} bytes "
            f"({problem.strerror}), needed because the files list samples in different orders; set "
            "TMPDIR to a folder with more room, or sort the files in the same order."
        ) from problem


def rows_per_read(classes: int) -> int:
    """The number of rows of scores to process at a time."""
    return max(256, BYTES_PER_READ // (4 * classes))


def score_batches(predictions: Predictions) -> Iterator[Array]:
    """All scores, in order, a piece at a time."""
    scores = predictions.scores
    if scores is None:
        raise AssertionError("These predictions have no scores.")
    classes = width(predictions)
    step = rows_per_read(classes)
    if scores.array is not None:
        for start in range(0, len(scores.array), step):
            yield scores.array[start : start + step]
        return
    at = 0
    frame = predictions.frame.select(map(exactly, scores.columns))
    for batch in frame.collect_batches(chunk_size=step, maintain_order=True, engine="streaming"):
        yield score_matrix(predictions, batch, classes, at)
        at += batch.height


def score_matrix(predictions: Predictions, batch: pl.DataFrame, classes: int, at: int) -> Array:
    """One batch of score columns as an array; `at` is the row of the file that it starts at."""
    scores = predictions.scores
    assert scores is not None
    if scores.wide_columns is not None:
        bad = batch.select(pl.any_horizontal(pl.all().is_null())).to_series().arg_max()
        if sum(batch.null_count().row(0)):
            _refuse_row(predictions, at + (bad or 0), "has no score for some class")
        return np.ascontiguousarray(_floating(batch.to_numpy()))
    column = batch[str(scores.list_column)]
    if isinstance(column.dtype, pl.List):
        lengths = column.list.len()
        wrong = lengths.ne_missing(classes)
        if wrong.any():
            found = lengths[wrong.arg_max() or 0]
            text = "no scores" if found is None else f"{found:,} scores"
            _refuse_row(
                predictions,
                at + (wrong.arg_max() or 0),
                f"has {text} in column '{scores.list_column}' where the first row has {classes:,}",
            )
        flat = column.explode()
        if flat.null_count():
            _refuse_row(
                predictions,
                at + (flat.is_null().arg_max() or 0) // classes,
                "has no score for some class",
            )
        return _floating(flat.to_numpy()).reshape(-1, classes)
    if column.null_count():
        _refuse_row(predictions, at + (column.is_null().arg_max() or 0), "has no scores")
    return _floating(column.to_numpy())


def _floating(array: Array) -> Array:
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _refuse_row(predictions: Predictions, row: int, what: str) -> None:
    raise InputError(
        f"{predictions.name} {what}, for {name_of_row(predictions, row)}; "
        "give every row one score per class."
    )


def name_of_row(predictions: Predictions, row: int) -> str:
    """A row by its id, or by its number where there are no ids."""
    if predictions.id is None:
        return place_of_row(predictions, row)
    found = predictions.frame.select(exactly(predictions.id)).slice(row, 1).collect()
    return f"id {listed(found.to_series().to_list())}"


def place_of_row(predictions: Predictions, row: int) -> str:
    """A row, counted from 0, by its number in the file that it is in."""
    for path, frame in predictions.files:
        height = int(frame.select(pl.len()).collect(engine="streaming").item())
        if row < height:
            return f"row {row + 1:,} of {path}"
        row -= height
    return f"row {row + 1:,}"
