"""Names: how a class is spelled, and which column names are well known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import polars as pl
import polars.selectors as cs

from flipguard.errors import InputError, any_of, listed

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")

# Names of columns that are taken for a role unless the column is named, the most usual first.
RECOGNISED = {
    "id": ("id", "sample_id", "doc_id", "uid"),
    "target": ("target", "y_true", "gold", "ground_truth"),
    "label": ("label", "y_pred", "pred", "prediction", "predicted"),
    "correct": ("correct", "acc", "is_correct", "passed"),
}
# Further common names are suggested, and never used without being named.
SUGGESTED = {"target": ("true", "actual", "truth")}
OR_ROW = ", or use `id='row'` if all sides have the same rows in the same order"
# What each role means, in a sentence.
MEANING = {
    "id": "the id",
    "target": "the true class",
    "label": "the predicted class",
    "correct": "the grade",
}
# `id="row"`: rows of all sides correspond by their position.
ROW = "row"
# Signs that separate columns in some files, in the order in which they are tried.
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
SCORE_PREFIXES = ("logit_", "probability_", "proba_", "prob_", "p_")


def exactly(column: str) -> pl.Expr:
    """The column with exactly this name; `pl.col` would read "*" and "^a.*$" as patterns."""
    return cs.by_name(column).as_expr()


# -- classes -----------------------------------------------------------------------------------


def class_name(value: object) -> str:
    """The one spelling of a class that comes from Python: a float 3.0 is class 3.

    >>> class_name(3.0), class_name("3.0"), class_name(True)
    ('3', '3.0', 'true')
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as problem:
            raise InputError(
                f"The class name {value[:40]!r} is no UTF-8 text; decode it, and give text."
            ) from problem
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def class_names(values: Iterable[object], table: str) -> tuple[str, ...]:
    """The names of classes, each once; names that are all numbers are spelled as integers are.

    >>> class_names(["3.0", "4"], "m"), class_names(["3.0", "cat"], "m")
    (('3', '4'), ('3.0', 'cat'))
    """
    names = [class_name(value) for value in values]
    if all(NUMBER.fullmatch(name) for name in names):
        names = [_as_integer(name) for name in names]
    if "" in names:
        raise InputError(
            f"{table} has scores of a class without a name; give every class a name, or rename the "
            "column if it is no score."
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(
            f"{table} names class {listed(twice)} more than once; class names must differ."
        )
    return tuple(names)


def _as_integer(number: str) -> str:
    if INTEGER.fullmatch(number):
        return str(int(number))
    value = float(number)
    return str(int(value)) if value.is_integer() else number


# -- floats --------------------------------------------------------------------------------------


def whole_numbers(values: pl.Expr) -> pl.Expr:
    """Floats as integers; null if they are not whole."""
    floats = values.cast(pl.Float64)
    whole = floats.cast(pl.Int64, strict=False)
    return pl.when(whole.cast(pl.Float64) == floats).then(whole)


def float_text(values: pl.Expr) -> pl.Expr:
    """Floats as text: a whole number as the integer that it is; null where there is no number."""
    whole = whole_numbers(values).cast(pl.String)
    # In the precision that they have: 0.1 of 32 bits is "0.1", and would be another as 64 bits.
    fraction = values.fill_nan(None).cast(pl.String)
    return pl.when(whole.is_null()).then(fraction).otherwise(whole)


# -- columns -----------------------------------------------------------------------------------


def well_known(role: str, columns: Iterable[str]) -> list[str]:
    """The columns whose names are well known for a role, the most usual first.

    >>> well_known("target", ["id", "gold", "y_true"])
    ['y_true', 'gold']
    """
    columns = list(columns)
    names = (*RECOGNISED[role], *SUGGESTED.get(role, ()))
    return [c for known in names for c in columns if c.lower() == known]


def column_of(
    role: str,
    columns: Iterable[str],
    asked: Mapping[str, str | None],
    table: str,
    *,
    also: str | None = None,
) -> str | None:
    """The one column that is taken for a role; None if none is, an error if several may be.

    >>> column_of("target", ["id", "gold"], {}, "t.csv")
    'gold'
    """
    named = {column for column in asked.values() if column is not None}
    names = (*RECOGNISED[role], also)
    found = [c for c in columns if c in names and c not in named]
    if len(found) < 2:
        return next(iter(found), None)
    ways = [f"`{role}={column!r}`" for column in found]
    if role == "label" and asked.get("target") is None:
        truth = next((c for c in found if c in ("label", also)), None)
        if truth is not None:
            other = next(column for column in found if column != truth)
            ways = [f"`target={truth!r}, label={other!r}` if {truth!r} is the true class", *ways]
    raise InputError(
        f"{table} has {len(found)} columns that may be {MEANING[role]} ({listed(found)}); name the "
        f"right one: {any_of(ways)}."
    )


def score_like(columns: Sequence[str]) -> list[str]:
    """The columns that are named like class scores.

    >>> score_like(["id", "proba_cat", "proba_dog", "p_value"])
    ['proba_cat', 'proba_dog']
    """
    found: list[str] = []
    for prefix in SCORE_PREFIXES:
        alike = [c for c in columns if c.lower().startswith(prefix) and c[len(prefix) :]]
        # One column p_value or p_adjusted is more often a p value than a score.
        if prefix != "p_" or len(alike) > 1:
            found += alike
    return found


def _known_roles(columns: Sequence[str]) -> list[str]:
    return [role for role in RECOGNISED if well_known(role, columns)]


def suggestion(columns: Sequence[str], roles: Iterable[str]) -> str:
    """The arguments that would name the columns of some roles; empty if none is well known.

    >>> suggestion(["sample_id", "y_pred"], ["id", "target", "label"])
    "`id='sample_id', label='y_pred'`"
    """
    found = [(role, well_known(role, columns)) for role in roles]
    text = ", ".join(f"{role}={names[0]!r}" for role, names in found if names)
    return f"`{text}`" if text else ""


def refuse_other_separator(table: str, columns: Sequence[str], used: Iterable[object] = ()) -> None:
    """Raise if the names of columns show that another sign separates them.

    One column that holds such a sign is a whole header. So are several, cut at commas, if a part
    of one is well known and no column is.
    """
    known = {name for names in RECOGNISED.values() for name in names}
    for mark, signs in SEPARATORS.items():
        joined = [c for c in columns if mark in c and c not in used]
        parts = {part for column in joined for part in column.split(mark)}
        if joined and (len(columns) == 1 or (known & parts and not known & {*columns})):
            has = "a single column" if len(columns) == 1 else "columns"
            raise InputError(
                f"{table} has {has} {listed(joined)}, so its columns seem to be separated by "
                f"{signs}; save it with commas as .csv, or with tabs as .tsv."
            )


def missing_roles(
    name: str, columns: Sequence[str], *, id: str | None, target: str | None, predicts: bool
) -> InputError | None:
    """The error for a table without ids or predictions: what is missing, and how to name it."""
    if id is not None and predicts:
        return None
    lacks = [] if id is not None else ["no column 'id' to join on"]
    asked = [] if id is not None else ["id"]
    asked += ["target"] if target is None else []
    ways = [] if id is not None else [f"name the ids with `id=`{OR_ROW}"]
    if not predicts:
        lacks.append("neither predicted labels nor class scores")
        if not well_known("label", columns) and well_known("correct", columns):
            asked = [role for role in asked if role != "target"] + ["correct"]
        else:
            asked.append("label")
        alike = score_like(columns)
        ways.append(
            f"rename {listed(alike)} to probability_<class>, if these are class scores"
            if alike
            else "name the column of predicted classes with `label=`, or of grades with "
            "`correct=`, or add logits or probabilities"
        )
    known = suggestion(columns, asked)
    way = f"try: {known}" if known else ", and ".join(ways)
    if known and not predicts and not {"label", "correct"} & set(_known_roles(columns)):
        way += f", and {ways[-1]}"
    if known and id is None and not well_known("id", columns):
        way += f", and {ways[0]}"
    return InputError(
        f"{name} has {' and '.join(lacks)} (columns: {listed(columns, most=12)}); {way}."
    )
