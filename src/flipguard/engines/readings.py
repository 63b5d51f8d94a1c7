"""How each column of ids, classes and groups is read: decided once, over all its rows.

Text has no types, so that only the whole of a column tells whether its values are numbers; and
only the columns that are compared with it tell what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path

import polars as pl

from flipguard.engines.binary import BinaryClasses, binary_classes
from flipguard.engines.classes import (
    AS_WRITTEN,
    NOT_A_NUMBER,
    POINT_OR_EXPONENT,
    TEXT,
    Reading,
    dtype_of,
    is_exact,
    is_scalar,
    spelled,
)
from flipguard.errors import InputError, listed
from flipguard.formatting import is_integer
from flipguard.predictions.names import NUMBER, exactly, whole_numbers
from flipguard.predictions.table import Predictions

# The first rows of a column of names show that it does not hold numbers, which saves a look at all.
ROWS_TO_PEEK = 1_000
# What text has that is numbers but not integers alone, as `_text_look` then tells.
SUSPECT = f"{POINT_OR_EXPONENT}|^(?:{'|'.join(NOT_A_NUMBER)})$"
# Single bytes are found ten times as fast as longer ones.
SUSPECT_BYTES = (b".", b"e", b"E", b"n", b"N")
# The first bytes of gzip and of Zstandard.
COMPRESSED = (b"\x1f\x8b", b"\x28\xb5")
IDS_TO_NAME = 3
# What 64 bits cannot hold next to other numbers is compared as text.
WIDE = frozenset({pl.UInt64(), pl.Int128(), pl.UInt128()})

Key = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The common types of ids, classes and groups, and the reading of each column.

    `columns` is by the number of the side and the role of the column: "id", "target", "label", or
    "by " and the name of a column to group by.
    """

    ids: pl.DataType
    classes: pl.DataType
    cuts: dict[str, pl.DataType] = field(default_factory=dict)
    columns: dict[Key, Reading] = field(default_factory=dict)
    binary: BinaryClasses | None = None
    truth: bool = False

    def of(self, side: int, role: str) -> Reading:
        """The reading of one column."""
        return self.columns.get((side, role), AS_WRITTEN)

    @property
    def names(self) -> Reading:
        """The reading of class names that come with scores."""
        return Reading(truth=self.truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Facts about the values of a column, over all its rows.

    `numbers`: it is text, and all of it are numbers; `points`: one of them has a point or exponent;
    `missing`: a value is missing; `fraction`: a number is not whole; `inexact`: a number with a
    point or exponent is too large for a double to tell it from the next integer.
    """

    numbers: bool = False
    points: bool = False
    missing: bool = False
    fraction: bool = False
    inexact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column in its role, with the facts about its values."""

    index: int
    role: str
    name: str
    side: Predictions
    facts: _Facts = field(default_factory=_Facts)

    @property
    def dtype(self) -> pl.DataType:
        return dtype_of(self.side, self.name)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_float() or (self.facts.numbers and self.facts.points)


def readings_of(sides: Sequence[Predictions], cuts: Sequence[str]) -> Readings:
    """Decide the reading of every column; ambiguous types need a look at all rows."""
    named = {
        "id": [(i, side, side.id) for i, side in enumerate(sides)],
        "target": [(i, side, side.target) for i, side in enumerate(sides)],
        "label": [(i, side, side.label) for i, side in enumerate(sides)],
        # Only old and new have groups.
        **{f"by {cut}": [(i, s, s.column(cut)) for i, s in enumerate(sides[:2])] for cut in cuts},
    }
    roles: dict[str, list[_Column]] = {role: [] for role in named}
    for i, side in enumerate(sides):
        asked = [
            (role, column)
            for role, of in named.items()
            for j, _, column in of
            # A column may be called "": the index of a data frame that pandas wrote.
            if i == j and column is not None
        ]
        for column in _looked_at(i, side, asked):
            roles[column.role].append(column)
    classes = [*roles["target"], *roles["label"]]
    for column in (*roles["id"], *classes):
        if column.facts.numbers and column.facts.inexact:
            raise _inexact(column)
    if all(side.correct is None for side in sides):
        # The answers of graded rows may be any numbers.
        _refuse_floats(classes)
    truth = any(column.dtype == pl.Boolean for column in classes)
    columns = {}
    for group in (roles["id"], classes, *(roles[f"by {cut}"] for cut in cuts)):
        either = any(column.dtype == pl.Boolean for column in group)
        for column in group:
            reading = Reading(numbers=column.facts.numbers, truth=either)
            columns[column.index, column.role] = reading
    for i, side in enumerate(sides):
        if side.label is None:
            # Its labels will be names of its scores' classes.
            columns[i, "label"] = Reading(truth=truth)
    common, binary = _common_class(sides, classes), None
    if sides[0].binary is not None:
        targets = _different(roles["target"], common, columns)
        binary = binary_classes(sides, targets, common)
        common = binary.dtype
    return Readings(
        ids=_common(column.dtype for column in roles["id"]),
        classes=common,
        binary=binary,
        cuts={cut: _common_group(column.dtype for column in roles[f"by {cut}"]) for cut in cuts},
        columns=columns,
        truth=truth,
    )


# -- common types ------------------------------------------------------------------------------


def _common_class(sides: Sequence[Predictions], columns: list[_Column]) -> pl.DataType:
    """Integers if every label, target and class name of every file is one; else text."""
    scored = [side for side in sides if side.scores is not None]
    names = [name for side in scored for name in side.class_names or ()]
    if not all(is_integer(name) for name in names):
        return pl.String()
    found = [column.dtype for column in columns]
    return _common([*found, pl.Int64()] if scored else found)


def _common(types: Iterable[pl.DataType]) -> pl.DataType:
    found = set(types)
    if not all(dtype.is_integer() for dtype in found):
        return pl.String()
    # One type for all needs no conversion at all, which is half the time of counting labels.
    if len(found) == 1:
        return found.pop()
    return pl.String() if found & WIDE else pl.Int64()


def _common_group(types: Iterable[pl.DataType]) -> pl.DataType:
    """The one type of both files if its values are their own spelling; else text."""
    found = set(types)
    if len(found) != 1:
        return _common(found)
    dtype = found.pop()
    return pl.String() if dtype in TEXT or dtype.is_decimal() else dtype


def _different(
    columns: list[_Column], common: pl.DataType, readings: dict[Key, Reading]
) -> set[object]:
    """The different values of columns of classes, in the common spelling."""
    found: set[object] = set()
    for column in columns:
        reading = readings[column.index, column.role]
        values = spelled(column.name, column.side, common, reading).alias("value").unique()
        with_all = column.side.frame.select(values).collect(engine="streaming")
        found |= set(with_all["value"].to_list())
    return found


# -- what all rows say -------------------------------------------------------------------------


def _looked_at(i: int, side: Predictions, asked: list[tuple[str, str]]) -> list[_Column]:
    """The columns of one file with what all their rows say, where their types leave that open."""
    columns = [_Column(index=i, role=role, name=name, side=side) for role, name in asked]
    # Ids and groups that are floats or decimals have one reading, whatever their rows hold.
    classes = {c.name for c in columns if c.role in ("target", "label")}
    open_ended = {c.name for c in columns if c.dtype in TEXT}
    open_ended |= {c for c in classes if dtype_of(side, c).is_float()}
    open_ended |= {c for c in classes if dtype_of(side, c).is_decimal()}
    facts = _facts(side, sorted(open_ended))
    return [replace(column, facts=facts.get(column.name, column.facts)) for column in columns]


def _facts(side: Predictions, columns: list[str]) -> dict[str, _Facts]:
    """What all rows say of each column whose type leaves that open."""
    text = [c for c in columns if dtype_of(side, c) in TEXT]
    suspects = _suspects(side, text)
    looks = {
        c: _text_look(c) if c in text else _number_look(c, dtype_of(side, c))
        for c in columns
        if c in suspects or c not in text
    }
    if not looks:
        return {}
    row = side.frame.select(
        fact.alias(f"{i}|{name}")
        for i, look in enumerate(looks.values())
        for name, fact in look.items()
    )
    found = row.collect(engine="streaming").row(0, named=True)
    return {
        column: _Facts(**{name: bool(found[f"{i}|{name}"]) for name in look})
        for i, (column, look) in enumerate(looks.items())
    }


def _suspects(side: Predictions, text: list[str]) -> set[str]:
    """The columns of text that may be numbers other than integers."""
    if not text:
        return set()
    values = [exactly(c).cast(pl.String).alias(str(i)) for i, c in enumerate(text)]
    peek = side.frame.select(values).head(ROWS_TO_PEEK).collect()
    still = [c for i, c in enumerate(text) if _may_be_numbers(peek[str(i)])]
    if not still or lacks(side.paths, SUSPECT_BYTES):
        return set()
    signs = [
        exactly(c).cast(pl.String).str.contains(SUSPECT).any().alias(str(i))
        for i, c in enumerate(still)
    ]
    row = side.frame.select(signs).collect(engine="streaming").row(0)
    return {c for c, has_one in zip(still, row, strict=True) if has_one}


def lacks(paths: Sequence[Path], signs: Sequence[bytes]) -> bool:
    """Whether the rows of text files hold none of these, which their bytes alone may tell."""
    return bool(paths) and all(_lacks(path, signs) for path in paths)


def _lacks(path: Path, signs: Sequence[bytes]) -> bool:
    if path.suffix.lower() not in (".csv", ".tsv"):
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        rows = data.find(b"\n")
        # What is compressed is read as such, whatever it is called.
        return (
            rows >= 0
            and data[:2] not in COMPRESSED
            and all(data.find(sign, rows) < 0 for sign in signs)
        )


_MATCH = f"^(?:{NUMBER.pattern})$"


def _may_be_numbers(first: pl.Series) -> bool:
    here = first.drop_nulls()
    here = here.filter(~here.is_in(["", *NOT_A_NUMBER]))
    return bool(len(first)) and bool(here.str.contains(_MATCH).all())


def _text_look(column: str) -> dict[str, pl.Expr]:
    text = exactly(column).cast(pl.String)
    here = pl.when(~text.is_in(["", *NOT_A_NUMBER])).then(text)
    number = here.cast(pl.Float64, strict=False)
    points = here.str.contains(POINT_OR_EXPONENT)
    return {
        "numbers": here.str.contains(_MATCH).all(),
        "points": points.any(),
        "missing": here.is_null().any(),
        "fraction": (here.is_not_null() & whole_numbers(number).is_null()).any(),
        "inexact": (points & ~is_exact(number)).any(),
    }


def _number_look(column: str, dtype: pl.DataType) -> dict[str, pl.Expr]:
    values = exactly(column)
    if dtype.is_float():
        values = values.fill_nan(None)
        fraction = values.is_not_null() & whole_numbers(values).is_null()
    else:
        fraction = values != values.floor()
    return {"missing": values.is_null().any(), "fraction": fraction.any()}


# -- floats as classes -------------------------------------------------------------------------


def _refuse_floats(columns: list[_Column]) -> None:
    """Raise for floats as classes, except integers that a library wrote as floats."""
    for column in columns:
        if not is_scalar(column.dtype):
            continue  # `spelled` has the sentence.
        if column.facts.fraction and (column.is_float or column.dtype.is_decimal()):
            raise _fractions(column)
    plain = [column for column in columns if not column.is_float]
    bare = [column for column in columns if column.is_float and not column.facts.missing]
    if bare and plain:
        # A column without any value is of no type.
        text = next((column for column in plain if _has_a_value(column)), None)
        if text is not None:
            raise _looks_like_a_flag(bare[0], text)


def _has_a_value(column: _Column) -> bool:
    reading = Reading(numbers=column.facts.numbers)
    value = spelled(column.name, column.side, pl.String(), reading)
    some = column.side.frame.filter(value.is_not_null()).head(1)
    return bool(some.select(pl.len()).collect().item())


def _inexact(column: _Column) -> InputError:
    text = exactly(column.name).cast(pl.String)
    number = text.cast(pl.Float64, strict=False)
    odd = text.str.contains(POINT_OR_EXPONENT) & ~is_exact(number)
    first = column.side.frame.select(text.filter(odd).head(1)).collect().item()
    return InputError(
        f"{column.side.name} has the number {first} in column '{column.name}', where "
        f"{'ids' if column.role == 'id' else 'classes'} are expected; with a point or an exponent, "
        "numbers of 2^53 and more cannot be told apart: write them as integers."
    )


def _fractions(column: _Column) -> InputError:
    side, values = column.side, exactly(column.name)
    if column.dtype in TEXT:
        values = values.cast(pl.String).cast(pl.Float64, strict=False)
    values = values.fill_nan(None) if not column.dtype.is_decimal() else values
    whole = whole_numbers(values)
    where = (values.is_not_null() & whole.is_null()).alias("odd")
    ids = exactly(side.id) if side.id is not None else pl.int_range(1, pl.len() + 1)
    rows = side.frame.select(ids.alias("id"), exactly(column.name).alias("value"), where)
    odd = rows.filter(pl.col("odd"))
    total = odd.select(pl.len()).collect(engine="streaming").item()
    first = odd.head(IDS_TO_NAME).collect()
    more = f" and {total - IDS_TO_NAME:,} more" if total > IDS_TO_NAME else ""
    return InputError(
        f"{side.name} has fractional numbers in column '{column.name}' "
        f"({_shown(first['value'])}), for {'row' if side.id is None else 'id'} "
        f"{listed(first['id'].to_list())}{more}, but classes are names or integers; this looks "
        f"like a score or a regression output: name the column of classes with `{column.role}=`."
    )


def _looks_like_a_flag(column: _Column, other: _Column) -> InputError:
    name = column.side.name
    frame = column.side.frame.select(exactly(column.name).alias("value"))
    values = frame.unique().sort("value").head(2).collect()["value"]
    kind = "integers" if other.dtype.is_integer() else "values"
    where = f"column '{other.name}'"
    if other.side.name != name:
        where += f" of {other.side.name}"
    return InputError(
        f"{name} has floats in column '{column.name}' ({_shown(values)}), but {where} has {kind}; "
        "this looks like a score or a right/wrong flag, not like "
        f"{'true' if column.role == 'target' else 'predicted'} classes. Name the column of classes "
        f"with `{column.role}=`, or write its whole numbers as integers."
    )


def _shown(values: pl.Series) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values.to_list()))
