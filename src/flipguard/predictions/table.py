"""`Predictions`: what one model said about each sample, and how to get at it in pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.errors import InputError, listed

if TYPE_CHECKING:
    from pathlib import Path

Array = npt.NDArray[Any]
ScoreKind = Literal["logits", "probabilities"]

SCORE_KINDS: tuple[ScoreKind, ...] = ("logits", "probabilities")
WHOLE_NUMBER = r"^(-?[0-9]+)\.0$"
WIDE_PREFIX: dict[ScoreKind, str] = {"logits": "logit_", "probabilities": "probability_"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Where a table's class scores are.

    Exactly one of `array`, `list_column` and `wide_columns` is set. `class_names` is None when
    only the position of a score tells its class (0, 1, 2, …).
    """

    kind: ScoreKind
    class_names: tuple[str, ...] | None = None
    array: Array | None = None
    list_column: str | None = None
    wide_columns: tuple[str, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of the frame that hold the scores; none when they are an array."""
        if self.list_column is not None:
            return [self.list_column]
        return list(self.wide_columns or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One model's predictions: a lazy table and the roles of its columns.

    Nothing is read until a comparison asks for it, so a file may be larger than memory.
    Make one with `flipguard.read_predictions`, `Predictions.from_arrays` or
    `Predictions.from_frame`.
    """

    name: str
    frame: pl.LazyFrame
    id: str | None
    target: str | None
    label: str | None
    scores: Scores | None
    path: Path | None = None

    @classmethod
    def from_arrays(
        cls,
        *,
        labels: Sequence[object] | Array | None = None,
        logits: Array | None = None,
        probabilities: Array | None = None,
        targets: Sequence[object] | Array | None = None,
        ids: Sequence[object] | Array | None = None,
        class_names: Sequence[object] | None = None,
        slices: Mapping[str, Sequence[object] | Array] | None = None,
        name: str = "predictions",
    ) -> Predictions:
        """Predictions from arrays in memory; scores are used where they lie, without a copy.

        With `class_names`, integers in `targets` and `labels` are places in it.

        >>> import numpy as np
        >>> p = Predictions.from_arrays(labels=[0, 1, 1], targets=[0, 1, 0], ids=["a", "b", "c"])
        >>> p.height
        3
        """
        columns: dict[str, pl.Series] = {}
        for column, values in {"id": ids, "target": targets, "label": labels}.items():
            if values is not None:
                columns[column] = _column(column, values, name)
        for column, values in (slices or {}).items():
            if column in columns:
                raise InputError(
                    f"{name} has a slice called '{column}', a name kept for the table itself; "
                    "rename the slice."
                )
            columns[column] = _column(column, values, name)
        names = None if class_names is None else tuple(class_name(c) for c in class_names)
        names = _distinct(names, name)
        scores = _array_scores(logits, probabilities, names, name)
        for role in ("target", "label"):
            if names is not None and role in columns:
                columns[role] = _by_name(columns[role], names, name)
        lengths = {column: len(values) for column, values in columns.items()}
        if scores is not None and scores.array is not None:
            lengths[scores.kind] = len(scores.array)
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{column} {length:,}" for column, length in lengths.items())
            raise InputError(
                f"{name} has arrays of different lengths ({told}); give one entry a sample in each."
            )
        if not columns:
            # A frame without columns would have no height: the row number stands in.
            columns["__row"] = pl.Series("__row", np.arange(next(iter(lengths.values()), 0)))
        return cls(
            name=name,
            frame=pl.DataFrame(list(columns.values())).lazy(),
            id="id" if ids is not None else None,
            target="target" if targets is not None else None,
            label="label" if labels is not None else None,
            scores=scores,
        ).checked()

    @classmethod
    def from_frame(
        cls,
        frame: object,
        *,
        id: str | None = None,
        target: str | None = None,
        label: str | None = None,
        name: str = "predictions",
    ) -> Predictions:
        """Predictions from a Polars frame (eager or lazy), a pandas frame or an Arrow table.

        >>> import polars as pl
        >>> frame = pl.DataFrame({"id": ["a", "b"], "target": ["cat", "dog"],
        ...                       "logit_cat": [2.0, 0.1], "logit_dog": [0.5, 0.4]})
        >>> Predictions.from_frame(frame).class_names
        ('cat', 'dog')
        """
        if isinstance(frame, pl.LazyFrame):
            lazy = frame
        elif isinstance(frame, pl.DataFrame):
            lazy = frame.lazy()
        elif type(frame).__module__.split(".")[0] == "pandas":
            lazy = pl.from_pandas(frame).lazy()
        elif hasattr(frame, "__arrow_c_stream__"):
            lazy = pl.DataFrame(frame).lazy()
        else:
            raise InputError(
                f"Expected a Polars or pandas frame or an Arrow table, but got "
                f"{type(frame).__name__}; for arrays use Predictions.from_arrays."
            )
        return with_roles(lazy, name=name, id=id, target=target, label=label)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes that the scores are of, or None where labels are all there is."""
        return self.scores.class_names if self.scores is not None else None

    @property
    def height(self) -> int:
        """The number of samples."""
        return int(self.frame.select(pl.len()).collect(engine="streaming").item())

    @property
    def columns(self) -> list[str]:
        """Every column of the table that can be a slice."""
        scores = set(self.scores.columns) if self.scores is not None else set()
        return [c for c in self.frame.collect_schema().names() if c not in scores | {"__row"}]

    def column(self, name: str) -> str | None:
        """The column behind a name as a user gives it: `target` means the target's role."""
        if name == "target" and self.target is not None:
            return self.target
        return name if name in self.columns else None

    def checked(self) -> Predictions:
        """Itself, once the things that need no reading of rows are right."""
        if self.label is None and self.scores is None:
            raise InputError(
                f"{self.name} has neither predicted labels nor class scores (columns: "
                f"{listed(self.columns, most=8)}); name the column of predicted classes with "
                "--label, or add logits or probabilities."
            )
        return self


def with_roles(
    frame: pl.LazyFrame,
    *,
    name: str,
    id: str | None,
    target: str | None,
    label: str | None,
    class_names: Sequence[str] | None = None,
    path: Path | None = None,
) -> Predictions:
    """Finds which column is what; a name that was asked for must be there."""
    schema = frame.collect_schema()
    known = schema.names()

    def role(asked: str | None, usual: str, flag: str) -> str | None:
        if asked is not None and asked not in known:
            raise InputError(
                f"{name} has no column '{asked}', which {flag} asks for; "
                f"its columns are {listed(known, most=12)}."
            )
        return asked if asked is not None else (usual if usual in known else None)

    id_column = role(id, "id", "--id")
    if id_column is None:
        raise InputError(
            f"{name} has no column 'id' to join on; name it with --id "
            f"(its columns are {listed(known, most=12)})."
        )
    return Predictions(
        name=name,
        frame=frame,
        id=id_column,
        target=role(target, "target", "--target"),
        label=role(label, "label", "--label"),
        scores=_column_scores(schema, class_names, name),
        path=path,
    ).checked()


def _column_scores(
    schema: pl.Schema, class_names: Sequence[str] | None, name: str
) -> Scores | None:
    for kind in SCORE_KINDS:
        if kind in schema:
            dtype = schema[kind]
            if not isinstance(dtype, pl.List | pl.Array) or not _is_number(dtype.inner):
                raise InputError(
                    f"{name} has a column '{kind}' of type {dtype}, where a list of numbers a row "
                    f"is expected; store lists, or one column '{WIDE_PREFIX[kind]}<class>' a class."
                )
            names = None if class_names is None else tuple(class_name(c) for c in class_names)
            return Scores(kind=kind, list_column=kind, class_names=_distinct(names, name))
        prefix = WIDE_PREFIX[kind]
        wide = tuple(column for column in schema.names() if column.startswith(prefix))
        if wide:
            bad = [c for c in wide if not _is_number(schema[c])]
            if bad:
                raise InputError(
                    f"{name} has a score column '{bad[0]}' of type {schema[bad[0]]}, where "
                    "numbers are expected; convert it, or rename it if it is no score."
                )
            names = tuple(class_name(column.removeprefix(prefix)) for column in wide)
            return Scores(kind=kind, wide_columns=wide, class_names=_distinct(names, name))
    return None


def _is_number(dtype: object) -> bool:
    return isinstance(dtype, pl.DataType | type) and pl.Series(dtype=dtype).dtype.is_numeric()  # type: ignore[arg-type]


def _array_scores(
    logits: Array | None,
    probabilities: Array | None,
    names: tuple[str, ...] | None,
    name: str,
) -> Scores | None:
    given: ScoreKind = "logits" if logits is not None else "probabilities"
    values = logits if logits is not None else probabilities
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{name} has {given} of shape {array.shape} and type {array.dtype}; "
            "expected numbers of shape (samples, classes)."
        )
    if array.dtype.kind in "iu" or array.dtype == np.float16:
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    if array.shape[1] == 0:
        raise InputError(f"{name} has {given} of no class; expected at least one column.")
    if names is not None and len(names) != array.shape[1]:
        raise InputError(
            f"{name} has {given} of {array.shape[1]:,} classes but {len(names):,} class names; "
            "give one name a column, in order."
        )
    return Scores(kind=given, array=array, class_names=names)


def _by_name(column: pl.Series, names: tuple[str, ...], table: str) -> pl.Series:
    """Classes by name where they are given by place: 2 is the third of `names`.

    Unless the names are integers themselves: then 2 is the class called 2.
    """
    if not column.dtype.is_integer() or all(is_integer(name) for name in names):
        return column
    outside = ((column < 0) | (column >= len(names))).fill_null(False)
    if outside.any():
        row = outside.arg_max() or 0
        raise InputError(
            f"{table} has {column.name} {column[row]} in row {row + 1:,}, which is no place in its "
            f"{len(names):,} class names; places count from 0."
        )
    return pl.Series(column.name, names).gather(column.cast(pl.UInt32))


def is_integer(name: str) -> bool:
    """Whether a class is named by an integer.

    >>> is_integer("7"), is_integer("007")
    (True, False)
    """
    # "007" is a name of its own: only what an integer would be printed as counts as one.
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return False
    return str(int(name)) == name and -(2**63) <= int(name) < 2**63


def _distinct(names: tuple[str, ...] | None, name: str) -> tuple[str, ...] | None:
    if names is not None and len(set(names)) != len(names):
        twice = [item for item in dict.fromkeys(names) if names.count(item) > 1]
        raise InputError(
            f"{name} names class {listed(twice)} more than once; class names must differ."
        )
    return names


def class_name(value: object) -> str:
    """The one spelling of a class: a 3 that some writer turned into 3.0 is still class 3.

    >>> class_name(3.0), class_name("3.0"), class_name("v3.0")
    ('3', '3', 'v3.0')
    """
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return re.sub(WHOLE_NUMBER, r"\1", text)


def _column(column: str, values: Sequence[object] | Array, name: str) -> pl.Series:
    array = np.asarray(values)
    if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
        # numpy would spell a nan among names as the name "nan".
        array = np.array(values, dtype=object)
    if array.ndim != 1:
        raise InputError(
            f"{name} has '{column}' of shape {array.shape}; expected one value a sample."
        )
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind in "iufb":
        return pl.Series(column, array)
    items = [_missing_as_none(item) for item in array.tolist()]
    kinds = {type(item) for item in items if item is not None}
    if not kinds <= {str, int, float, bool}:
        odd = next(iter(kinds - {str, int, float, bool}))
        raise InputError(
            f"{name} has '{column}' of {odd.__name__} values; expected numbers or text."
        )
    if kinds == {int, float}:
        items = [item if item is None else float(item) for item in items]
    elif len(kinds) > 1:
        # Names and numbers mixed are names: 3 and "3" are the same class or id.
        items = [item if item is None else class_name(item) for item in items]
    return pl.Series(column, items)


def _missing_as_none(item: Any) -> Any:
    value = item.item() if isinstance(item, np.generic) else item
    return None if isinstance(value, float) and value != value else value
