"""Compare every ordered pair of several models: what each update would break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.engines.alignment import checked_frames
from flipguard.engines.local import with_labels
from flipguard.engines.pairing import Pairing, settled
from flipguard.engines.plan import NEW, OLD, TARGET, CountingPlan, RowCounts, control_column
from flipguard.engines.row_kinds import row_kind
from flipguard.engines.strangers import refuse_strangers
from flipguard.errors import InputError, listed
from flipguard.formatting import json_text
from flipguard.metric_kinds import divide_or_nan
from flipguard.predictions.formats import COMPRESSIONS
from flipguard.predictions.read import name_any_file_on_error
from flipguard.predictions.sides import GivenSide, columns_taken, one_side, with_common_grades
from flipguard.predictions.table import Predictions
from flipguard.run_document import PREDICTIONS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SCHEMA = "flipguard.matrix/1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Matrix:
    """The metrics of every ordered pair: [i, j] is the update from model i to model j.

    Without targets, metrics that need them are nan; so is churn if graded rows have no answers.
    `left_out[i]` is the number of rows of model i that another model lacks.
    """

    names: tuple[str, ...]
    n: int
    error_rate: FloatArray
    negative_flip_rate: FloatArray
    churn: FloatArray
    accuracy_gain: FloatArray
    left_out: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Matrix of {len(self.names)} models, n={self.n:,}: {listed(self.names, most=8)}>"

    def as_dict(self) -> dict[str, Any]:
        """The matrix as a dictionary for JSON."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "models": list(self.names),
            "n": self.n,
            "left_out": list(self.left_out),
            "error_rate": _nullable(self.error_rate),
            "negative_flip_rate": [_nullable(row) for row in self.negative_flip_rate],
            "churn": [_nullable(row) for row in self.churn],
            "accuracy_gain": [_nullable(row) for row in self.accuracy_gain],
        }
        return {**document, "notes": list(self.notes)} if self.notes else document

    def to_json(self) -> str:
        """The matrix as a JSON document."""
        return json_text(self.as_dict())


def matrix(
    models: Sequence[GivenSide], *, on_missing: Literal["error", "drop"] = "error"
) -> Matrix:
    """Negative flips, churn and accuracy gain of every ordered pair of models.

    Each model is `Predictions`, the path of a prediction file or of a run, a table, or labels.

    >>> target = [0, 1, 1, 0]
    >>> first = Predictions.from_arrays(labels=[0, 1, 0, 1], targets=target, name="first")
    >>> second = Predictions.from_arrays(labels=[1, 1, 1, 0], targets=target, name="second")
    >>> matrix([first, second]).negative_flip_rate
    array([[0.  , 0.25],
           [0.5 , 0.  ]])
    """
    if len(models) < 2:
        raise InputError(f"Expected at least 2 models to set side by side, but got {len(models)}.")
    if on_missing not in ("error", "drop"):
        raise InputError(f"Expected `on_missing` to be error or drop, but got '{on_missing}'.")
    sides = [one_side(model, f"model {i}") for i, model in enumerate(models, start=1)]
    given = with_common_grades(sides)
    with name_any_file_on_error(given):
        labelled = [_labelled(model) for model in given]
        plan, _ = settled(
            CountingPlan(
                old=labelled[0],
                new=labelled[1],
                controls=tuple(labelled[2:]),
                on_missing=on_missing,
            )
        )
        counts = _count(plan)
        agree = counts.same.copy()
        np.fill_diagonal(agree, 0)
        met = (agree.any(axis=1) | (counts.right.diagonal() > 0)).tolist()
        if not plan.layout.graded:
            refuse_strangers(plan, met, all_pairs=True)
        heights = [model.height for model in labelled]
    left_out = tuple(height - counts.n for height in heights)
    found = _rates(counts, names=_names(given), left_out=left_out)
    return replace(found, notes=tuple(columns_taken(given)))


@dataclass(slots=True, kw_only=True)
class _PairCounts:
    """Additive counts of all pairs: right[i, j] both right, same[i, j] with equal labels."""

    n: int
    known: int
    right: IntArray
    same: IntArray
    has_labels: bool


def _labelled(model: Predictions) -> Predictions:
    """A model with labels to count if it predicts classes; scores are read if it has no labels."""
    if model.label is None and model.binary is None and model.scores is not None:
        model = with_labels(model)
    return replace(model, scores=None)


def _count(plan: CountingPlan) -> _PairCounts:
    """All pairs in one pass over the rows, or over each part of a join."""
    pairing, tally = Pairing(plan), list[RowCounts]()
    labels = [OLD, NEW, *(control_column(i) for i in range(len(plan.controls)))]
    k = len(labels)
    pairs = [(i, j) for i in range(k) for j in range(i, k)]
    kind, known = row_kind(plan), pl.col(TARGET).count()
    if plan.layout.graded:
        known = pl.len()
    right = [kind.is_right(label).alias(f"__right{i}") for i, label in enumerate(labels)]
    sums = [
        pl.len().alias("n"),
        known.alias("known"),
        *[_both_right(i, j).sum().alias(f"right {i} {j}") for i, j in pairs],
        *[_same(plan, labels[i], labels[j]).sum().alias(f"same {i} {j}") for i, j in pairs],
    ]
    total = np.zeros(len(sums), dtype=np.int64)
    for frame in checked_frames(pairing, frozenset({"label", "target", "grade"}), tally):
        row = frame.with_columns(right).select(sums).collect(engine="streaming").row(0)
        total += np.array(row, dtype=np.int64)
    places = tuple(np.array(pairs).T)
    found = []
    for part in (total[2 : 2 + len(pairs)], total[2 + len(pairs) :]):
        square = np.zeros((k, k), dtype=np.int64)
        square[places] = part
        found.append(np.maximum(square, square.T))
    return _PairCounts(
        n=int(total[0]),
        known=int(total[1]),
        right=found[0],
        same=found[1],
        has_labels=plan.layout.has_labels,
    )


def _same(plan: CountingPlan, label: str, other: str) -> pl.Expr:
    # Where an error or a refusal has left no answer, two missing answers are the same.
    return pl.col(label).eq_missing(pl.col(other)) if plan.layout.has_labels else pl.lit(False)


def _both_right(i: int, j: int) -> pl.Expr:
    # A comparison with a null target is null, and a sum passes over it.
    return pl.col(f"__right{i}") if i == j else pl.col(f"__right{i}") & pl.col(f"__right{j}")


def _rates(counts: _PairCounts, *, names: tuple[str, ...], left_out: tuple[int, ...]) -> Matrix:
    n, known = np.array(float(counts.n)), np.array(float(counts.known))
    right = counts.right.diagonal()
    return Matrix(
        names=names,
        n=counts.n,
        error_rate=divide_or_nan((counts.known - right).astype(np.float64), known),
        negative_flip_rate=divide_or_nan((right[:, None] - counts.right).astype(np.float64), known),
        churn=divide_or_nan(
            (counts.n - counts.same).astype(np.float64), n if counts.has_labels else 0.0 * n
        ),
        left_out=left_out,
        accuracy_gain=divide_or_nan((right[None, :] - right[:, None]).astype(np.float64), known),
    )


def _names(models: Sequence[Predictions]) -> tuple[str, ...]:
    """The stem of each file's name or a run's folder; the whole path if two of them are equal."""
    stems = [_stem(model) for model in models]
    often = Counter(stems)
    names = [
        stem if often[stem] == 1 else model.name for stem, model in zip(stems, models, strict=True)
    ]
    seen: Counter[str] = Counter()
    text = []
    for name in names:
        seen[name] += 1
        text.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(text)


def _stem(model: Predictions) -> str:
    if model.path == Path(model.name, PREDICTIONS):
        return Path(model.name).name  # of a run
    # A name that somebody chose stays as it is.
    if model.path is None or model.name != str(model.path):
        return model.name
    path = model.path.with_suffix("") if model.path.suffix in COMPRESSIONS else model.path
    return path.stem


def _nullable(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
