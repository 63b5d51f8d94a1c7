"""The flips that each threshold of the new model would give, with the old model's threshold fixed.

A threshold matters only by which scores it lies between, so all of them are tried: the rows are
counted by score, and sums from below and from above give the counts of each threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from flipguard.counts import FloatArray, IntArray
from flipguard.engines.plan import NEW, OLD, TARGET, score_column
from flipguard.engines.row_kinds import total

SCORE = "score"
# How many rows of a score are positive and not, by whether old gets them right.
KINDS = ("right_positive", "right_negative", "wrong_positive", "wrong_negative")
# Thresholds that a picture needs at most.
MOST_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPoint:
    """The counts of one threshold of the new model."""

    threshold: float
    negative_flips: int
    positive_flips: int
    wrong: int
    predicted_positive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The counts over the range of the new model's threshold.

    `best` has the fewest negative flips of all thresholds with no higher error than that `in_use`;
    None if no threshold has fewer than that one. `points` are some of all thresholds, rising.
    """

    n: int
    in_use: ThresholdPoint
    best: ThresholdPoint | None
    points: tuple[ThresholdPoint, ...]


def scores_counted(rows: pl.LazyFrame, positive: object) -> pl.DataFrame:
    """Per score of the new model: the rows of each of the `KINDS`; rows without target not."""
    right, is_positive = pl.col(OLD) == pl.col(TARGET), pl.col(TARGET) == positive
    cells = (right & is_positive, right & ~is_positive, ~right & is_positive, ~right & ~is_positive)
    counts = [total(cell).alias(kind) for kind, cell in zip(KINDS, cells, strict=True)]
    known = rows.filter(pl.col(TARGET).is_not_null())
    by_score = known.group_by(pl.col(score_column(NEW)).alias(SCORE)).agg(counts)
    return by_score.collect(engine="streaming")


def thresholds_of(parts: Sequence[pl.DataFrame], threshold: float) -> Thresholds | None:
    """The flips of each threshold, from the counts of all parts; None without targets."""
    table = pl.concat(parts).group_by(SCORE).sum().sort(SCORE)
    if not table.height:
        return None
    scores = table[SCORE].to_numpy()
    counts = _Counts(table)
    # The precision of the scores decides which of them reach the threshold.
    here = int(np.searchsorted(scores, scores.dtype.type(threshold), side="left"))
    best = counts.best(here)
    drawn = counts.grid(here) | ({best} if best is not None else set())
    return Thresholds(
        n=counts.n,
        in_use=counts.point(here, threshold),
        best=None if best is None else counts.point(best, between(scores, best)),
        points=tuple(
            counts.point(i, threshold if i == here else between(scores, i)) for i in sorted(drawn)
        ),
    )


class _Counts:
    """The counts of every threshold: number i lies above the i lowest scores."""

    def __init__(self, table: pl.DataFrame) -> None:
        right_positive, right_negative, wrong_positive, wrong_negative = (
            np.concatenate([[0], np.cumsum(table[kind].to_numpy())]) for kind in KINDS
        )
        positive, negative = right_positive + wrong_positive, right_negative + wrong_negative
        self.rows: IntArray = positive + negative
        self.n = int(self.rows[-1])
        self.negative_flips: IntArray = right_positive + right_negative[-1] - right_negative
        self.positive_flips: IntArray = wrong_negative + wrong_positive[-1] - wrong_positive
        self.wrong: IntArray = positive + negative[-1] - negative

    def best(self, here: int) -> int | None:
        """The threshold with the fewest negative flips and no higher error; None if it is `here`.

        Of equal ones that with the lowest error, and then the nearest.
        """
        # Above all scores no row would be positive, which is no model.
        allowed = np.flatnonzero(self.wrong[:-1] <= self.wrong[here])
        fewer = allowed[self.negative_flips[allowed] < self.negative_flips[here]]
        if not len(fewer):
            return None
        keys = (np.abs(fewer - here), self.wrong[fewer], self.negative_flips[fewer])
        return int(fewer[np.lexsort(keys)[0]])

    def grid(self, here: int) -> set[int]:
        """Thresholds for a picture: some that divide the rows evenly, and the one in use."""
        wanted = np.linspace(0, self.n, MOST_POINTS - 2)
        found = np.searchsorted(self.rows[:-1], wanted, side="right") - 1
        return {*np.unique(np.clip(found, 0, len(self.rows) - 2)).tolist(), here}

    def point(self, i: int, threshold: float) -> ThresholdPoint:
        """The counts of one threshold."""
        return ThresholdPoint(
            threshold=threshold,
            negative_flips=int(self.negative_flips[i]),
            positive_flips=int(self.positive_flips[i]),
            wrong=int(self.wrong[i]),
            predicted_positive=int(self.n - self.rows[i]),
        )


def between(scores: FloatArray, i: int) -> float:
    """The shortest number above score i - 1 that is not above score i.

    >>> between(np.array([0.1234, 0.6789]), 1), between(np.array([0.5]), 0)
    (0.6, 0.5)
    """
    high, low = scores[i], scores[i - 1] if i else -math.inf
    for digits in range(17) if i else ():
        value = math.floor(float(high) * 10.0**digits) / 10.0**digits
        if low < scores.dtype.type(value) <= high:
            return value
    return float(high)
