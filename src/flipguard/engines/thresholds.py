"""The flips that each threshold of the new model would give, with the old model's threshold fixed.

A threshold matters only by which scores it lies between, so all of them are tried: the rows are
sorted by score, and sums from below and from above give the counts of each threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.counts import FloatArray, IntArray
from flipguard.engines.plan import NEW, OLD, TARGET, score_column

SCORE, KIND = "score", "kind"
# Whether old gets a row right, and whether it is positive.
KINDS = ("right positive", "right negative", "wrong positive", "wrong negative")
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
    positives_found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The counts over the range of the new model's threshold.

    `best` has the fewest negative flips of all thresholds that have no higher error and miss no
    more of the `positives` than that `in_use`; None if no threshold has fewer than that one.
    `points` are some of all thresholds, rising.
    """

    n: int
    positives: int
    in_use: ThresholdPoint
    best: ThresholdPoint | None
    points: tuple[ThresholdPoint, ...]


def scored_rows(rows: pl.LazyFrame, positive: object) -> pl.DataFrame:
    """The score of the new model and the kind of each row with a target."""
    wrong, is_negative = pl.col(OLD) != pl.col(TARGET), pl.col(TARGET).ne(positive)
    known = rows.filter(pl.col(TARGET).is_not_null()).select(
        pl.col(score_column(NEW)).alias(SCORE),
        (2 * wrong.cast(pl.Int8) + is_negative.cast(pl.Int8)).alias(KIND),
    )
    return known.collect(engine="streaming")


def thresholds_of(parts: Sequence[pl.DataFrame], threshold: float) -> Thresholds | None:
    """The flips of each threshold, from the rows of all parts; None without targets."""
    table = pl.concat(parts)
    if not table.height:
        return None
    values = table[SCORE].to_numpy()
    order = np.argsort(values)
    values = values[order]
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    scores, counts = values[first], _Counts(table[KIND].to_numpy()[order], first)
    # The precision of the scores decides which of them reach the threshold.
    here = int(np.searchsorted(scores, scores.dtype.type(threshold), side="left"))
    best = counts.best(here)
    drawn = counts.grid(here, scores) | ({best} if best is not None else set())
    return Thresholds(
        n=counts.n,
        positives=int(counts.found[0]),
        in_use=counts.point(here, threshold),
        best=None if best is None else counts.point(best, between(scores, best)),
        points=tuple(
            counts.point(i, threshold if i == here else between(scores, i)) for i in sorted(drawn)
        ),
    )


class _Counts:
    """The counts of every threshold: number i lies above the i lowest scores."""

    def __init__(self, kinds: npt.NDArray[np.int8], first: IntArray) -> None:
        right_positive, right_negative, wrong_positive, wrong_negative = (
            np.concatenate([[0], np.cumsum(kinds == kind)])[np.append(first, len(kinds))]
            for kind in range(len(KINDS))
        )
        positive, negative = right_positive + wrong_positive, right_negative + wrong_negative
        self.rows: IntArray = positive + negative
        self.n = int(self.rows[-1])
        self.negative_flips: IntArray = right_positive + right_negative[-1] - right_negative
        self.positive_flips: IntArray = wrong_negative + wrong_positive[-1] - wrong_positive
        self.wrong: IntArray = positive + negative[-1] - negative
        self.found: IntArray = positive[-1] - positive

    def best(self, here: int) -> int | None:
        """The harmless threshold with the fewest negative flips; None if it is `here`.

        Harmless ones have no higher error and miss no more positives: if positives are rare, a
        threshold that finds hardly any of them can have a low error.

        Of equal ones that with the lowest error, and then the nearest.
        """
        # Above all scores no row would be positive, which is no model.
        no_harm = (self.wrong <= self.wrong[here]) & (self.found >= self.found[here])
        allowed = np.flatnonzero(no_harm[:-1])
        fewer = allowed[self.negative_flips[allowed] < self.negative_flips[here]]
        if not len(fewer):
            return None
        keys = (np.abs(fewer - here), self.wrong[fewer], self.negative_flips[fewer])
        return int(fewer[np.lexsort(keys)[0]])

    def grid(self, here: int, scores: FloatArray) -> set[int]:
        """Thresholds for a picture: the one in use, and all others if they are few.

        Of many, half divide the rows evenly, and half the range of the scores.
        """
        if len(scores) <= MOST_POINTS - 2:
            return {*range(len(scores)), here}
        half = MOST_POINTS // 2 - 1
        rows = np.linspace(0, self.n, half)
        values = np.linspace(float(scores[0]), float(scores[-1]), half)
        by_rows = np.searchsorted(self.rows[:-1], rows, side="right") - 1
        found = np.append(by_rows, np.searchsorted(scores, values))
        return {*np.clip(found, 0, len(scores) - 1).tolist(), here}

    def point(self, i: int, threshold: float) -> ThresholdPoint:
        """The counts of one threshold."""
        return ThresholdPoint(
            threshold=threshold,
            negative_flips=int(self.negative_flips[i]),
            positive_flips=int(self.positive_flips[i]),
            wrong=int(self.wrong[i]),
            predicted_positive=int(self.n - self.rows[i]),
            positives_found=int(self.found[i]),
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
