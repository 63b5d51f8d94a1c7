"""One spelling of ids, classes and groups for all files, so that 3, "3" and 3.0 are one class.

docs/guides/equality.md has these rules as a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from flipguard.errors import InputError
from flipguard.predictions.names import exactly, float_text, whole_numbers
from flipguard.predictions.table import Predictions

TEXT = (pl.String, pl.Categorical, pl.Enum)
# What only a number in text has that is not an integer; a cheap search, before a full match.
POINT_OR_EXPONENT = "[.eE]"
# What is missing in text whose other values are all numbers; elsewhere it is a name.
NOT_A_NUMBER = ("nan", "NaN")
# From here on a double does not tell each integer from the next.
FIRST_INEXACT = 2.0**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read a column, decided over all rows of it and of the columns compared with it.

    `numbers`: it is text in which every value is a number or missing, and not all are integers.
    `truth`: it is compared with a Boolean column, so that True and true are one value.
    """

    numbers: bool = False
    truth: bool = False


AS_WRITTEN = Reading()


def dtype_of(side: Predictions, column: str) -> pl.DataType:
    """The type of a column."""
    return side.frame.collect_schema()[column]


def spelled(
    column: str, side: Predictions, common: pl.DataType, reading: Reading = AS_WRITTEN
) -> pl.Expr:
    """A column of ids, classes or groups in the common type and spelling; null where missing."""
    dtype, values = dtype_of(side, column), exactly(column)
    if common.is_integer():
        return values if dtype == common else values.cast(common)
    if common.is_float():
        # Groups alone, by one file or two of one type. Adding 0 makes -0.0 and 0.0 one group.
        return values.fill_nan(None) + 0.0
    if common != pl.String:
        return values
    if dtype.is_float():
        return float_text(values)
    if dtype in TEXT:
        return _text(values.cast(pl.String), reading)
    if dtype.is_decimal():
        text = values.cast(pl.String)
        plain = text.str.strip_chars_end("0").str.strip_chars_end(".")
        return pl.when(text.str.contains(".", literal=True)).then(plain).otherwise(text)
    if is_scalar(dtype):
        return values.cast(pl.String)
    raise InputError(
        f"{side.name} has a column '{column}' of type {dtype}, which can be neither an id nor a "
        "class; expected names or integers."
    )


def is_scalar(dtype: pl.DataType) -> bool:
    """Whether values of a type can be ids, classes or groups."""
    odd = (pl.Duration, pl.Binary, pl.Object, pl.Unknown)
    return not (dtype.is_nested() or dtype in odd)


def _text(text: pl.Expr, reading: Reading) -> pl.Expr:
    """Text as written, but for the empty text, -0, and what its reading says."""
    here = text != ""
    changes = [(text == "-0", pl.lit("0"))]
    if reading.truth:
        changes += [(text == "True", pl.lit("true")), (text == "False", pl.lit("false"))]
    if reading.numbers:
        number = text.cast(pl.Float64, strict=False)
        here &= ~text.is_in(NOT_A_NUMBER)
        whole = pl.when(is_exact(number)).then(whole_numbers(number))
        is_float = text.str.contains(POINT_OR_EXPONENT) & whole.is_not_null()
        changes.append((is_float, whole.cast(pl.String)))
    value: pl.Expr = pl.when(here).then(text)
    for where, change in changes:
        value = pl.when(where).then(change).otherwise(value)
    return value


def is_exact(values: pl.Expr) -> pl.Expr:
    """Whether no other integer becomes the same double as this number."""
    return values.abs() < FIRST_INEXACT


def class_series(
    side: Predictions, width: int, common: pl.DataType, reading: Reading = AS_WRITTEN
) -> pl.Series:
    """The class of each score column, in the common spelling."""
    names = side.class_names or tuple(str(i) for i in range(width))
    if common.is_integer():
        return pl.Series([int(name) for name in names], dtype=common)
    named = pl.Series("names", list(names), dtype=pl.String)
    return named.to_frame().select(_text(pl.col("names"), reading)).to_series()
