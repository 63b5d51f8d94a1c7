"""An independent reader: the bytes of one file as columns of plain Python values.

Text formats are read by Python's `csv` and `json`; Parquet, Arrow and NPZ by their
libraries, since no other reader is at hand.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzzing.outcomes import Questions, Refused

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".npz": "npz",
}
TEXT = ("csv", "tsv", "jsonl")
CLASS_NAMES = b"flipguard.class_names"
csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class JsonNumber:
    """A number of a JSON file, as it is spelled there."""

    raw: str


@dataclass(frozen=True)
class Odd:
    """A value that is no name, number or Boolean: a list, an object, bytes, a time."""

    value: object


@dataclass(kw_only=True)
class Column:
    """A column of kind text, json, int, float, bool, decimal, null or odd; a cell may be None."""

    kind: str
    cells: list[Any]


@dataclass(kw_only=True)
class Table:
    """One file. Columns are made when they are asked for: those that are not needed may be odd."""

    format: str
    height: int
    names: list[str]
    column: Callable[[str], Column]
    class_names: list[Any] | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def read(path: Path, questions: Questions) -> Table:
    """The table in a file, by its name's suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in (".gz", ".zst")
    if packed:
        suffixes.pop()
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None or (packed and kind not in TEXT):
        raise Refused("the name tells no known format")
    data = path.read_bytes()
    if not data:
        raise Refused("the file is empty")
    if kind in ("csv", "tsv"):
        return _separated(_text(data, questions, bom_is_usual=True), kind, questions)
    if kind == "jsonl":
        return _json_lines(_text(data, questions, bom_is_usual=False), questions)
    try:
        return {"parquet": _parquet, "arrow": _arrow, "npz": _npz}[kind](path, questions)
    except Refused:
        raise
    # What these readers raise for a damaged file is not documented.
    except Exception as problem:
        raise Refused(f"its own library cannot read it ({type(problem).__name__})") from problem


def _text(data: bytes, questions: Questions, *, bom_is_usual: bool) -> str:
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        elif data.startswith(b"\x28\xb5\x2f\xfd"):
            data = pa.input_stream(pa.BufferReader(data), compression="zstd").read()
    except (OSError, EOFError, zlib.error, pa.ArrowException) as problem:
        raise Refused("the compressed file is damaged") from problem
    if data.startswith(b"\xef\xbb\xbf") and not bom_is_usual:
        questions.doubt("a byte order mark")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        questions.doubt("bytes that are no text")
        # Different bytes stay different, so that no two names become one.
        return data.decode("utf-8-sig", "surrogateescape")


# -- separated text ------------------------------------------------------------------------------


def _separated(text: str, kind: str, questions: Questions) -> Table:
    separator = "," if kind == "csv" else "\t"
    if "\0" in text:
        questions.doubt("a NUL sign")
    for oddity in irregular(text, separator):
        questions.doubt(oddity)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error as problem:
        raise Refused(f"csv: {problem}") from problem
    if any(not row for row in rows):
        questions.doubt("a blank line")
    rows = [row for row in rows if row]
    if not rows:
        raise Refused("nothing but blank lines")
    if questions.in_spark and any(re.search(r"[\r\n\"]", cell) for row in rows for cell in row):
        questions.doubt("line breaks or quotation marks in fields, for Spark")
    header, body = rows[0], rows[1:]
    for name in header:
        if header.count(name) > 1:
            if name:
                raise Refused(f"column {name!r} twice")
            questions.doubt("two columns without a name")
    if any(len(row) != len(header) for row in body):
        raise Refused("rows of several lengths")
    if not body:
        raise Refused("no row")
    if len(header) == 1:
        questions.doubt("one column")

    def column(name: str) -> Column:
        place = header.index(name)
        return Column(kind="text", cells=[row[place] for row in body])

    return Table(format=kind, height=len(body), names=header, column=column)


def irregular(text: str, separator: str) -> list[str]:
    """What is odd about quotation marks and line ends: reasons to refuse, rather than guess."""
    found: set[str] = set()
    state = "start"
    for i, sign in enumerate(text):
        if state == "quoted":
            if sign == '"':
                state = "closed"
            continue
        if sign == "\r" and text[i + 1 : i + 2] != "\n":
            found.add("a lone carriage return")
        if sign in (separator, "\n", "\r"):
            state = "start"
        elif sign == '"':
            if state == "start":
                state = "quoted"
            elif state == "closed":
                # A doubled mark, inside the same field.
                state = "quoted"
                if text[i - 1] != '"':
                    found.add("text after a closing quotation mark")
            else:
                found.add("a quotation mark inside a field")
        else:
            if state == "closed":
                found.add("text after a closing quotation mark")
            state = "bare"
    if state == "quoted":
        found.add("a quotation mark that is not closed")
    return sorted(found)


# -- JSON Lines ----------------------------------------------------------------------------------


class Pairs(list[tuple[str, Any]]):
    """An object as it is written, with every key."""


def _json_lines(text: str, questions: Questions) -> Table:
    rows: list[dict[str, Any]] = []
    for line in text.split("\n"):
        if not line.strip(" \t\r"):
            continue
        rows.append(_object(line, questions))
    if not rows:
        raise Refused("no row")
    names = list(dict.fromkeys(name for row in rows for name in row))

    def column(name: str) -> Column:
        return Column(kind="json", cells=[_scalar(row.get(name)) for row in rows])

    return Table(format="jsonl", height=len(rows), names=names, column=column)


def _object(line: str, questions: Questions) -> dict[str, Any]:
    def constant(name: str) -> float:
        questions.doubt("NaN or Infinity, which JSON does not know")
        return float(name)

    try:
        found = json.loads(
            line,
            object_pairs_hook=Pairs,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=constant,
        )
    except (ValueError, RecursionError) as problem:
        raise Refused("a line that is no JSON") from problem
    if not isinstance(found, Pairs):
        raise Refused("a line that is no object")
    keys = [key for key, _ in found]
    if len(set(keys)) < len(keys):
        raise Refused("the same key twice")
    for key, value in found:
        if isinstance(value, Pairs | list) and _twice_inside(value):
            questions.doubt("the same key twice in an inner object")
        if _no_text(key) or (isinstance(value, str) and _no_text(value)):
            questions.doubt("half of a surrogate pair")
    return dict(found)


def _twice_inside(value: object) -> bool:
    if isinstance(value, Pairs):
        keys = [key for key, _ in value]
        return len(set(keys)) < len(keys) or any(_twice_inside(inner) for _, inner in value)
    return isinstance(value, list) and any(_twice_inside(inner) for inner in value)


def _no_text(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _scalar(value: object) -> object:
    return Odd(value) if isinstance(value, list) else value


# -- Parquet and Arrow ---------------------------------------------------------------------------


def _parquet(path: Path, questions: Questions) -> Table:
    with pq.ParquetFile(path) as file:
        schema, height = file.schema_arrow, file.metadata.num_rows
        raw = file.metadata.metadata or {}

    def column(name: str) -> pa.ChunkedArray:
        with pq.ParquetFile(path) as file:
            return file.read(columns=[name]).column(name)

    return _columnar(questions, "parquet", schema, height, raw.get(CLASS_NAMES), column)


def _arrow(path: Path, questions: Questions) -> Table:
    data = path.read_bytes()
    if not data.startswith(b"ARROW1"):
        raise Refused("no Arrow file")
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    raw = table.schema.metadata or {}

    def column(name: str) -> pa.ChunkedArray:
        values = table.column(name)
        if values.type == pa.string_view():
            questions.doubt("string views, at which Polars panics where they are compressed")
        return values

    return _columnar(questions, "arrow", table.schema, table.num_rows, raw.get(CLASS_NAMES), column)


def _is_rare(dtype: pa.DataType) -> bool:
    checks = (
        pa.types.is_decimal256,
        pa.types.is_interval,
        pa.types.is_list_view,
        pa.types.is_run_end_encoded,
        pa.types.is_union,
    )
    return any(check(dtype) for check in checks)


def _columnar(
    questions: Questions,
    kind: str,
    schema: pa.Schema,
    height: int,
    stored: bytes | None,
    load: Callable[[str], pa.ChunkedArray],
) -> Table:
    if len(set(schema.names)) < len(schema.names):
        raise Refused("a column twice")
    if not height:
        raise Refused("no row")
    if any(_is_rare(dtype) for dtype in schema.types):
        questions.doubt("a column of a type that Polars has not")
    names = None if stored is None else json.loads(stored)
    if names is not None and not (
        isinstance(names, list) and all(isinstance(n, str | int | float) for n in names)
    ):
        raise Refused("class names that are no list")

    def column(name: str) -> Column:
        try:
            values = load(name)
            values.validate(full=True)
            cells = values.to_pylist()
        except Exception as problem:
            raise Refused(f"column {name!r} cannot be read ({type(problem).__name__})") from problem
        return Column(kind=_arrow_kind(values.type), cells=_arrow_cells(values.type, cells))

    return Table(
        format=kind, height=height, names=list(schema.names), column=column, class_names=names
    )


def _arrow_kind(dtype: pa.DataType) -> str:
    if pa.types.is_dictionary(dtype):
        return _arrow_kind(dtype.value_type)
    checks = {
        "int": pa.types.is_integer,
        "float": pa.types.is_floating,
        "bool": pa.types.is_boolean,
        "decimal": pa.types.is_decimal,
        "null": pa.types.is_null,
    }
    for kind, check in checks.items():
        if check(dtype):
            return kind
    text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
    return "text" if text or dtype == pa.string_view() else "odd"


def _arrow_cells(dtype: pa.DataType, cells: list[Any]) -> list[Any]:
    if _arrow_kind(dtype) == "odd":
        return [None if cell is None else Odd(cell) for cell in cells]
    return cells


# -- NPZ -----------------------------------------------------------------------------------------


def _npz(path: Path, questions: Questions) -> Table:
    with zipfile.ZipFile(path) as archive:
        members = archive.namelist()
    if len(set(members)) < len(members):
        raise Refused("a member twice")
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)

    def array(name: str) -> np.ndarray:
        try:
            with np.load(path, allow_pickle=False) as archive:
                return archive[name]
        except Exception as problem:
            raise Refused(f"array {name!r} cannot be read ({type(problem).__name__})") from problem

    def column(name: str) -> Column:
        return numpy_column(array(name))

    table = Table(format="npz", height=-1, names=names, column=column)
    table.arrays = _Lazy(array, names)
    return table


class _Lazy(dict[str, np.ndarray]):
    """Arrays that are read when they are asked for."""

    def __init__(self, load: Callable[[str], np.ndarray], names: list[str]) -> None:
        super().__init__()
        self._load, self._names = load, names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __missing__(self, name: str) -> np.ndarray:
        self[name] = self._load(name)
        return self[name]


def numpy_column(array: np.ndarray) -> Column:
    """An array of one dimension as a column."""
    if array.ndim != 1:
        raise Refused("an array that is no column")
    if array.dtype.kind == "S":
        try:
            return Column(kind="text", cells=[c.decode() for c in array.tolist()])
        except UnicodeDecodeError as problem:
            raise Refused("bytes that are no text") from problem
    kind = {"U": "text", "i": "int", "u": "int", "f": "float", "b": "bool"}.get(array.dtype.kind)
    if kind is None:
        return Column(kind="odd", cells=[Odd(cell) for cell in array.tolist()])
    return Column(kind=kind, cells=array.tolist())


def is_missing(cell: object) -> bool:
    """Null, NaN and the empty text."""
    return cell is None or cell == "" or (isinstance(cell, float | Decimal) and cell != cell)
