"""Read grades: columns that say of each row whether it is right, or why it has no answer."""

from __future__ import annotations

import polars as pl

from flipguard.counts import NO_ANSWER
from flipguard.engines.classes import TEXT
from flipguard.errors import InputError
from flipguard.predictions.names import exactly

RIGHT, WRONG = "right", "wrong"
GRADES = (RIGHT, WRONG, *NO_ANSWER)
# What graders write, in lower case. Libraries write 0 and 1 as floats if a value is missing.
SPELLINGS = {
    **dict.fromkeys(("1", "1.0", "true", "pass", "c"), RIGHT),
    **dict.fromkeys(("0", "0.0", "false", "fail", "i"), WRONG),
    **{reason: reason for reason in NO_ANSWER},
}


def grade_of(column: str, dtype: pl.DataType, name: str) -> pl.Expr:
    """The grade of each row, as one of `GRADES`; a value that is no grade stays as it is."""
    values = exactly(column)
    if dtype == pl.Boolean:
        return pl.when(values).then(pl.lit(RIGHT)).when(~values).then(pl.lit(WRONG))
    if not (dtype in TEXT or dtype.is_numeric() or dtype == pl.Null):
        raise InputError(
            f"{name} has a column '{column}' of type {dtype}, which `correct=` cannot read as "
            "grades; write 0 and 1, true and false, pass and fail, or C and I."
        )
    text = values.cast(pl.String)
    return text.str.to_lowercase().replace_strict(SPELLINGS, default=text, return_dtype=pl.String)
