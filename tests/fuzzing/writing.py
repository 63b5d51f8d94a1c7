"""Columns of plain values as the bytes of a file, in any legal spelling of its format."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TEXT_SUFFIXES = {"csv": ".csv", "tsv": ".tsv", "jsonl": ".jsonl"}
ABSENT = object()


@dataclass(frozen=True)
class Raw:
    """JSON that is written as it is."""

    text: str


@dataclass(kw_only=True)
class Field:
    """A column to write. `style` is how its values are spelled where the format leaves a choice:

    plain (as they are), number (never as text), text, float (whole numbers as 3.0), decimal (as
    3.00).
    """

    name: str
    cells: list[Any]
    style: str = "plain"
    arrow_type: pa.DataType | None = None
    array: np.ndarray | pa.Array | None = None


@dataclass(kw_only=True)
class Sheet:
    """A file to write."""

    format: str
    fields: list[Field]
    class_names: list[Any] | None = None
    quirks: frozenset[str] = frozenset()
    height: int = 0
    extra: dict[str, np.ndarray] = field(default_factory=dict)


def suffix(rng: random.Random, kind: str) -> str:
    """A suffix of a format, perhaps compressed."""
    if kind in TEXT_SUFFIXES:
        plain = rng.choice([".jsonl", ".ndjson"]) if kind == "jsonl" else TEXT_SUFFIXES[kind]
        return plain + rng.choice(["", "", "", ".gz", ".zst"])
    usual = {"parquet": [".parquet", ".pq"], "arrow": [".arrow", ".feather", ".ipc"]}
    return rng.choice(usual.get(kind, [".npz"]))


def packed(data: bytes, name: str) -> bytes:
    """The bytes as a file of this name holds them."""
    if name.endswith(".gz"):
        return gzip.compress(data, mtime=0)
    if name.endswith(".zst"):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return bytes(sink.getvalue().to_pybytes())
    return data


def written(sheet: Sheet, rng: random.Random) -> bytes:
    """The bytes of a sheet, before any compression."""
    return {
        "csv": _separated,
        "tsv": _separated,
        "jsonl": _json_lines,
        "parquet": _parquet,
        "arrow": _arrow,
        "npz": _npz,
    }[sheet.format](sheet, rng)


def styled(cell: Any, style: str) -> Any:
    """A value in the style of its column."""
    if cell is None or isinstance(cell, bool):
        return cell
    if style == "float" and isinstance(cell, int):
        return float(cell)
    if style == "decimal" and isinstance(cell, int):
        return Decimal(cell).quantize(Decimal("0.01"))
    if style == "text":
        return str(cell)
    return cell


# -- separated text ------------------------------------------------------------------------------


def _separated(sheet: Sheet, rng: random.Random) -> bytes:
    separator = "," if sheet.format == "csv" else "\t"
    end = "\r\n" if "crlf" in sheet.quirks else "\r" if "cr" in sheet.quirks else "\n"
    quoting = rng.choice(["minimal", "minimal", "all", "random"])
    rows = [[f.name for f in sheet.fields]]
    columns = [_texts(f, rng) for f in sheet.fields]
    rows += [list(row) for row in zip(*columns, strict=True)]
    if "trailing separator" in sheet.quirks:
        rows = [[*row, ""] for row in rows]
    lines = []
    for number, row in enumerate(rows):
        cells = [_quoted(text, separator, quoting, sheet.quirks, rng) for text in row]
        lines.append(separator.join(cells))
        if number and "blank lines" in sheet.quirks and rng.random() < 0.3:
            lines.append("")
    text = end.join(lines) + ("" if "no last line end" in sheet.quirks else end)
    start = b"\xef\xbb\xbf" if "bom" in sheet.quirks else b""
    return start + text.encode("utf-8", "surrogatepass")


def _texts(column: Field, rng: random.Random) -> list[str]:
    true, false = rng.choice([("True", "False"), ("true", "false")])
    texts = []
    for cell in (styled(cell, column.style) for cell in column.cells):
        if cell is None or cell is ABSENT:
            texts.append("")
        elif isinstance(cell, bool):
            texts.append(true if cell else false)
        elif isinstance(cell, list | dict):
            texts.append(json.dumps(cell, default=str))
        else:
            texts.append(cell.text if isinstance(cell, Raw) else str(cell))
    return texts


def _quoted(
    text: str, separator: str, quoting: str, quirks: frozenset[str], rng: random.Random
) -> str:
    plain = not any(sign in text for sign in (separator, "\n", "\r", '"'))
    bare = "bare quotes" in quirks and '"' in text and not text.startswith('"')
    if bare and not any(sign in text for sign in (separator, "\n", "\r")):
        return text
    if quoting == "minimal" and plain:
        # Blanks around it are part of a field, and some writers quote those.
        return text
    if quoting == "random" and plain and rng.random() < 0.6:
        return text
    return '"' + text.replace('"', '""') + '"'


# -- JSON Lines ----------------------------------------------------------------------------------


def _json_lines(sheet: Sheet, rng: random.Random) -> bytes:
    ascii_only = rng.random() < 0.5
    tight = rng.random() < 0.5
    shuffled = rng.random() < 0.2
    columns = [_tokens(f, rng, ascii_only=ascii_only) for f in sheet.fields]
    names = [json.dumps(f.name, ensure_ascii=ascii_only) for f in sheet.fields]
    end = "\r\n" if "crlf" in sheet.quirks else "\n"
    lines = []
    for number, row in enumerate(zip(*columns, strict=True)):
        pairs = [(n, token) for n, token in zip(names, row, strict=True) if token is not ABSENT]
        if shuffled:
            rng.shuffle(pairs)
        if "key twice" in sheet.quirks and number == len(columns[0]) // 2:
            pairs.append(rng.choice(pairs))
        colon, comma = (":", ",") if tight else (": ", ", ")
        lines.append("{" + comma.join(f"{n}{colon}{token}" for n, token in pairs) + "}")
        if "blank lines" in sheet.quirks and rng.random() < 0.3:
            lines.append("")
    text = end.join(lines) + ("" if "no last line end" in sheet.quirks else end)
    start = b"\xef\xbb\xbf" if "bom" in sheet.quirks else b""
    return start + text.encode("utf-8", "surrogatepass")


def _tokens(column: Field, rng: random.Random, *, ascii_only: bool) -> list[Any]:
    numbers_as_text = rng.random() < 0.25 and column.style != "number"
    booleans_as_text = rng.random() < 0.2
    missing = rng.choice(["null", "absent", "empty", "any"])
    true, false = rng.choice([('"True"', '"False"'), ('"true"', '"false"')])
    tokens: list[Any] = []
    for cell in (styled(cell, column.style) for cell in column.cells):
        if cell is ABSENT:
            tokens.append(ABSENT)
        elif cell is None:
            how = rng.choice(["null", "absent", "empty"]) if missing == "any" else missing
            tokens.append({"null": "null", "absent": ABSENT, "empty": '""'}[how])
        elif isinstance(cell, Raw):
            tokens.append(cell.text)
        elif isinstance(cell, bool):
            if booleans_as_text:
                tokens.append(true if cell else false)
            else:
                tokens.append("true" if cell else "false")
        elif isinstance(cell, int | float | Decimal):
            text = str(cell)
            tokens.append(f'"{text}"' if numbers_as_text else text)
        else:
            tokens.append(json.dumps(cell, ensure_ascii=ascii_only, default=str))
    return tokens


# -- Parquet, Arrow and NPZ ----------------------------------------------------------------------


def _arrow_array(column: Field, rng: random.Random) -> pa.Array:
    if isinstance(column.array, pa.Array):
        return column.array
    if column.array is not None:
        return pa.array(column.array)
    cells = [None if cell is ABSENT else styled(cell, column.style) for cell in column.cells]
    if column.arrow_type is not None:
        return pa.array(cells, type=column.arrow_type)
    known = [cell for cell in cells if cell is not None]
    kinds = {type(cell) for cell in known}
    if not known:
        return pa.array(cells, type=rng.choice([pa.null(), pa.string(), pa.float64()]))
    if kinds == {int}:
        return _integers(cells, known, rng)
    if kinds == {float} or kinds == {int, float}:
        missing = rng.choice([None, float("nan")])
        return pa.array(
            [missing if c is None else float(c) for c in cells],
            type=pa.float64(),
            from_pandas=False,
        )
    if kinds == {bool} and rng.random() < 0.7:
        return pa.array(cells, type=pa.bool_())
    if kinds == {Decimal}:
        return pa.array(cells, type=pa.decimal128(20, 2))
    if kinds & {list, dict}:
        if kinds == {list}:
            return pa.array(cells)
        listed = [cell if isinstance(cell, list) else [cell] for cell in cells]
        return pa.array([[str(item) for item in cell] for cell in listed])
    true, false = rng.choice([("True", "False"), ("true", "false")])
    texts = [
        (true if c else false) if isinstance(c, bool) else None if c is None else str(c)
        for c in cells
    ]
    if rng.random() < 0.5:
        texts = ["" if text is None else text for text in texts]
    kind = rng.choice([pa.string()] * 6 + [pa.large_string()] * 2 + [pa.string_view()])
    if rng.random() < 0.2:
        return pa.array(texts, type=pa.string()).dictionary_encode()
    return pa.array(texts, type=kind)


def _integers(cells: list[Any], known: Sequence[int], rng: random.Random) -> pa.Array:
    low, high = min(known), max(known)
    types = [pa.int64()] if low >= -(2**63) and high < 2**63 else []
    if low >= -128 and high < 128:
        types += [pa.int8(), pa.int16(), pa.int32()]
    if low >= 0 and high < 2**64:
        types.append(pa.uint64())
    if low >= 0 and high < 256:
        types += [pa.uint8(), pa.uint16()]
    kind = rng.choice([*types, pa.string()] if types else [pa.string()])
    if kind == pa.string():
        return pa.array([None if c is None else str(c) for c in cells], type=kind)
    return pa.array(cells, type=kind)


def _arrow_table(sheet: Sheet, rng: random.Random) -> pa.Table:
    arrays = [_arrow_array(f, rng) for f in sheet.fields]
    table = pa.Table.from_arrays(arrays, names=[f.name for f in sheet.fields])
    if sheet.class_names is not None:
        stored = json.dumps([str(name) for name in sheet.class_names])
        table = table.replace_schema_metadata({"flipguard.class_names": stored})
    return table


def _parquet(sheet: Sheet, rng: random.Random) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        _arrow_table(sheet, rng),
        sink,
        compression=rng.choice(["snappy", "zstd", "none"]),
        row_group_size=rng.choice([None, 3, 100]),
        use_dictionary=rng.random() < 0.5,
    )
    return sink.getvalue()


def _arrow(sheet: Sheet, rng: random.Random) -> bytes:
    table = _arrow_table(sheet, rng)
    sink = io.BytesIO()
    compression = rng.choice([None, None, "zstd", "lz4"])
    if pa.string_view() in table.schema.types:
        # Polars panics at these where they are compressed. That is refused, but threads of the
        # process die of it, and what the process reads later may wait for them without an end.
        compression = None
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        # One batch: a dictionary that changes from batch to batch is more than a file can hold.
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


PLURAL = {"id": "ids", "target": "targets", "label": "labels"}


def _npz(sheet: Sheet, rng: random.Random) -> bytes:
    arrays = {PLURAL.get(f.name, f.name): _numpy_array(f, rng) for f in sheet.fields}
    arrays |= sheet.extra
    if sheet.class_names is not None:
        arrays["class_names"] = np.array([str(name) for name in sheet.class_names])
    sink = io.BytesIO()
    save = np.savez_compressed if rng.random() < 0.5 else np.savez
    save(sink, **arrays)
    return sink.getvalue()


def _numpy_array(column: Field, rng: random.Random) -> np.ndarray:
    if column.array is not None:
        return np.asarray(column.array)
    cells = [None if cell is ABSENT else styled(cell, column.style) for cell in column.cells]
    known = [cell for cell in cells if cell is not None]
    kinds = {type(cell) for cell in known}
    if known and kinds == {bool} and len(known) == len(cells):
        return np.array(cells)
    if known and kinds == {int} and len(known) == len(cells) and rng.random() < 0.8:
        low, high = min(known), max(known)
        kind = np.int64 if low < 0 or rng.random() < 0.5 else np.uint64
        if low >= -(2**63) and high < 2**63:
            return np.array(cells, dtype=kind)
    gaps = len(known) < len(cells) and kinds == {int} and max(map(abs, known)) < 2**53
    if known and kinds <= {int, float} and (float in kinds or (gaps and rng.random() < 0.7)):
        return np.array([np.nan if c is None else float(c) for c in cells])
    true, false = rng.choice([("True", "False"), ("true", "false")])
    texts = [
        "" if c is None else (true if c else false) if isinstance(c, bool) else str(c)
        for c in cells
    ]
    if rng.random() < 0.15 and all(text.isascii() for text in texts):
        return np.array([text.encode() for text in texts])
    return np.array(texts)
