"""Check class scores for NaN, infinities and values that are not probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.engines.score_kernel import PROBABILITY_TOLERANCE, ROUNDING
from flipguard.errors import InputError
from flipguard.predictions.scores import name_of_row, score_batches
from flipguard.predictions.table import Predictions, ScoreKind

Array = npt.NDArray[Any]


def unusable_rows(scores: Array, kind: ScoreKind) -> npt.NDArray[np.bool_]:
    """A mask of the rows of scores that cannot be used.

    >>> unusable_rows(np.array([[0.4, 0.6], [0.4, 0.4], [np.nan, 1.0]]), "probabilities")
    array([False,  True,  True])
    """
    with np.errstate(all="ignore"):
        total = scores.sum(axis=1, dtype=np.float64)
    if kind == "logits":
        # A sum is finite only if each term is; that it overflowed is the only other reason.
        bad = np.asarray(~np.isfinite(total))
        bad[bad] = ~np.isfinite(scores[bad]).all(axis=1)
        return bad
    off = ~(np.abs(total - 1.0) <= PROBABILITY_TOLERANCE)
    return np.asarray(off | (scores.min(axis=1) < -ROUNDING))


def refuse_unusable(predictions: Predictions, scores: Array, rows: npt.NDArray[np.int64]) -> None:
    """Raise for the first row that cannot be used; `rows` are their numbers in the file."""
    if predictions.scores is None:
        return
    bad = unusable_rows(scores, predictions.scores.kind)
    if bad.any():
        first = int(bad.argmax())
        raise unusable(predictions, scores[first], int(rows[first]))


def usable_batches(predictions: Predictions) -> Iterator[Array]:
    """All scores in order, in pieces; raise for the first row that cannot be used."""
    at = 0
    for batch in score_batches(predictions):
        refuse_unusable(predictions, batch, np.arange(at, at + len(batch)))
        yield batch
        at += len(batch)


def unusable(predictions: Predictions, values: Array, row: int) -> InputError:
    """The error message for one row of scores that cannot be used."""
    kind = "scores" if predictions.scores is None else predictions.scores.kind
    name, values = name_of_row(predictions, row), values.astype(np.float64)
    if not np.isfinite(values).all():
        return InputError(
            f"{predictions.name} has NaN or infinite {kind} for {name}; "
            "correct the row, or leave it out."
        )
    text = (
        f"a probability below 0 ({values.min():.4g})"
        if values.min() < -ROUNDING
        else f"probabilities that sum to {values.sum():.4g} instead of 1"
    )
    return InputError(
        f"{predictions.name} has {text}, for {name}; give softmax outputs, or call them logits if "
        "they are not normalised."
    )
