"""Turn one score per row into a class: positive from a threshold on, else the other class.

What describes such a score belongs to `flipguard.predictions.binary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from flipguard.engines.classes import TEXT, dtype_of
from flipguard.errors import InputError, listed
from flipguard.formatting import is_integer
from flipguard.predictions.names import exactly
from flipguard.predictions.table import Predictions

# Negative and positive class where no name is given, in the spellings that targets may have.
WELL_KNOWN = (("0", "1"), ("false", "true"), ("False", "True"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryClasses:
    """The names of the two classes, and their common type."""

    negative: str
    positive: str
    dtype: pl.DataType

    def label(self, side: Predictions) -> pl.Expr:
        """The class of each row of a side; null where its score is no finite number."""
        score = score_of(side)
        negative, positive = self.values
        return (
            pl.when(score >= _threshold(side))
            .then(pl.lit(positive, dtype=self.dtype))
            .when(score.is_not_null())
            .then(pl.lit(negative, dtype=self.dtype))
        )

    @property
    def values(self) -> tuple[object, object]:
        """The negative and the positive class in their common type."""
        names = (self.negative, self.positive)
        return names if self.dtype == pl.String else (int(names[0]), int(names[1]))


def score_of(side: Predictions) -> pl.Expr:
    """The score of each row of a side; null where it is missing, NaN, infinite or no number."""
    column, dtype = _column(side)
    if not (dtype.is_numeric() or dtype in TEXT or dtype == pl.Null):
        raise InputError(
            f"{side.name} has a column '{column}' of type {dtype}, where `positive_score=` expects "
            "one number per row; name the column of scores."
        )
    values = exactly(column)
    if not dtype.is_float():
        values = (values.cast(pl.String) if dtype in TEXT else values).cast(
            pl.Float64, strict=False
        )
    return pl.when(values.is_finite()).then(values)


def _threshold(side: Predictions) -> pl.Expr:
    """The threshold in the precision of the scores: 0.7 of 32 bits is at least 0.7."""
    if side.binary is None:
        raise AssertionError(f"{side.name} has no score of the positive class.")
    _, dtype = _column(side)
    single = dtype if dtype.is_float() else pl.Float64()
    return pl.lit(side.binary.threshold, dtype=pl.Float64).cast(single)


def _column(side: Predictions) -> tuple[str, pl.DataType]:
    if side.binary is None:
        raise AssertionError(f"{side.name} has no score of the positive class.")
    return side.binary.column, dtype_of(side, side.binary.column)


def binary_classes(
    sides: Sequence[Predictions], found: Iterable[object], dtype: pl.DataType
) -> BinaryClasses:
    """The two classes of a comparison, from the different targets of all sides."""
    targets = sorted({str(value) for value in found if value is not None})
    if len(targets) > 2:
        raise InputError(
            f"The targets have {len(targets):,} classes ({listed(targets)}), but one score with a "
            "threshold tells two classes apart; leave out the rows of other classes, or compare "
            "predicted classes with `label=`."
        )
    positive = _positive_name(sides)
    if positive is None:
        negative, positive = _well_known(targets)
    elif len(targets) == 2 and positive not in targets:
        raise InputError(
            f"No target is of the class {listed([positive])} that `positive=` names; the classes "
            f"are {listed(targets)}."
        )
    else:
        negative = next((name for name in targets if name != positive), _other(positive))
    named = all(name in targets or name in WELL_KNOWN[0] for name in (negative, positive))
    as_given = dtype.is_integer() and named and all(map(is_integer, (negative, positive)))
    return BinaryClasses(
        negative=negative, positive=positive, dtype=dtype if as_given else pl.String()
    )


def _positive_name(sides: Sequence[Predictions]) -> str | None:
    names = {side.binary.positive for side in sides if side.binary is not None}
    if len(names) > 1:
        raise InputError(
            f"The sides name different positive classes ({listed(sorted(map(str, names)))}); give "
            "every side the same `positive=`."
        )
    return next(iter(names), None)


def _well_known(targets: list[str]) -> tuple[str, str]:
    for pair in WELL_KNOWN:
        if set(targets) <= set(pair):
            return pair
    raise InputError(
        f"The targets are {listed(targets)}, and nothing says which class a high score means; name "
        "it with `positive=`."
    )


def _other(positive: str) -> str:
    """The name of the negative class where no row is of it."""
    pairs = {name: pair for pair in WELL_KNOWN for name in pair}
    if positive in pairs:
        return next(name for name in pairs[positive] if name != positive)
    return f"not {positive}"
