"""One spelling of ids and classes for all files, so that 3, "3" and 3.0 are the same class."""

from __future__ import annotations

from collections.abc import Iterable
import polars as pl

from flipguard.errors import InputError
from flipguard.predictions.table import Predictions

def class_dtype(sides: Iterable[Predictions]) -> pl.DataType:
    """Integers if every label, target and class name of every file is one; else text."""
    found = set()
    for side in sides:
        schema = side.frame.collect_schema()
        found |= {schema[c] for c in (side.label, side.target) if c is not None}
        if side.class_names is not None and not all(_is_integer(c) for c in side.class_names):
            return pl.String()
        if side.scores is not None:
            found.add(pl.Int64())
    return _common(found)


def id_dtype(sides: Iterable[Predictions]) -> pl.DataType:
    """Integers if the ids of every file are; else text."""
    return _common({side.frame.collect_schema()[side.id] for side in sides if side.id is not None})


def _common(found: set[pl.DataType]) -> pl.DataType:
    if not all(dtype.is_integer() for dtype in found):
        return pl.String()
    # One type for all needs no conversion at all, which is half the time of counting labels.
    return found.pop() if len(found) == 1 else pl.Int64()


def spelled(column: str, side: Predictions, common: pl.DataType) -> pl.Expr:
    """A column of ids or classes in the common spelling."""
    dtype = side.frame.collect_schema()[column]
    expression = pl.col(column)
    if dtype == common:
        return expression
    if common.is_integer():
        return expression.cast(common)
    if dtype.is_float():
        # A whole-number float is an integer that once shared its column with a missing value; what
        # is not whole is refused, with its rows, by `not_whole`.
        return expression.fill_nan(None).cast(pl.Int64).cast(pl.String)
    known = (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)
    if dtype.is_integer() or dtype.is_temporal() or dtype.is_decimal() or dtype in known:
        return expression.cast(pl.String)
    raise InputError(
        f"{side.name} has a column '{column}' of type {dtype}, which can be neither an id nor a "
        "class; expected names or integers."
    )


def not_whole(column: str, side: Predictions) -> pl.Expr | None:
    """Where a class or an id is a fraction, which names nothing; None if it cannot be."""
    if not side.frame.collect_schema()[column].is_float():
        return None
    return (pl.col(column) != pl.col(column).round()).fill_null(False) & pl.col(column).is_not_nan()


def class_series(side: Predictions, width: int, common: pl.DataType) -> pl.Series:
    """The class of each score column, in the common spelling."""
    names = side.class_names or tuple(str(i) for i in range(width))
    if common.is_integer():
        return pl.Series([int(name) for name in names], dtype=common)
    return pl.Series(list(names), dtype=pl.String)


def _is_integer(name: str) -> bool:
    # "007" is a name of its own: only what an integer would be printed as counts as one.
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(name)) == name
