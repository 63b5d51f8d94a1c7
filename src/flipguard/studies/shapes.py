"""The shape of a JSON document: each reader returns a checked value, or says what is wrong where.

A reader is called with a value and its path in the document. It returns the value as the rest of
the package may use it, and raises `ShapeError` otherwise. No reader knows what a result is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from flipguard.errors import printable

Reader: TypeAlias = Callable[[Any, str], Any]
# Means, squares and sums of numbers up to this one are finite.
LARGEST = 1e100
LONGEST = 20_000
KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
    type(None): "null",
}


class ShapeError(ValueError):
    """A value of a document is not what its place needs."""


def _wrong(value: Any, path: str, expected: str) -> ShapeError:
    got = repr(value) if isinstance(value, int | float) else KINDS.get(type(value), "something")
    return ShapeError(f"{path} should be {expected}, but is {printable(got, longest=30)}")


def text(value: Any, path: str) -> str:
    """A text, without control and direction characters."""
    if not isinstance(value, str):
        raise _wrong(value, path, "a text")
    return printable(value, longest=LONGEST)


def time(value: Any, path: str) -> str:
    """A date and time as ISO 8601 writes them."""
    try:
        datetime.fromisoformat(text(value, path))
    except ValueError as problem:
        raise ShapeError(f"{path} should be a date and time") from problem
    return str(value)


def number(value: Any, path: str) -> float:
    """A finite number, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, path, "a number")
    if not abs(value) <= LARGEST:
        raise _wrong(value, path, "a finite number")
    return value


def number_or_nan(value: Any, path: str) -> float:
    """A number, or nan for null."""
    return math.nan if value is None else number(value, path)


def number_or_null(value: Any, path: str) -> float | None:
    """A number, or None for null."""
    return None if value is None else number(value, path)


def count(value: Any, path: str) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise _wrong(value, path, "a whole number from 0 on")
    return value


def truth(value: Any, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(value, path, "true or false")
    return value


def scalar(value: Any, path: str) -> Any:
    """A text, a number, a truth value or null."""
    if value is None or isinstance(value, bool):
        return value
    return text(value, path) if isinstance(value, str) else number(value, path)


def list_of(item: Reader, *, length: int | None = None, least: int = 0) -> Reader:
    """A list, of a given length or of at least so many items."""

    def read(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(value, path, "a list")
        if length is not None and len(value) != length:
            raise ShapeError(f"{path} should have {length} values, but has {len(value)}")
        if len(value) < least:
            raise ShapeError(f"{path} should have at least {least} values, but has {len(value)}")
        return [item(one, f"{path}[{index}]") for index, one in enumerate(value)]

    return read


def table_of(item: Reader) -> Reader:
    """A table whose keys are names."""

    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, path, "a table")
        return {
            text(key, path): item(one, f"{path}.{text(key, path)}") for key, one in value.items()
        }

    return read


def record(needed: Mapping[str, Reader], optional: Mapping[str, Reader]) -> Reader:
    """A table with known keys; others are left out."""

    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, path, "a table")
        if absent := [name for name in needed if name not in value]:
            raise ShapeError(f"{path} has no {absent[0]}")
        known = {**needed, **optional}
        return {
            name: known[name](one, f"{path}.{name}") for name, one in value.items() if name in known
        }

    return read


def grid(item: Reader, *, length: int | None = None, width: int | None = None) -> Reader:
    """A list of lists that are all equally long, and not empty."""

    def read(value: Any, path: str) -> list[list[Any]]:
        rows: list[list[Any]] = list_of(list_of(item, least=1), length=length, least=1)(value, path)
        wanted = len(rows[0]) if width is None else width
        for index, row in enumerate(rows):
            if len(row) != wanted:
                raise ShapeError(f"{path}[{index}] should have {wanted} values, but has {len(row)}")
        return rows

    return read
