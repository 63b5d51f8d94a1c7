"""One side of a comparison, from what people have: a file, a run, a table, labels or scores.

Reading files belongs to `flipguard.predictions.read`, and the conversion of arrays and tables to
`flipguard.predictions.from_python`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from flipguard.errors import InputError
from flipguard.predictions.binary import checked_threshold
from flipguard.predictions.from_python import (
    as_array,
    has_index,
    is_frame,
    is_series,
    pandas_index,
)
from flipguard.predictions.read import read_predictions
from flipguard.predictions.side_files import is_list_of_paths, refuse_file_names
from flipguard.predictions.table import SCORE_KINDS, Predictions, ScoreKind

# `Predictions`, the path of a file or a run, a pattern or a list of `pathlib.Path` for several
# files, a table, labels, or scores of shape (samples, classes).
GivenSide: TypeAlias = Any
# The values of one column, or the name of a column.
ColumnOrValues: TypeAlias = Any

# The index of a pandas object without a name, as `reset_index` calls it.
INDEX = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The arguments of `compare` that say what the columns, labels and scores of its sides mean.

    A text is the name of a column, of every side that is a table. Values, one per sample, belong to
    every side that is labels or scores.
    """

    id: ColumnOrValues = None
    target: ColumnOrValues = None
    label: str | None = None
    label_old: str | None = None
    label_new: str | None = None
    correct: str | None = None
    scores: ScoreKind | None = None
    class_names: Sequence[object] | None = None
    positive_score: str | None = None
    threshold: float | None = None
    threshold_new: float | None = None
    positive: object = None

    def sides(
        self, *, old: GivenSide, new: GivenSide, control: Any, names: tuple[str | None, str | None]
    ) -> dict[str, Any]:
        """Return `old`, `new` and `controls`; `names` are those of old and new in outputs."""
        given = {"old": old, "new": new, **_several(control, "control")}
        self.check(given)
        found = [self.side(side, name) for name, side in given.items()]
        labels = (self.label_old, self.label_new)
        if are_columns_of_one_table(old, new, *labels):
            both = zip(found, labels, strict=False)
            found[:2] = [as_column_of_shared_table(side, str(label)) for side, label in both]
        first, second, *controls = with_common_grades(found)
        return {
            "old": first if names[0] is None else replace(first, name=names[0]),
            "new": second if names[1] is None else replace(second, name=names[1]),
            "controls": tuple(controls),
        }

    def side(self, given: GivenSide, argument: str) -> Predictions:
        """Return the predictions of one side, called as its argument if it has no name itself."""
        if isinstance(given, Predictions):
            return given
        named: dict[str, Any] = {
            "id": _text(self.id),
            "target": _text(self.target),
            "label": self.label if self._own_label(argument) is None else self._own_label(argument),
            "correct": self.correct,
        }
        if self.positive_score is not None or self.threshold is not None:
            named["positive_score"] = self.positive_score
            named |= self._threshold_of(argument)
        if not _is_table(given):
            return self._from_values(given, argument)
        with naming_own_label(None if self._own_label(argument) is None else f"label_{argument}"):
            if is_frame(given):
                return Predictions.from_frame(given, name=argument, **named)
            return read_predictions(given, **named)

    def _own_label(self, argument: str) -> str | None:
        """Return the column of labels of one side alone, if it has one."""
        return {"old": self.label_old, "new": self.label_new}.get(argument)

    def _from_values(self, given: Any, argument: str) -> Predictions:
        _refuse_no_values(given, argument)
        ids = self.id
        if isinstance(ids, str):
            ids = given.index if _is_index_of(given, ids) else None
        shape = (len(given),) if is_series(given) else as_array(given, "labels", argument).shape
        described: dict[str, Any] = {
            "ids": ids,
            "targets": None if isinstance(self.target, str) else self._target_of(given),
            "class_names": self.class_names,
            "name": argument,
        }
        if len(shape) == 1 and self.threshold is not None:
            described |= self._threshold_of(argument)
            return Predictions.from_arrays(positive_scores=given, **described)
        if len(shape) == 1:
            return Predictions.from_arrays(labels=given, **described)
        if len(shape) != 2:
            raise InputError(
                f"Expected `{argument}` to be one label per sample, or scores of shape (samples, "
                f"classes), but its shape is {shape}."
            )
        if self.threshold is not None:
            raise InputError(
                f"Expected no `threshold` with `{argument}` of shape {shape}, because it is "
                "compared with one score per sample; give the scores of the positive class as a "
                "1-D array."
            )
        if shape[1] == 1:
            raise InputError(
                f"Expected `{argument}` to be one label per sample, or scores of at least two "
                f"classes, but its shape is {shape}; give labels as a flat array, as ravel() does."
            )
        if self.scores is None:
            raise InputError(
                f"Expected `scores=` with `{argument}` of shape {shape}, because it can be read "
                "in two ways; say scores='probabilities' or scores='logits'."
            )
        return Predictions.from_arrays(**{self.scores: given}, **described)

    def _threshold_of(self, argument: str) -> dict[str, Any]:
        """Return the threshold of a side: new's is that of the controls too."""
        new = None if argument == "old" else self.threshold_new
        return {"threshold": self.threshold if new is None else new, "positive": self.positive}

    def _check_thresholds(self, *, tables: bool, values: bool) -> None:
        """Refuse thresholds that no side uses."""
        given = {"threshold_new": self.threshold_new, "positive": self.positive}
        for argument, value in given.items():
            if value is not None and self.threshold is None:
                raise InputError(
                    f"Expected `threshold=` with `{argument}=`: the score from which a row is "
                    "positive."
                )
        for argument, value in (
            ("threshold", self.threshold),
            ("threshold_new", self.threshold_new),
        ):
            if value is not None:
                checked_threshold(value, argument)
        if self.positive_score is not None and not tables:
            raise InputError(
                "Expected no `positive_score`, because no side is a file or a table with a column "
                f"{self.positive_score!r}; arrays hold the scores themselves."
            )
        if self.threshold is not None and not (tables or values):
            raise InputError(
                "Expected no `threshold`, because every side is Predictions, which have their "
                "thresholds; give it to read_predictions or Predictions.from_frame."
            )

    def _check_names(self, sides: Mapping[str, GivenSide], tables: Sequence[str]) -> None:
        """Refuse names of columns that are no names, or that no side has a use for."""
        for argument in ("label", "label_old", "label_new", "correct", "positive_score"):
            checked_column_name(getattr(self, argument), argument)
        for argument, given in (("label", self.label), ("correct", self.correct)):
            if given is not None and not tables:
                raise InputError(
                    f"Expected no `{argument}`, because no side is a file or a table with a column "
                    f"{given!r}; arrays are the labels or scores themselves."
                )
        for side in ("old", "new"):
            given = self._own_label(side)
            if given is not None and side not in tables:
                raise InputError(
                    f"Expected no `label_{side}`, because `{side}` is no file or table with a "
                    f"column {given!r}, but {type(sides[side]).__name__}; leave it out."
                )
        if self.label is not None and all(self._own_label(name) is not None for name in tables):
            raise InputError(
                "Expected no `label` with `label_old` and `label_new`, because they name the "
                "columns of both sides, and no control is a file or a table; leave it out."
            )

    def _target_of(self, given: Any) -> Any:
        """Return the targets in the order of a side whose index is its id."""
        if not (_is_index_of(given, self.id) and has_index(self.target)):
            return self.target
        target = self.target
        if not target.index.is_unique or not given.index.isin(target.index).all():
            raise InputError(
                f"Expected `target` to have one row per index of the predictions, as id={self.id!r}"
                " joins on it, but some are missing or repeated; give both the same index."
            )
        return target.loc[given.index]

    def check(self, sides: Mapping[str, GivenSide]) -> None:
        """Refuse arguments that no side uses, and pandas objects whose rows do not correspond."""
        if self.scores is not None and self.scores not in SCORE_KINDS:
            raise InputError(
                f"Expected `scores` to be probabilities or logits, but got {self.scores!r}."
            )
        for name, side in sides.items():
            if not is_list_of_paths(side):
                refuse_file_names(side, name)
        tables = [name for name, side in sides.items() if _is_table(side)]
        values = {
            name: side
            for name, side in sides.items()
            if not _is_table(side) and not isinstance(side, Predictions)
        }
        self._check_names(sides, tables)
        for role, given in (("id", self.id), ("target", self.target)):
            if isinstance(given, str) and not tables:
                if role == "id" and any(_is_index_of(side, given) for side in values.values()):
                    continue
                raise InputError(
                    f"Expected `{role}` to be values, one per sample, because no side is a file or "
                    f"a table with a column {given!r}; give the values."
                )
        for role, given in (("id", self.id), ("target", self.target)):
            if given is not None and not isinstance(given, str) and not values:
                raise InputError(
                    f"Expected `{role}` to be the name of a column, because every side is a table "
                    f"or has its columns already, but got {type(given).__name__}; give the name."
                )
        self._check_thresholds(tables=bool(tables), values=bool(values))
        for argument, given in (("scores", self.scores), ("class_names", self.class_names)):
            if given is not None and not values:
                raise InputError(
                    f"Expected no `{argument}`, because no side is an array; a table names its "
                    "scores by its columns, and Predictions have theirs."
                )
        if not isinstance(self.id, str):
            refuse_different_indexes(
                {**values, "target": self.target, "id": self.id},
                way_out="give both in the same order, join on the index with id='index', or give "
                ".to_numpy() if the order is right",
            )


def checked_column_name(given: object, argument: str) -> None:
    """Refuse an argument that is neither a name nor left out."""
    if given is not None and not isinstance(given, str):
        raise InputError(
            f"Expected `{argument}` to be the name of a column, but got {type(given).__name__}; "
            "name a column that the sides have."
        )


def names_to_group_by(by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to group by, each once."""
    if by is None or isinstance(by, str):
        return () if by is None else (by,)
    # An index of pandas may be names, as `frame.columns` is; other arrays are values.
    is_index = has_index(by) and not hasattr(by, "index")
    is_values = (is_series(by) or hasattr(by, "__array__")) and not is_index
    given = [] if is_values or not isinstance(by, Iterable) else list(by)
    if is_values or not isinstance(by, Iterable) or not all(isinstance(x, str) for x in given):
        raise InputError(
            "Expected `by` to be the name of a column or a list of names, but got "
            f"{type(by).__name__}{' of other values' if given else ''}; name columns that the "
            "sides have."
        )
    return tuple(dict.fromkeys(given))


def are_columns_of_one_table(
    old: GivenSide, new: GivenSide, label_old: str | None, label_new: str | None
) -> bool:
    """Return whether both models are columns of one table; raise if they are the same column."""
    if label_old is None or label_new is None or not _is_same_table(old, new):
        return False
    if label_old == label_new:
        raise InputError(
            "Expected `label_old=` and `label_new=` to name two columns, but old and new are the "
            f"same column {label_old!r} of one table; name the column of each model."
        )
    return True


def as_column_of_shared_table(side: Predictions, label: str) -> Predictions:
    """Return one of the models of a table, called by its column.

    Scores and grades in the table are of one model, and nothing says of which.
    """
    side = without_found_grades(side)
    if side.correct is not None:
        raise InputError(
            f"Expected no `correct=` where both models are columns of {side.name}, because column "
            f"{side.correct!r} would grade both alike; give a table per model."
        )
    return replace(side, scores=None, name=f"{side.name}:{label}")


@contextmanager
def naming_own_label(argument: str | None) -> Iterator[None]:
    """Name the argument that gave a side its own column of labels, if one did, in errors."""
    try:
        yield
    except InputError as problem:
        if argument is None:
            raise
        raise InputError(str(problem).replace("`label=`", f"`{argument}=`")) from problem


def columns_taken(sides: Iterable[Predictions]) -> Iterator[str]:
    """Yield a note on the columns that were taken for a role by their names."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for side in sides:
        found.setdefault(side.recognised, []).append(side.name)
    for columns, names in found.items():
        if columns:
            told = ", ".join(f"{column!r} as {role}" for role, column in columns)
            yield f"{', '.join(dict.fromkeys(names))}: took column {told}"


def with_common_grades(sides: Sequence[Predictions]) -> list[Predictions]:
    """Return the sides without grades that were found by name, if only some sides have grades.

    Such a file may lack the target that another one has; its labels can then be compared.
    """
    kept = [without_found_grades(side) for side in sides]
    mixed = len({side.correct is None for side in sides}) > 1
    return kept if mixed and all(side.correct is None for side in kept) else list(sides)


def without_found_grades(side: Predictions) -> Predictions:
    """Return a side without grades that were found by name, if it predicts classes too."""
    if not side.found_grades or (side.label is None and side.scores is None):
        return side
    recognised = tuple(one for one in side.recognised if one != ("correct", side.correct))
    return replace(side, correct=None, recognised=recognised)


def refuse_different_indexes(given: Mapping[str, Any], *, way_out: str) -> None:
    """Refuse pandas objects whose indexes differ, where rows are paired by their position."""
    indexes = {name: pandas_index(value) for name, value in given.items()}
    found = {name: x for name, x in indexes.items() if x is not None}
    told = {name: x for name, x in found.items() if not _is_default(x)}
    first = next(iter(told), "")
    for name, index in found.items() if told else ():
        # An index that only counts rows says nothing, unless it has the same numbers.
        if name in told or _is_reordered(told[first], index):
            if told[first].equals(index):
                continue
            raise InputError(
                f"Expected `{first}` and `{name}` to have one index, because their rows are "
                f"matched by position, but their indexes differ; {way_out}."
            )


def one_side(given: GivenSide, argument: str) -> Predictions:
    """Return the predictions of a side without a description of its columns."""
    columns = Columns()
    columns.check({argument: given})
    return columns.side(given, argument)


def _several(given: Any, argument: str) -> dict[str, GivenSide]:
    """Return no side, one side, or the sides of a list or tuple, by the names that errors use."""
    if given is None:
        return {}
    if isinstance(given, list | tuple) or (
        isinstance(given, Iterable) and not _is_side(given) and not isinstance(given, Mapping)
    ):
        sides = list(given)
        if len(sides) == 1:
            return {argument: sides[0]}
        return {f"{argument} {i}": side for i, side in enumerate(sides, start=1)}
    return {argument: given}


def _is_side(given: Any) -> bool:
    return (
        isinstance(given, Predictions)
        or _is_table(given)
        or is_series(given)
        or hasattr(given, "__array__")
    )


def _is_table(given: Any) -> bool:
    return isinstance(given, str | os.PathLike) or is_list_of_paths(given) or is_frame(given)


def _is_same_table(old: GivenSide, new: GivenSide) -> bool:
    if isinstance(old, str | os.PathLike) and isinstance(new, str | os.PathLike):
        return Path(old) == Path(new)
    if is_list_of_paths(old) and is_list_of_paths(new):
        return bool(old == new)
    return old is new


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) else None


def _is_default(index: Any) -> bool:
    """Return whether a pandas index only counts the rows."""
    return type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1


def _is_reordered(index: Any, counting: Any) -> bool:
    """Return whether an index has the numbers of one that counts the rows, in another order."""
    return (
        len(index) == len(counting)
        and index.dtype.kind in "iu"
        and bool(index.sort_values().equals(counting))
    )


def _is_index_of(given: Any, name: Any) -> bool:
    """Return whether a name means the index of a Series: its own name, or `index`."""
    if not isinstance(name, str) or not has_index(given) or not hasattr(given, "index"):
        return False
    return name in (INDEX, given.index.name)


def _refuse_no_values(given: Any, argument: str) -> None:
    """Refuse what is neither a side nor values."""
    if isinstance(given, list | tuple) or is_series(given) or hasattr(given, "__array__"):
        return
    way_out = "read a file with flipguard.read_predictions, or give labels as an array"
    if any(hasattr(given, name) for name in ("predict", "predict_proba", "forward")):
        way_out = "for models in memory use flipguard.compare_models"
    raise InputError(
        f"Expected `{argument}` to be predictions, the path of a prediction file or a run, a "
        f"table, labels or scores, but got {type(given).__name__}; {way_out}."
    )
