"""The code of Spark's Python workers: prepare the rows of one file, and count paired rows."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from flipguard.engines import local
from flipguard.engines.classes import Reading, spelled
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import COLUMNS, LABELS, TARGET, CountingPlan, group_column
from flipguard.errors import InputError
from flipguard.predictions.formats import SEPARATORS
from flipguard.predictions.json_lines import parsed_lines
from flipguard.predictions.names import exactly
from flipguard.predictions.read import FAULTS, scan_separated, unreadable
from flipguard.predictions.scores import rows_per_read, score_matrix
from flipguard.predictions.table import Predictions
from flipguard.predictions.text import BOM

Array = npt.NDArray[Any]


ARROW_TYPES = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "array<float>": pa.list_(pa.float32()),
    "array<double>": pa.list_(pa.float64()),
}

IDS_TO_NAME = 3
# More rows at a time would not make counting labels faster.
MOST_ROWS_AT_A_TIME = 200_000


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


def to_spark(column: pl.Series) -> pl.Series:
    """A column as it travels."""
    plain = column.to_physical() if column.dtype.is_temporal() else column
    return plain.cast(travelling(column.dtype))


def from_spark(column: pl.Series, dtype: pl.DataType) -> pl.Series:
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
class SparkSide:
    """The rows of one file as sent through Spark: ids in the common spelling, the rest unchanged.

    `side` is the file without its rows, and `columns` are the columns that the counting reads in
    addition to the id and the scores.
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
        """Rows of text files, in (line, start of its part of the file, file) from Spark."""
        headers_seen: set[str] = set()
        for batch in batches:
            lines: list[bytes] = batch.column(0).to_pylist()
            if self.format in SEPARATORS:
                starts, files = batch.column(1).to_pylist(), batch.column(2).to_pylist()
                # The header of a file is the first line that says anything, of the part at 0.
                headers = []
                for at, line in enumerate(lines):
                    if starts[at] or files[at] in headers_seen:
                        continue
                    if line.removeprefix(BOM).strip(self._blanks):
                        headers_seen.add(files[at])
                        headers.append(at)
                for at in reversed(headers):
                    del lines[at]
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
            text = str(unreadable(self.side.name, problem))
        except InputError as problem:
            text = str(problem)
        return record_batch(self.fields, {f"problem{self.index}": pl.Series([text])}, 1)

    def _batch(self, frame: pl.DataFrame, scores: Array | None) -> Any:
        side = replace(self.side, frame=frame.lazy())
        spelling = spelled(str(side.id), side, self.ids, self.id_reading)
        ids = frame.select(spelling.alias("id")).to_series()
        columns = {"id": to_spark(ids)}
        for j, column in enumerate(self.columns):
            columns[f"side{self.index}_{j}"] = to_spark(frame[column])
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


@dataclass(slots=True)
class Findings:
    """Findings in addition to the counts: numbers of rows, and problems to raise."""

    numbers: Counter[str] = field(default_factory=Counter)
    ids: dict[str, list[Any]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def see(self, what: str, ids: pl.Series) -> None:
        """Counts rows, and keeps the first of their ids."""
        if len(ids):
            self.numbers[what] += len(ids)
            self._keep(what, ids.drop_nulls().sort().head(IDS_TO_NAME).to_list())

    def only_in(self, have: int, lack: int) -> tuple[list[Any], int]:
        """The first ids that one side has and another lacks, and their number."""
        what = f"only{have}lacks{lack}"
        return self.ids.get(what, []), self.numbers[what]

    def add(self, other: Findings) -> None:
        """Add the findings of another worker."""
        self.numbers.update(other.numbers)
        self.unreadable = sorted({*self.unreadable, *other.unreadable})
        self.problems = sorted({*self.problems, *other.problems})
        for what, ids in other.ids.items():
            self._keep(what, ids)
        for model, names in other.names.items():
            self.names[model] = sorted({*self.names.get(model, []), *names})

    def _keep(self, what: str, ids: list[Any]) -> None:
        self.ids[what] = sorted([*self.ids.get(what, []), *ids])[:IDS_TO_NAME]

    def to_json(self, worker: int) -> str:
        """As text; no two workers write the same."""
        found = [self.numbers, self.ids, self.names, self.unreadable, self.problems]
        return json.dumps([worker, *found])

    @classmethod
    def from_json(cls, text: str) -> Findings:
        """The findings of one worker."""
        _, numbers, *rest = json.loads(text)
        return cls(Counter(numbers), *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCounter:
    """Counts rows that stand side by side, by the local engine, some at a time."""

    plan: CountingPlan
    sides: tuple[SparkSide, ...]
    keys: dict[str, pl.DataType]

    @property
    def fields(self) -> dict[str, str]:
        """The columns of the counts, and what Spark calls their types."""
        fields = {"findings": "string", "table_number": "bigint"}
        fields |= {f"key{j}": spark_type(dtype) for j, dtype in enumerate(self.keys.values())}
        return fields | dict.fromkeys(self.plan.layout.names, "bigint")

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The counts of all the rows that this worker gets, and what else it saw in them."""
        from pyspark import TaskContext

        tables, findings = self.plan.tables(), Findings()
        for rows in self._in_blocks(batches):
            self._look(rows, findings)
            matched = rows.filter(pl.all_horizontal(pl.col(r"^number\d+$") == 1))
            findings.numbers["paired"] += matched.height
            if not matched.height or findings.unreadable or findings.problems:
                continue
            plan = self._plan_of(matched)
            try:
                counted = local.count(plan)
            except InputError as problem:
                findings.problems.append(str(problem))
                continue
            self._note_names(plan, findings)
            findings.numbers["matched"] += matched.height
            for i, odd in enumerate(counted.odd_labels):
                if self.sides[i].side.class_names is not None:
                    findings.numbers[f"odd{i}"] += odd
            for name, table in tables.items():
                table.add(counted.tables[name].summed())
        task = TaskContext.get()
        text = findings.to_json(-1 if task is None else task.partitionId())
        yield record_batch(self.fields, {"findings": pl.Series([text])}, 1)
        if findings.numbers["matched"]:
            for number, table in enumerate(tables.values()):
                yield self._counts(number, table.summed())

    def key_types(self) -> dict[str, pl.DataType]:
        """The columns by which the counts are grouped, and their types."""
        # One row of nothing is enough to see the types that the local engine would group by.
        columns: dict[str, pl.Series] = {}
        for side in self.sides:
            row = record_batch(side.fields, {}, 1)
            columns |= {name: pl.Series(name, row.column(name)) for name in side.fields}
            if side.width:
                columns[f"scores{side.index}"] = pl.Series([[0.0] * side.width])
        plan = local.with_control_labels(self._plan_of(pl.DataFrame(columns)))
        pairing = Pairing(plan)
        schema = pairing.canonical(pairing.aligned_frame(COLUMNS)).collect_schema()
        keys = [group_column(place) for place in range(len(self.plan.cuts))]
        found = {key: schema[key] for key in keys}
        if self.plan.target_cuts:
            found |= dict.fromkeys((TARGET, *LABELS), pairing.classes)
        return found

    def _counts(self, number: int, table: pl.DataFrame) -> Any:
        names = self.plan.layout.names
        columns = {name: table[name] for name in names if name in table.columns}
        columns["table_number"] = pl.Series([number]).new_from_index(0, table.height)
        for j, key in enumerate(self.keys):
            if key in table.columns:
                columns[f"key{j}"] = to_spark(table[key])
        return record_batch(self.fields, columns, table.height)

    def _in_blocks(self, batches: Iterable[Any]) -> Iterator[pl.DataFrame]:
        """Spark's batches, put together to as many rows as suit the local engine."""
        widest = max(1, *(rows.width for rows in self.sides))
        enough = min(MOST_ROWS_AT_A_TIME, rows_per_read(widest))
        pending: list[Any] = []
        have = 0
        for batch in batches:
            pending.append(batch)
            have += batch.num_rows
            if have >= enough:
                yield pl.DataFrame(pa.Table.from_batches(pending))
                pending, have = [], 0
        if have:
            yield pl.DataFrame(pa.Table.from_batches(pending))

    def _look(self, rows: pl.DataFrame, findings: Findings) -> None:
        """Which rows are there, on which sides, how often."""
        sides = range(len(self.sides))
        ids = from_spark(rows["id"], self.sides[0].ids)
        number = [rows[f"number{i}"] for i in sides]
        for i in sides:
            findings.unreadable += rows[f"problem{i}"].drop_nulls().unique().to_list()
            here = number[i].is_not_null()
            findings.numbers[f"rows{i}"] += int(here.sum())
            findings.see(f"missing{i}", ids.filter(here & ids.is_null()))
            # The second row of an id, once, however many rows of others it meets.
            twice = number[i] == 2
            for j in sides:
                if j != i:
                    twice = twice & (number[j].fill_null(1) == 1)
            findings.see(f"twice{i}", ids.filter(twice.fill_null(False)))
            for j in sides:
                if i != j and 0 in (i, j):
                    only = here & number[j].is_null() & ids.is_not_null()
                    findings.see(f"only{i}lacks{j}", ids.filter(only))
        both = number[0].is_not_null() & number[1].is_not_null()
        in_all = rows.select(pl.all_horizontal(each.is_not_null() for each in number)).to_series()
        findings.numbers["not_in_control"] += int((both & ~in_all).sum())

    def _note_names(self, plan: CountingPlan, findings: Findings) -> None:
        """Note the class names next to scores without names; the driver checks all together."""
        bare = [i for i in (0, 1) if self.sides[i].nameless]
        pairing = Pairing(local.with_control_labels(plan)) if bare else None
        if pairing is None or pairing.classes != pl.String:
            return
        table = pairing.canonical(pairing.aligned_frame(COLUMNS)).collect()
        for i in bare:
            others = [c for c in (TARGET, LABELS[1 - i]) if c in table.columns]
            seen = {name for c in others for name in table[c].unique().drop_nulls()}
            findings.names[str(i)] = sorted(seen.union(findings.names.get(str(i), [])))

    def _plan_of(self, rows: pl.DataFrame) -> CountingPlan:
        """The plan over these rows alone."""
        models = [self._side_of(side, rows) for side in self.sides]
        old, new, *controls = models
        return replace(self.plan, old=old, new=new, controls=tuple(controls))

    def _side_of(self, side: SparkSide, rows: pl.DataFrame) -> Predictions:
        i, schema = side.index, side.schema
        columns = [from_spark(rows["id"], side.ids).alias(str(side.side.id))]
        for j, column in enumerate(side.columns):
            values = from_spark(rows[f"side{i}_{j}"], schema[column]).alias(column)
            if column != side.side.id:
                columns.append(values)
        scores = side.side.scores
        if scores is not None:
            flat = rows[f"scores{i}"].explode().to_numpy().reshape(-1, side.width)
            # Some rows cannot tell whether numbered classes are meant by names: all rows will.
            names = scores.class_names or tuple(str(j) for j in range(side.width))
            scores = replace(
                scores, array=flat, list_column=None, wide_columns=None, class_names=names
            )
        return replace(side.side, frame=pl.DataFrame(columns).lazy(), scores=scores)
