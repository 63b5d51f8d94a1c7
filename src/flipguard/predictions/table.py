"""`Predictions`: the predictions of one model for each sample, and access to them in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.errors import InputError, listed
from flipguard.predictions.binary import BinaryScore, binary_score, refuse_two_predictions
from flipguard.predictions.from_python import as_column, as_scores, by_name, lazy_frame
from flipguard.predictions.names import ROW, column_of, missing_roles
from flipguard.predictions.names import class_names as names_of

if TYPE_CHECKING:
    from pathlib import Path

    from flipguard.predictions.side_files import FileRows

Array = npt.NDArray[Any]
ScoreKind = Literal["logits", "probabilities"]

# The column of scores that come as an array.
POSITIVE_SCORE = "positive_score"
SCORE_KINDS: tuple[ScoreKind, ...] = ("logits", "probabilities")
WIDE_PREFIX: dict[ScoreKind, str] = {"logits": "logit_", "probabilities": "probability_"}
# Prefixes that other tools write, which are read where at least two columns have them.
OTHER_PREFIXES: dict[ScoreKind, tuple[str, ...]] = {
    "logits": (),
    "probabilities": ("proba_", "prob_"),
}
PREFIXES = (*WIDE_PREFIX.values(), *(p for found in OTHER_PREFIXES.values() for p in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The location of a table's class scores.

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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
    # The file that the table is; None if it is of several files, or of none.
    path: Path | None = None
    correct: str | None = None
    # The files of the table if there are several, in order.
    files: tuple[FileRows, ...] = ()
    binary: BinaryScore | None = None
    # What columns with well-known names were taken for, by these names.
    recognised: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        roles = {"id": self.id, "target": self.target, "label": self.label}
        told = [
            role if column == role else f"{role} in {column!r}"
            for role, column in roles.items()
            if column is not None
        ]
        if self.scores is not None:
            names = self.class_names
            told.append(self.scores.kind + (f" of {len(names):,} classes" if names else ""))
        if self.binary is not None:
            told.append(f"positive from {self.binary.column!r} of {self.binary.threshold:g}")
        return f"<Predictions {self.name!r}: {', '.join(told)}>"

    @classmethod
    def from_arrays(
        cls,
        *,
        labels: object = None,
        logits: Array | None = None,
        probabilities: Array | None = None,
        targets: object = None,
        ids: object = None,
        class_names: Sequence[object] | None = None,
        correct: object = None,
        positive_scores: object = None,
        threshold: float | None = None,
        positive: object = None,
        slices: Mapping[str, object] | None = None,
        name: str = "predictions",
    ) -> Predictions:
        """Predictions from arrays in memory; scores are used where they lie, without a copy.

        With `correct`, rows are right as it says (0/1, true/false, pass/fail or C/I; error, refused
        and unparsed count as not right), and not where the label is the target.

        With `positive_scores`, one number per sample, a row is of the positive class if its score
        is at least `threshold`. `positive` names that class unless targets are 0/1 or Boolean.

        With `class_names`, integers in `targets` and `labels` are indices into it. Lists, numpy
        and masked arrays, Series of pandas and Polars, Arrow arrays and torch tensors are taken;
        what is masked, None or NaN is missing.

        >>> import numpy as np
        >>> p = Predictions.from_arrays(labels=[0, 1, 1], targets=[0, 1, 0], ids=["a", "b", "c"])
        >>> p.height
        3
        """
        given = {"id": ids, "target": targets, "label": labels, "correct": correct}
        scored = None if positive_scores is None else POSITIVE_SCORE
        binary = binary_score(scored, threshold, positive)
        if binary is not None:
            others = {"logits": logits, "probabilities": probabilities}
            refuse_two_predictions(name, {"labels": labels, "correct": correct} | others)
            given[POSITIVE_SCORE] = positive_scores
        columns = _as_columns(given, slices or {}, name)
        names = None if class_names is None else names_of(class_names, name)
        scores = _array_scores(logits, probabilities, names, name)
        if names is not None:
            by_name(columns, names, name)
        lengths = _lengths(columns, scores, name)
        if not columns:
            # A frame without columns would have no height: the row number stands in.
            columns["__row"] = pl.Series("__row", np.arange(next(iter(lengths.values()), 0)))
        return cls(
            name=name,
            frame=pl.DataFrame(list(columns.values())).lazy(),
            id="id" if ids is not None else None,
            target="target" if targets is not None and correct is None else None,
            correct="correct" if correct is not None else None,
            label="label" if labels is not None else None,
            binary=binary,
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
        correct: str | None = None,
        positive_score: str | None = None,
        threshold: float | None = None,
        positive: object = None,
        name: str = "predictions",
    ) -> Predictions:
        """Predictions from a Polars frame (eager or lazy), a pandas frame or an Arrow table.

        The named levels of a pandas index are columns; `id="index"` is an index without a name.

        >>> import polars as pl
        >>> frame = pl.DataFrame({"id": ["a", "b"], "target": ["cat", "dog"],
        ...                       "logit_cat": [2.0, 0.1], "logit_dog": [0.5, 0.4]})
        >>> Predictions.from_frame(frame).class_names
        ('cat', 'dog')
        """
        table = lazy_frame(frame, name, id=id)
        return with_roles(
            table,
            name=name,
            id=id,
            target=target,
            label=label,
            correct=correct,
            binary=binary_score(positive_score, threshold, positive),
        )

    @property
    def found_grades(self) -> bool:
        """Whether the column of grades was found by its name, and not named."""
        return ("correct", self.correct) in self.recognised

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes of the scores; None if there are only labels."""
        return self.scores.class_names if self.scores is not None else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that the table is; none if it comes from memory."""
        if self.files:
            return tuple(file.path for file in self.files)
        return () if self.path is None else (self.path,)

    @property
    def height(self) -> int:
        """The number of samples."""
        return int(self.frame.select(pl.len()).collect(engine="streaming").item())

    @property
    def columns(self) -> list[str]:
        """Every column of the table that can be a slice."""
        scores = set(self.scores.columns) if self.scores is not None else set()
        names = self.frame.collect_schema().names()
        return [] if names == ["__row"] else [c for c in names if c not in scores]

    def column(self, name: str) -> str | None:
        """The column behind a name as a user gives it: `target` means the target's role."""
        if name == "target" and self.target is not None:
            return self.target
        return name if name in self.columns else None

    def checked(self) -> Predictions:
        """Check everything that needs no reading of rows, and return self."""
        lacks = missing_roles(
            self.name,
            self.columns,
            id="id",
            target=self.target,
            predicts=any(
                one is not None for one in (self.label, self.scores, self.correct, self.binary)
            ),
        )
        if lacks is not None:
            raise lacks
        return self


def _as_columns(
    given: Mapping[str, object], slices: Mapping[str, object], name: str
) -> dict[str, pl.Series]:
    """The values of roles and of group-by columns as columns."""
    columns: dict[str, pl.Series] = {}
    for column, values in given.items():
        if values is not None:
            columns[column] = as_column(column, values, name)
    for column, values in slices.items():
        if column in columns:
            raise InputError(
                f"{name} has a slice called '{column}', a name kept for the table itself; "
                "rename the slice."
            )
        columns[column] = as_column(column, values, name)
    return columns


def _lengths(columns: Mapping[str, pl.Series], scores: Scores | None, name: str) -> dict[str, int]:
    """The length of each array; raise if they differ."""
    lengths = {column: len(values) for column, values in columns.items()}
    if scores is not None and scores.array is not None:
        lengths[scores.kind] = len(scores.array)
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{column} {length:,}" for column, length in lengths.items())
        raise InputError(
            f"{name} has arrays of different lengths ({text}); give one entry per sample in each."
        )
    return lengths


def with_roles(
    frame: pl.LazyFrame,
    *,
    name: str,
    id: str | None,
    target: str | None,
    label: str | None,
    correct: str | None = None,
    binary: BinaryScore | None = None,
    class_names: Sequence[str] | None = None,
    path: Path | None = None,
) -> Predictions:
    """Find the role of each column; raise if a requested column is missing.

    Grades are used if they are asked for, or if there is no target with a label or scores. They
    then say what is right, and a target does not.
    """
    schema = frame.collect_schema()
    known = schema.names()
    asked = {"correct": correct, "id": id, "target": target, "label": label}
    scored = {} if binary is None else {"positive_score": binary.column}
    if binary is not None:
        refuse_two_predictions(name, {"label": label, "correct": correct})
        _refuse_missing_column(name, binary.column, "positive_score", known)
    by_position = id == ROW and ROW not in known
    roles: dict[str, str | None] = {}
    for role, column in asked.items():
        if role == "id" and by_position:
            roles[role] = None
        elif column is None:
            unused = role == "correct" or (role == "label" and binary is not None)
            named = {**asked, **roles, **scored}
            roles[role] = None if unused else column_of(role, known, named, name)
        else:
            _refuse_missing_column(name, column, role, known)
            roles[role] = column
    scores = None
    if binary is None:
        scores = _column_scores(schema, class_names, name, has_label=roles["label"] is not None)
    answers = (roles["label"], scores, binary)
    is_labelled = roles["target"] is not None and answers != (None, None, None)
    if correct is None and binary is None and not is_labelled:
        roles["correct"] = column_of("correct", known, {**asked, **roles}, name)
    predicts = any(one is not None for one in (*answers, roles["correct"]))
    found = ROW if by_position else roles["id"]
    lacks = missing_roles(name, known, id=found, target=roles["target"], predicts=predicts)
    if lacks is not None:
        raise lacks
    if roles["correct"] is not None:
        roles["target"] = None
    return Predictions(
        name=name,
        frame=frame,
        **roles,
        scores=scores,
        binary=binary,
        path=path,
        files=(),
        recognised=recognised(roles, asked, None if scores is None else scores.wide_columns),
    )


def _refuse_missing_column(name: str, column: str, role: str, known: Sequence[str]) -> None:
    if column not in known:
        raise InputError(
            f"{name} has no column '{column}', which `{role}=` asks for; "
            f"its columns are {listed(known, most=12)}."
        )


def recognised(
    roles: Mapping[str, str | None],
    asked: Mapping[str, str | None],
    wide: Sequence[str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Return the columns whose roles were told by names other than those of the roles.

    Grades are always among them, because they decide what is right.
    """
    found = [
        (role, column)
        for role, column in roles.items()
        if column is not None
        and asked[role] is None
        and (role == "correct" or column not in (role, f"{role}s"))
    ]
    prefix = next((p for p in PREFIXES if wide and wide[0].startswith(p)), "")
    if prefix and prefix not in WIDE_PREFIX.values():
        found.append(("probabilities", f"{prefix}*"))
    return tuple(found)


def wide_columns(kind: ScoreKind, columns: Sequence[str], name: str) -> tuple[str, tuple[str, ...]]:
    """Return the prefix of the columns of scores, and these columns."""
    found: dict[str, tuple[str, ...]] = {}
    for prefix in (WIDE_PREFIX[kind], *OTHER_PREFIXES[kind]):
        wide = tuple(column for column in columns if column.startswith(prefix))
        if len(wide) > (prefix != WIDE_PREFIX[kind]):
            found[prefix] = wide
    if len(found) > 1:
        shown = " and ".join(f"{prefix}*" for prefix in found)
        raise InputError(
            f"{name} has {kind} in the columns {shown}, and either may be the scores; rename the "
            "columns that are not."
        )
    return next(iter(found.items()), ("", ()))


def _column_scores(
    schema: pl.Schema, class_names: Sequence[str] | None, name: str, *, has_label: bool
) -> Scores | None:
    for kind in SCORE_KINDS:
        if kind in schema:
            dtype = schema[kind]
            if not isinstance(dtype, pl.List | pl.Array) or not _is_number(dtype.inner):
                raise InputError(
                    f"{name} has a column '{kind}' of type {dtype}, where a list of numbers per "
                    f"row is expected; store lists, or one column '{WIDE_PREFIX[kind]}<class>' per "
                    "class."
                )
            names = None if class_names is None else names_of(class_names, name)
            return Scores(kind=kind, list_column=kind, class_names=names)
        prefix, wide = wide_columns(kind, schema.names(), name)
        if len(wide) == 1 and has_label:
            continue  # Labels tell what is predicted; a note says that the column is not used.
        if wide:
            bad = [c for c in wide if not _is_number(schema[c])]
            if bad:
                raise InputError(
                    f"{name} has a score column '{bad[0]}' of type {schema[bad[0]]}, where "
                    "numbers are expected; convert it, or rename it if it is no score."
                )
            names = names_of((column.removeprefix(prefix) for column in wide), name)
            refuse_one_class(name, f"column '{wide[0]}'", len(wide))
            return Scores(kind=kind, wide_columns=wide, class_names=names)
    return None


def refuse_one_class(name: str, where: str, classes: int) -> None:
    """Raise for scores of a single class, which would give every sample that class."""
    if classes == 1:
        raise InputError(
            f"{name} has scores of one class only ({where}), so that every sample would be of that "
            "class; give one score per class, of at least two classes, or give predicted classes "
            "and name their column with `label=`."
        )


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
    array = as_scores(values, given, name)
    classes = array.shape[1]
    if classes == 0:
        raise InputError(f"{name} has {given} without columns; expected at least two classes.")
    refuse_one_class(name, f"{given} of shape {array.shape}", classes)
    if names is not None and len(names) != classes:
        raise InputError(
            f"{name} has {given} of {classes:,} classes but {len(names):,} class names; "
            "give one name per column, in order."
        )
    return Scores(kind=given, array=array, class_names=names)
