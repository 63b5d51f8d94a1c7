"""One spelling of ids and classes for all files, so that 3, "3" and 3.0 are the same class."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from flipguard.errors import InputError
from flipguard.predictions.table import WHOLE_NUMBER, Predictions, is_integer


def class_dtype(sides: Iterable[Predictions]) -> pl.DataType:
    """Integers if every label, target and class name of every file is one; else text."""
    found = set()
    for side in sides:
        schema = side.frame.collect_schema()
        found |= {schema[c] for c in (side.label, side.target) if c is not None}
        if side.class_names is not None and not all(is_integer(c) for c in side.class_names):
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
    if len(found) == 1:
        return found.pop()
    # What 64 bits cannot hold beside others is compared as it is written.
    wide = {pl.UInt64(), pl.Int128(), pl.UInt128()}
    return pl.String() if found & wide else pl.Int64()


def spelled(column: str, side: Predictions, common: pl.DataType) -> pl.Expr:
    """A column of ids or classes in the common spelling."""
    dtype = side.frame.collect_schema()[column]
    expression = pl.col(column)
    if dtype == common:
        return _named(expression) if dtype == pl.String else expression
    if common.is_integer():
        return expression.cast(common)
    if dtype.is_float():
        # A whole-number float is an integer that once shared its column with a missing value. What
        # is not whole may be an id; as a class it is refused, with its rows, by `not_whole`.
        whole, fraction = _whole(column).cast(pl.String), _floats(column).cast(pl.String)
        return pl.when(whole.is_null()).then(fraction).otherwise(whole)
    known = (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)
    if dtype in (pl.Categorical, pl.Enum):
        return _named(expression.cast(pl.String))
    if dtype.is_integer() or dtype.is_temporal() or dtype.is_decimal() or dtype in known:
        return expression.cast(pl.String)
    raise InputError(
        f"{side.name} has a column '{column}' of type {dtype}, which can be neither an id nor a "
        "class; expected names or integers."
    )


def _named(text: pl.Expr) -> pl.Expr:
    """Text in which nothing is no name: "" is how some writers say that a value is missing."""
    return pl.when(text != "").then(text)


def spelled_class(column: str, side: Predictions, common: pl.DataType) -> pl.Expr:
    """A column of classes in the common spelling: text such as "3.0" is class 3 too."""
    expression = spelled(column, side, common)
    if side.frame.collect_schema()[column] not in (pl.String, pl.Categorical, pl.Enum):
        return expression
    # The second look is for the few that may need it: it takes twenty times as long as the first.
    whole = expression.str.replace(WHOLE_NUMBER, "${1}")
    return pl.when(expression.str.ends_with(".0")).then(whole).otherwise(expression)


def not_whole(column: str, side: Predictions) -> pl.Expr | None:
    """Where a class or an id is a fraction, which names nothing; None if it cannot be."""
    if not side.frame.collect_schema()[column].is_float():
        return None
    return _floats(column).is_not_null() & _whole(column).is_null()


def _floats(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Float64).fill_nan(None)


def _whole(column: str) -> pl.Expr:
    """Floats as integers; null where they are none."""
    found = _floats(column).cast(pl.Int64, strict=False)
    return pl.when(found.cast(pl.Float64) == _floats(column)).then(found)


def class_series(side: Predictions, width: int, common: pl.DataType) -> pl.Series:
    """The class of each score column, in the common spelling."""
    names = side.class_names or tuple(str(i) for i in range(width))
    if common.is_integer():
        return pl.Series([int(name) for name in names], dtype=common)
    return pl.Series(list(names), dtype=pl.String)
