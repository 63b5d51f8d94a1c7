"""What Spark's Python workers do with the rows of one file: make them ready to travel.

Rows travel as whole numbers, doubles and text, because that is what Spark, Arrow and Polars mean
the same by; both ends know the types that these stand for. A worker raises nothing that it
expects: it hands back sentences, and the driver raises one of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from flipguard.engines.classes import Reading, spelled
from flipguard.errors import InputError
from flipguard.predictions.faults import FAULTS, unreadable
from flipguard.predictions.json_lines import parsed_lines
from flipguard.predictions.names import exactly
from flipguard.predictions.read import scan_separated
from flipguard.predictions.scores import score_matrix
from flipguard.predictions.table import Predictions
from flipguard.predictions.text import BOM

Array = npt.NDArray[Any]

SEPARATORS = {"csv": ",", "tsv": "\t"}

ARROW_TYPES = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "array<float>": pa.list_(pa.float32()),
    "array<double>": pa.list_(pa.float64()),
}


# -- types that travel -------------------------------------------------------------------------


def travelling(dtype: pl.DataType) -> pl.DataType:
    """The type in which the values of a type go through Spark.

    >>> travelling(pl.Date()), travelling(pl.Float32()), travelling(pl.Categorical())
    (Int64, Float64, String)
    """
    if dtype.is_float():
        return pl.Float64()
    as_number = dtype.is_integer() or dtype.is_temporal() or dtype == pl.Boolean
    too_wide = dtype in (pl.UInt64, pl.Int128, pl.UInt128)
    return pl.Int64() if as_number and not too_wide else pl.String()


def packed(column: pl.Series) -> pl.Series:
    """A column as it travels."""
    plain = column.to_physical() if column.dtype.is_temporal() else column
    return plain.cast(travelling(column.dtype))


def unpacked(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """A column that has travelled, in its own type again."""
    return (column.cast(pl.Int32) if dtype == pl.Date else column).cast(dtype)


def spark_type(dtype: pl.DataType) -> str:
    """What Spark calls the type in which a type travels."""
    to = travelling(dtype)
    return "bigint" if to == pl.Int64 else "double" if to == pl.Float64 else "string"


def record_batch(fields: dict[str, str], columns: dict[str, pl.Series], height: int) -> Any:
    """Columns under Spark's types; those that are not there are empty."""
    arrays = []
    for name, kind in fields.items():
        to, column = ARROW_TYPES[kind], columns.get(name)
        arrays.append(pa.nulls(height, to) if column is None else column.to_arrow().cast(to))
    return pa.RecordBatch.from_arrays(arrays, names=list(fields))


# -- rows of one file --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRows:
    """The rows of one file as they travel: the id in the common spelling, all else as it is.

    `side` is the file without its rows, and `columns` those that the counting reads beside the id
    and the scores.
    """

    index: int
    side: Predictions
    columns: tuple[str, ...]
    ids: pl.DataType
    id_reading: Reading
    format: str | None
    width: int = 0
    score_type: str = "double"

    @property
    def nameless(self) -> bool:
        """Whether nothing but its scores, which name no class, tells what the model says."""
        side = self.side
        return side.scores is not None and side.class_names is None and side.label is None

    @property
    def schema(self) -> pl.Schema:
        """Every column of the file."""
        return self.side.frame.collect_schema()

    @property
    def read_columns(self) -> list[str]:
        """The columns to read from the file."""
        scores = self.side.scores.columns if self.side.scores is not None else []
        return list(dict.fromkeys([str(self.side.id), *self.columns, *scores]))

    @property
    def _read(self) -> list[pl.Expr]:
        return [exactly(name) for name in self.read_columns]

    @property
    def fields(self) -> dict[str, str]:
        """The columns that travel, and what Spark calls their types."""
        fields = {"id": spark_type(self.ids), f"problem{self.index}": "string"}
        for j, column in enumerate(self.columns):
            fields[f"side{self.index}_{j}"] = spark_type(self.schema[column])
        if self.side.scores is not None:
            fields[f"scores{self.index}"] = f"array<{self.score_type}>"
        return fields

    def from_columns(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Rows of a columnar file, in the columns that Spark has read."""
        types = {name: self.schema[name] for name in self.read_columns}
        for batch in batches:
            yield self._travelling(partial(_typed, batch, types))

    def from_lines(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Rows of a text file, in (line, start of its part of the file) from Spark."""
        header_seen = self.format not in SEPARATORS
        for batch in batches:
            lines: list[bytes] = batch.column(0).to_pylist()
            if not header_seen:
                # The header is the first line that says anything, of the part that starts at 0.
                starts = batch.column(1).to_pylist()
                first = enumerate(line.removeprefix(BOM) for line in lines)
                told = (at for at, line in first if starts[at] == 0 and line.strip(self._blanks))
                header = next(told, None)
                if header is not None:
                    header_seen = True
                    del lines[header]
            lines = [line for line in lines if line.strip(self._blanks)]
            if lines:
                yield self._travelling(partial(self._parsed, lines))

    @property
    def _blanks(self) -> bytes:
        """What a line consists of that is no row: in separated text, blanks are values."""
        return b"\r\n" if self.format in SEPARATORS else b" \t\r\n"

    def from_frames(self, frames: Iterable[tuple[pl.DataFrame, Array | None]]) -> Iterator[Any]:
        """Rows that the local reader has read, with their scores where these lie apart."""
        for frame, scores in frames:
            yield self._travelling(partial(_same, frame), scores)

    def _parsed(self, lines: list[bytes]) -> pl.DataFrame:
        text = b"".join(lines)
        if self.format == "jsonl":
            plain = [name for name, dtype in self.schema.items() if dtype == pl.String]
            truths = [name for name, dtype in self.schema.items() if dtype == pl.Boolean]
            rows = pl.Series([line.decode() for line in lines])
            return parsed_lines(rows, self.schema, plain, truths).select(self._read)
        # The driver has looked at every quotation mark: those that pair off in no line enclose a
        # line break.
        if b'"' in text and any(line.count(b'"') % 2 for line in lines):
            raise InputError(
                f"{self.side.name} has text with a line break in it, and Spark reads text files "
                "line by line; write Parquet, or use `engine='local'`."
            )
        separator, names = SEPARATORS[str(self.format)], self.schema.names()
        frame = pl.DataFrame(schema=dict.fromkeys(names, pl.String))
        header = frame.write_csv(separator=separator).encode()
        table = scan_separated(io.BytesIO(header + text), separator, names)
        return table.select(self._read).collect()

    def _travelling(self, read: Callable[[], pl.DataFrame], scores: Array | None = None) -> Any:
        """One batch as it travels; if it cannot be read, one row that says why."""
        try:
            return self._batch(read(), scores)
        except FAULTS as problem:
            told = str(unreadable(self.side.name, problem))
        except InputError as problem:
            told = str(problem)
        return record_batch(self.fields, {f"problem{self.index}": pl.Series([told])}, 1)

    def _batch(self, frame: pl.DataFrame, scores: Array | None) -> Any:
        side = replace(self.side, frame=frame.lazy())
        spelling = spelled(str(side.id), side, self.ids, self.id_reading)
        ids = frame.select(spelling.alias("id")).to_series()
        columns = {"id": packed(ids)}
        for j, column in enumerate(self.columns):
            columns[f"side{self.index}_{j}"] = packed(frame[column])
        if side.scores is not None:
            if scores is None:
                scores = score_matrix(
                    side, frame.select(map(exactly, side.scores.columns)), self.width, 0
                )
            columns[f"scores{self.index}"] = pl.Series(np.ascontiguousarray(scores)).arr.to_list()
        return record_batch(self.fields, columns, frame.height)


def _same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def _typed(batch: Any, types: dict[str, pl.DataType]) -> pl.DataFrame:
    frame = pl.DataFrame(batch)
    frame.columns = list(types)
    return frame.cast(types)  # type: ignore[arg-type]
