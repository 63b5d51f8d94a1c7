"""Read JSON Lines: every line is checked before the type of a column is decided.

Most lines of a file are alike. So the shape of the first lines becomes a regular expression, and
the lines that match it, which Polars finds at several hundred megabytes per second, are proven to
have those keys, once each, and values of those kinds. The other lines are parsed by Python's
json, and their keys and kinds are added to the shape.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from flipguard.archives import first_sentence
from flipguard.errors import InputError, listed
from flipguard.predictions.json_kinds import (
    EMPTY,
    FLOAT,
    NUMBERS,
    NumberKind,
    ObjectShape,
    key_pattern,
    kind_of_integer,
    object_pattern,
)
from flipguard.predictions.table import PREFIXES, SCORE_KINDS
from flipguard.predictions.text import BOM, FormatError, check_lines

LINE, ROW = "line", "row"
FIRST_LINES = 1_000
# Number of differing lines to parse before the other lines are compared with them.
LINES_TO_LEARN_FROM = 200
# The largest number of key orders in the regular expression; few files have more.
MOST_ORDERS = 16
BLANKS = " \t\r"
BOM_TEXT = BOM.decode()
# The end of a key that is written with an escape, as "\u0061" for "a".
ESCAPED_KEY_END = r'\\.(?:[^"\\]|\\.)*"'
# Finds where values end, without converting numbers.
VALUES = json.JSONDecoder(parse_int=str, parse_float=str)
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def scan_json_lines(path: Path, roles: Collection[str]) -> pl.LazyFrame:
    """A table of JSON Lines whose types are those of the whole file.

    A column is Int64, Float64 or Boolean if all its values are, and text otherwise. `roles` are
    the columns of ids and classes, in which lists and objects are refused.
    """
    survey = survey_lines(path, roles)
    return survey.scanned(survey.shapes)


def survey_lines(path: Path, roles: Collection[str]) -> Survey:
    """Look at every line of a file."""
    survey = Survey(path=path, roles=roles, starts_with_bom=check_lines(path))
    survey.look()
    if not survey.shapes:
        raise pl.exceptions.NoDataError("no line holds a JSON object with a key")
    return survey


def _frame_of_lines(
    lines: pl.DataFrame, schema: pl.Schema, as_written: list[str], empty: list[str]
) -> pl.DataFrame:
    return parsed_lines(lines[LINE], schema, as_written, empty)


def parsed_lines(
    lines: pl.Series, schema: pl.Schema, as_written: Collection[str], empty: Collection[str] = ()
) -> pl.DataFrame:
    """Lines as a table of a known schema.

    Numbers in the columns `as_written` keep their spelling. In the columns `empty`, which are not
    text, the empty text is a missing value.

    >>> lines = pl.Series(['{"a": 1.50}', '{"a": "x"}'])
    >>> parsed_lines(lines, pl.Schema({"a": pl.String}), ["a"])["a"].to_list()
    ['1.50', 'x']
    """
    lines = lines.str.strip_prefix(BOM_TEXT)
    plain = lines.to_list()
    for i in _may_need_spelling(lines, as_written, empty):
        plain[i] = _respelled(plain[i], as_written, empty)
    text = "\n".join(plain).encode()
    if not text.strip():
        return pl.DataFrame(schema=schema)
    return pl.read_ndjson(io.BytesIO(text), schema=schema)


def _may_need_spelling(
    lines: pl.Series, as_written: Collection[str], empty: Collection[str]
) -> list[int]:
    """The indices of all lines that `_respelled` may change, and perhaps of a few others."""
    found = pl.repeat(False, len(lines), dtype=pl.Boolean, eager=True)
    for keys, value in ((as_written, "[-0-9]"), (empty, '""')):
        if keys:
            spellings = [*map(key_pattern, keys), ESCAPED_KEY_END]
            found |= lines.str.contains(rf"(?:{'|'.join(spellings)})[ \t]*:[ \t]*{value}")
    return found.arg_true().to_list()


def _respelled(line: str, as_written: Collection[str], empty: Collection[str]) -> str:
    """A line with numbers of the columns `as_written` as text, and null for empty text.

    Only the keys of the object itself are columns: those of objects within it stay as they are.

    >>> _respelled('{"x": {"a": 1.50}, "a": 1.50, "b": ""}', ["a"], ["b"])
    '{"x": {"a": 1.50}, "a": "1.50", "b": null}'
    """
    pieces, done = [], 0
    try:
        at = _after_gap(line, _after_gap(line, 0) + 1)
        while line[at] != "}":
            key, at = VALUES.raw_decode(line, at)
            start = _after_gap(line, _after_gap(line, at) + 1)
            _, stop = VALUES.raw_decode(line, start)
            value = line[start:stop]
            if key in as_written and value[0] in "-0123456789":
                pieces += [line[done:start], f'"{value}"']
                done = stop
            elif key in empty and value == '""':
                pieces += [line[done:start], "null"]
                done = stop
            at = _after_gap(line, stop)
            at = _after_gap(line, at + 1) if line[at] == "," else at
    except (ValueError, IndexError):
        # The survey has proven every line: this one was changed since, and Polars refuses it.
        return line
    return "".join([*pieces, line[done:]])


def _after_gap(line: str, at: int) -> int:
    while line[at] in BLANKS:
        at += 1
    return at


def _dtype(key: str, shape: ObjectShape) -> pl.DataType:
    if key.startswith(PREFIXES) and shape.numeric:
        return pl.Float64()
    items = shape.items
    if key in SCORE_KINDS and items is not None and items.numeric and shape.dtype().is_nested():
        return pl.List(pl.Float64())
    return shape.dtype()


def _is_score(key: str) -> bool:
    return key in SCORE_KINDS or key.startswith(PREFIXES)


# -- looking at every line ---------------------------------------------------------------------


@dataclass(slots=True)
class Survey:
    """The keys of a file and the shapes of their values, line by line."""

    path: Path
    roles: Collection[str]
    starts_with_bom: bool
    shapes: dict[str, ObjectShape] = field(default_factory=dict)
    orders: dict[tuple[str, ...], None] = field(default_factory=dict)
    changed: bool = False

    def scanned(self, shapes: Mapping[str, ObjectShape]) -> pl.LazyFrame:
        """The table of the file, with these columns; the shapes may be of more files than this."""
        schema = pl.Schema({key: _dtype(key, shape) for key, shape in shapes.items()})
        # Polars would spell the numbers in a column of text in its own way: 1.50 as 1.5.
        as_written = [
            key
            for key, shape in shapes.items()
            if schema[key] == pl.String and shape.kinds & NUMBERS
        ]
        empty = [
            key
            for key, shape in shapes.items()
            if schema[key] == pl.Boolean and EMPTY in shape.kinds
        ]
        if not as_written and not empty and not self.starts_with_bom:
            # The one scan that cannot be told to take a name as it is: each sign of a pattern is
            # wrapped.
            return pl.scan_ndjson(re.sub(r"([*?\[])", r"[\1]", str(self.path)), schema=schema)
        return pl.scan_lines(self.path, name=LINE, glob=False).map_batches(
            partial(_frame_of_lines, schema=schema, as_written=as_written, empty=empty),
            schema=schema,
            streamable=True,
            predicate_pushdown=False,
            projection_pushdown=False,
            slice_pushdown=False,
        )

    def look(self) -> None:
        """Takes in every line of the file."""
        lines = pl.scan_lines(self.path, name=LINE, row_index_name=ROW, glob=False)
        if self.starts_with_bom:
            stripped = pl.col(LINE).str.strip_prefix(BOM_TEXT)
            lines = lines.with_columns(pl.when(pl.col(ROW) == 0).then(stripped).otherwise(LINE))
        for row, line in lines.head(FIRST_LINES).collect(engine="streaming").iter_rows():
            self.take(line, row)
        batches = lines.filter(self.unlike()).collect_batches(
            maintain_order=True, engine="streaming"
        )
        for batch in batches:
            rest = batch
            while rest.height:
                for row, line in rest.head(LINES_TO_LEARN_FROM).iter_rows():
                    self.take(line, row)
                rest = rest[LINES_TO_LEARN_FROM:]
                if self.changed:
                    rest = rest.filter(self.unlike())

    def take(self, line: str, row: int) -> None:
        """Takes in one line, parsed in full."""
        if not line.strip(BLANKS):
            return
        try:
            found = _parsed(line)
            for key, value in found.items():
                if key in self.roles and isinstance(value, list | dict):
                    raise self._no_class(key, value, row)
                self.changed |= self.shapes.setdefault(key, ObjectShape()).add(value)
        except (ValueError, RecursionError) as problem:
            too_deep = isinstance(problem, RecursionError)
            text = "nested too deeply" if too_deep else first_sentence(problem)
            raise FormatError(f"line {row + 1:,}: {text}") from problem
        order = tuple(found)
        if order not in self.orders and len(self.orders) < MOST_ORDERS:
            self.orders[order] = None
            self.changed = True

    def _no_class(self, key: str, value: object, row: int) -> InputError:
        text = "a list" if isinstance(value, list) else "an object"
        return InputError(
            f"{self.path} has {text} in column '{key}' at line {row + 1:,}, where an id or a class "
            "is one name or one integer; write the value itself."
        )

    def unlike(self) -> pl.Expr:
        """Where a line is not known to be of the shapes seen so far."""
        self.changed = False
        patterns = {
            key: shape.pattern(any_number=_is_score(key)) for key, shape in self.shapes.items()
        }
        objects = [object_pattern({k: patterns[k] for k in order}) for order in self.orders]
        # Some objects are too large for a regular expression; then there is the slow way.
        for alternatives in (objects, objects[:1]):
            whole = f"^[ \\t\\r]*(?:{'|'.join(alternatives)}|)[ \\t\\r]*$"
            try:
                pl.Series([""]).str.contains(whole)
            except pl.exceptions.ComputeError:
                continue
            return ~pl.col(LINE).str.contains(whole)
        return pl.lit(True)


def _parsed(line: str) -> dict[str, Any]:
    """One line as Python's json reads it, with the kind of each number in its place."""
    found = json.loads(
        line,
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_float,
        parse_constant=_no_constant,
    )
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    if SURROGATE.search(line):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as problem:
            raise ValueError("half of a surrogate pair (\\ud800 to \\udfff) alone") from problem
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = [key for key in found if keys.count(key) > 1]
        raise ValueError(f"key {listed(twice)} more than once in an object")
    return found


def _integer(digits: str) -> NumberKind:
    return NumberKind(kind_of_integer(digits))


def _float(_digits: str) -> NumberKind:
    return NumberKind(FLOAT)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON; write null")
