"""Write prediction tables: one format per suffix, in pieces of bounded size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.io.plugins import register_io_source

from flipguard.archives import write_npz
from flipguard.errors import InputError
from flipguard.files import replacing
from flipguard.predictions.arrow_writer import write_arrow
from flipguard.predictions.compression import compressed
from flipguard.predictions.formats import (
    CLASS_NAMES_KEY,
    SEPARATORS,
    TEXT_FORMATS,
    format_of,
)
from flipguard.predictions.names import RECOGNISED, exactly, float_text
from flipguard.predictions.read import name_file_on_error
from flipguard.predictions.scores import (
    ArrayReader,
    ColumnReader,
    ScoreReader,
    rows_per_read,
    score_batches,
    width,
)
from flipguard.predictions.table import (
    OTHER_PREFIXES,
    SCORE_KINDS,
    WIDE_PREFIX,
    Predictions,
    Scores,
)

Array = npt.NDArray[Any]

ROLES = ("id", "target", "label")
# Files of one test set then have row groups of one shape, whatever the pieces they were read in.
MOST_ROWS_PER_PIECE = 1 << 18

# Whole numbers up to here are exact as floats, the only numbers in NumPy that can be missing.
LARGEST_EXACT = 1 << 53
KEPT_BY_NPZ = frozenset(
    {"ids", "targets", "labels", "class_names", "file", "allow_pickle", *ROLES, *SCORE_KINDS}
)


def write_predictions(predictions: Predictions, path: str | os.PathLike[str]) -> None:
    """Write a prediction table in the format of the file's suffix; no partial file is left.

    The file appears whole or stays as it was. Rows pass through in pieces, so that a table larger
    than memory can be converted (not to NPZ, which is made in memory).

    >>> import tempfile
    >>> from flipguard import read_predictions
    >>> table = Predictions.from_arrays(ids=["a", "b"], labels=["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions(table, f"{folder}/new.csv.gz")
    ...     read_predictions(f"{folder}/new.csv.gz").height
    2
    """
    file = Path(path)
    kind, compression = format_of(file)
    table = _Outgoing.of(predictions, kind, file)
    if kind == "npz":
        _write_npz(table, file)
        return
    with replacing(file) as partial, partial.open("wb") as stream:
        _WRITERS[kind](table, stream, compression)


# -- what goes out -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outgoing:
    """A table with the column names of a file: the scores, and all other columns."""

    predictions: Predictions
    frame: pl.LazyFrame
    kind: str
    path: Path

    @classmethod
    def of(cls, predictions: Predictions, kind: str, path: Path) -> _Outgoing:
        """The columns as this format can hold them; raise for types that it cannot hold."""
        if predictions.id is None and kind != "npz":
            raise InputError(
                f"{predictions.name} has no ids, without which {path} could not be joined; give it "
                "ids, or write an NPZ."
            )
        for what, given in (
            ("grades", predictions.correct),
            ("a score of one class", predictions.binary),
        ):
            if given is not None and kind == "npz":
                raise InputError(
                    f"{predictions.name} has {what}, which an NPZ file such as {path} cannot hold; "
                    "write CSV, JSON Lines or Parquet."
                )
        roles = {role: getattr(predictions, role) for role in ROLES}
        roles = {role: column for role, column in roles.items() if column is not None}
        slices = [c for c in predictions.columns if c not in roles.values()]
        _refuse_clashes(predictions, slices, kind, path)
        schema = predictions.frame.collect_schema()
        for name in slices:
            if kind not in ("parquet", "arrow", "jsonl") and not _is_flat(schema[name]):
                raise InputError(
                    f"{predictions.name} has a column '{name}' of type {schema[name]}, which "
                    f"{path} cannot hold; write Parquet or Arrow, or leave the column out."
                )
        columns = [_as_class(c, schema[c], kind).alias(role) for role, c in roles.items()]
        columns += [_as_slice(c, schema[c], kind) for c in slices]
        frame = predictions.frame.select(columns)
        return cls(predictions=predictions, frame=frame, kind=kind, path=path)

    @property
    def scores(self) -> Scores | None:
        return self.predictions.scores

    @property
    def metadata(self) -> dict[str, str]:
        """What a file with metadata stores: the names of the classes, if they have any."""
        names = None if self.scores is None else self.scores.class_names
        return {} if names is None else {CLASS_NAMES_KEY: json.dumps(names)}

    def pieces(self) -> Iterator[pl.DataFrame]:
        """The whole table in order, the scores after the other columns."""
        rows, source, at = MOST_ROWS_PER_PIECE, self._source(), 0
        with name_file_on_error(self.predictions):
            if source is not None:
                rows = min(rows, rows_per_read(width(self.predictions)))
            for piece in _in_pieces(self.frame, rows):
                columns = self._score_columns(source, at, at + piece.height)
                yield piece.hstack(columns)
                at += piece.height
        if at == 0:
            raise InputError(f"{self.predictions.name} is empty; {self.path} is not written.")

    def _source(self) -> ScoreReader | None:
        if self.scores is None:
            return None
        if self.scores.array is not None:
            return ArrayReader(self.scores.array)
        return ColumnReader(self.predictions)

    def _score_columns(self, source: ScoreReader | None, start: int, stop: int) -> list[pl.Series]:
        if source is None or self.scores is None:
            return []
        block, names = source.read(start, stop), self.scores.class_names
        if self.kind in TEXT_FORMATS:
            # Text is read as doubles: a single float is written as the double that equals it.
            block = block.astype(np.float64)
        if self.kind in SEPARATORS or (self.kind == "jsonl" and names is not None):
            prefix = WIDE_PREFIX[self.scores.kind]
            names = names or tuple(str(i) for i in range(block.shape[1]))
            return [pl.Series(prefix + name, block[:, i]) for i, name in enumerate(names)]
        return [pl.Series(self.scores.kind, np.ascontiguousarray(block)).arr.to_list()]


def _refuse_clashes(predictions: Predictions, slices: list[str], kind: str, path: Path) -> None:
    """Raise for a group-by column that would be read back in another role."""
    kept, prefixes = KEPT_BY_NPZ, tuple[str, ...]()
    if kind != "npz":
        scores = predictions.scores
        # Readers look for logits first, so with logits, probabilities are read as plain columns.
        sought = SCORE_KINDS[:1] if scores is not None and scores.kind == "logits" else SCORE_KINDS
        kept = frozenset({*ROLES, *sought})
        prefixes = tuple(p for s in sought for p in (WIDE_PREFIX[s], *OTHER_PREFIXES[s]))
    kept |= {name for role in ("id", "target", "label") for name in RECOGNISED[role]}
    if kind != "npz" and predictions.correct is None and predictions.target is None:
        # Without a target, readers take a column of such a name for grades.
        kept |= {*RECOGNISED["correct"]}
    if predictions.correct is not None:
        # With grades, a target is a column like others.
        kept -= {"target"}
    for name in slices:
        if name in kept or name.startswith(prefixes):
            raise InputError(
                f"{predictions.name} has a further column '{name}', a name that {path} would keep "
                "for the table itself; rename the column, or leave it out."
            )


def _is_flat(dtype: pl.DataType) -> bool:
    return not dtype.is_nested() and dtype not in (pl.Binary, pl.Object)


def _as_slice(column: str, dtype: pl.DataType, kind: str) -> pl.Expr:
    """A column in a type that the format holds."""
    expression = exactly(column)
    # Dictionaries that change from piece to piece are more than an Arrow file can hold.
    plain = _without_categories(dtype)
    if plain != dtype:
        return expression.cast(plain)
    if kind in ("parquet", "arrow"):
        return expression
    if dtype == pl.Duration:
        return expression.dt.to_string("iso")
    if dtype.is_temporal() or dtype.is_decimal():
        return expression.cast(pl.String)
    return expression


def _without_categories(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return pl.String()
    if isinstance(dtype, pl.List):
        return pl.List(_without_categories(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Array):
        return pl.Array(_without_categories(dtype.inner), dtype.size)  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return pl.Struct({f.name: _without_categories(f.dtype) for f in dtype.fields})  # type: ignore[arg-type]
    return dtype


def _as_class(column: str, dtype: pl.DataType, kind: str) -> pl.Expr:
    """An id, target or label, spelled in text as a comparison would spell it."""
    if not dtype.is_float() or kind not in TEXT_FORMATS:
        return _as_slice(column, dtype, kind)
    return float_text(exactly(column)).alias(column)


def _in_pieces(frame: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    """The rows of a frame, `rows` at a time; the last piece may be shorter."""
    pending: list[pl.DataFrame] = []
    have = 0
    for batch in frame.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming"):
        pending.append(batch)
        have += batch.height
        while have >= rows:
            whole = pl.concat(pending)
            yield whole[:rows]
            pending, have = [whole[rows:]], have - rows
    if have:
        yield pl.concat(pending)


# -- formats -----------------------------------------------------------------------------------

_Writer = Callable[[_Outgoing, IO[bytes], str | None], None]


def _separated(separator: str) -> _Writer:
    def write(table: _Outgoing, stream: IO[bytes], compression: str | None) -> None:
        with compressed(stream, compression) as out:
            for i, piece in enumerate(table.pieces()):
                text = piece.write_csv(separator=separator, include_header=i == 0)
                out.write(text.encode())

    return write


def _json_lines(table: _Outgoing, stream: IO[bytes], compression: str | None) -> None:
    with compressed(stream, compression) as out:
        for piece in table.pieces():
            out.write(piece.write_ndjson().encode())


def _parquet(table: _Outgoing, stream: IO[bytes], _: str | None) -> None:
    pieces = table.pieces()
    first = next(pieces)

    def all_pieces(*_: object) -> Iterator[pl.DataFrame]:
        yield first
        yield from pieces

    frame = register_io_source(all_pieces, schema=first.schema)
    try:
        frame.sink_parquet(stream, row_group_size=first.height, metadata=table.metadata)
    except pl.exceptions.ComputeError as problem:
        # Errors of the table itself are InputErrors already; this one is the disk's, which Polars
        # puts last.
        raise OSError(str(problem).rpartition(": ")[2]) from problem


def _arrow(table: _Outgoing, stream: IO[bytes], _: str | None) -> None:
    write_arrow(table.pieces(), stream, table.metadata)


def _write_npz(table: _Outgoing, path: Path) -> None:
    scores, predictions = table.scores, table.predictions
    with name_file_on_error(table.predictions):
        columns = table.frame.collect(engine="streaming").get_columns()
        arrays = {c.name: _npz_array(c, predictions.name, table.path) for c in columns}
        values = None if scores is None else np.concatenate(list(score_batches(predictions)))
    write_npz(
        path,
        ids=arrays.pop("id", None),
        targets=arrays.pop("target", None),
        labels=arrays.pop("label", None),
        logits=values if scores is not None and scores.kind == "logits" else None,
        probabilities=values if scores is not None and scores.kind == "probabilities" else None,
        class_names=predictions.class_names,
        slices=arrays,
    )


def _npz_array(column: pl.Series, name: str, path: Path) -> Array:
    """A column as an array without objects; NumPy has missing numbers, but no missing text."""
    dtype, missing = column.dtype, column.null_count()
    if dtype == pl.Null:
        return np.full(len(column), np.nan)
    if dtype.is_integer() and missing:
        largest = max(abs(int(column.min() or 0)), abs(int(column.max() or 0)))  # type: ignore[arg-type]
        if largest <= LARGEST_EXACT:
            return column.cast(pl.Float64).to_numpy()
    if missing and not dtype.is_float():
        raise InputError(
            f"{name} has no value in column '{column.name}' for {missing:,} rows, which {path} "
            "cannot hold in a column of this type; write Parquet, or leave the column out."
        )
    if dtype == pl.String:
        # Renamed, because Polars looks a column up by its name, and takes some names for patterns.
        if column.alias("text").str.ends_with("\0").any():
            raise InputError(
                f"{name} has text in column '{column.name}' that ends in a NUL character, which "
                f"{path} cannot hold; write Parquet, or correct the text."
            )
        return np.array(column.to_list(), dtype=np.str_)
    return column.to_numpy()


_WRITERS: dict[str, _Writer] = {
    **{kind: _separated(separator) for kind, separator in SEPARATORS.items()},
    "jsonl": _json_lines,
    "parquet": _parquet,
    "arrow": _arrow,
}
