"""The predicted classes of many ensembles drawn from the same models, without retraining any.

An ensemble is a column of weights over the models; the mean of all models' scores, each times its
weight, decides the class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flipguard.analysis.members import Array, IntArray

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
# A class that lies this many standard deviations below the best one never wins under a normal law.
NEVER = 5.0
# Rows are grouped by how many classes they have to look at, in powers of this.
GROWTH = 2
NUMBERS_AT_ONCE = 1 << 16


def orders_of(models: int, draws: int, random: np.random.Generator) -> IntArray:
    """Return random orders of the models, one per row."""
    found: IntArray = np.argsort(random.random((draws, models)), axis=1)
    return found


def weights_of_sizes(orders: IntArray, sizes: IntArray) -> FloatArray:
    """Return the weights of the first models of each order, of shape (models, draws, sizes)."""
    draws, models = orders.shape
    place = np.empty_like(orders)
    np.put_along_axis(place, orders, np.arange(models)[None, :].repeat(draws, axis=0), axis=1)
    inside = place.T[:, :, None] < sizes
    return np.asarray(inside / sizes)


@dataclass(frozen=True, slots=True)
class Lead:
    """How far each class lies behind the one with the largest mean, of shape (rows, classes).

    `centre` is the mean over models, and `spread` the standard deviation over exactly these.
    """

    centre: Array
    spread: Array
    models: int
    rounding: Array

    def can_win(self, size: int) -> Mask:
        """Return which classes can be the first of a mean of `size` of the models, or of more.

        The mean of m of M numbers is never farther from that of all than the standard deviation
        times the root of (M - m) / m.
        """
        return self._within(math.sqrt(max(0.0, (self.models - size) / size)))

    def can_win_by_law(self, size: int) -> Mask:
        """Return which classes can be the first if the scores of ensembles are normal."""
        variance = (1 / size) * self.models / (self.models - 1)
        return self._within(NEVER * math.sqrt(variance))

    def _within(self, deviations: float) -> Mask:
        # A little wider, because these numbers are rounded.
        reach = 1.001 * deviations * self.spread + self.rounding
        return np.asarray(self.centre <= reach)


def lead_of(scores: Array) -> Lead:
    """Return the lead of the best class of a block of shape (models, rows, classes)."""
    best = scores.mean(axis=0).argmax(axis=1)
    gap = np.take_along_axis(scores, best[None, :, None], axis=2) - scores
    centre = gap.mean(axis=0)
    square = np.einsum("mrc,mrc->rc", gap, gap) / len(scores)
    return Lead(
        centre=centre,
        spread=np.sqrt(np.maximum(square - centre**2, 0.0)),
        models=len(scores),
        rounding=1e-5 * np.abs(centre).max(axis=1, keepdims=True),
    )


@dataclass(frozen=True, slots=True)
class PackedScores:
    """The scores of rows with about as many classes to look at, of shape (classes, rows, models).

    Rows are sorted by that number, most first: class k is that of the first `counts[k]` rows.
    """

    rows: IntArray
    counts: IntArray
    scores: FloatArray
    classes: npt.NDArray[np.int32]


def packed(scores: Array, keep: Mask) -> list[PackedScores]:
    """Return the kept scores of a block (rows, classes, models), grouped by their number."""
    numbers = keep.sum(axis=1)
    row, kept = np.nonzero(keep)  # in the order of rows, then of classes
    starts = np.cumsum(numbers) - numbers
    place = np.arange(len(row)) - starts[row]
    found, width, lower = [], 1, 0
    while lower < numbers.max(initial=0):
        rows = np.flatnonzero((numbers > lower) & (numbers <= width))
        if len(rows):
            rows = rows[np.argsort(-numbers[rows], kind="stable")]
            into = np.full(len(numbers), -1, dtype=np.int64)
            into[rows] = np.arange(len(rows))
            taken = into[row] >= 0
            at = place[taken], into[row[taken]]
            most = int(numbers[rows[0]])
            filled = np.zeros((most, len(rows), scores.shape[2]))
            classes = np.zeros((most, len(rows)), dtype=np.int32)
            filled[at] = scores[row[taken], kept[taken]]
            classes[at] = kept[taken]
            counts = (numbers[rows] > np.arange(most)[:, None]).sum(axis=1)
            found.append(PackedScores(rows, counts, filled, classes))
        lower, width = width, width * GROWTH
    return found


def winners(groups: list[PackedScores], weights: FloatArray, n: int) -> npt.NDArray[np.int32]:
    """Return the predicted class of each row by each column of weights; ties go to the first."""
    found = np.zeros((n, weights.shape[1]), dtype=np.int32)
    for group in groups:
        step = max(1, NUMBERS_AT_ONCE // weights.shape[1])
        for start in range(0, len(group.rows), step):
            rows = slice(start, start + step)
            found[group.rows[rows]] = _first(group, rows, weights)
    return found


def _first(group: PackedScores, rows: slice, weights: FloatArray) -> npt.NDArray[np.int32]:
    """Return the first of the largest means of some rows of a group: few enough for the cache."""
    best = group.scores[0, rows] @ weights
    top = np.repeat(group.classes[0, rows, None], weights.shape[1], axis=1)
    mean, better = np.empty_like(best), np.empty(best.shape, dtype=np.bool_)
    for counts, scores, classes in zip(
        group.counts[1:], group.scores[1:, rows], group.classes[1:, rows], strict=True
    ):
        there = max(0, min(int(counts) - rows.start, len(best)))
        if not there:
            break
        np.matmul(scores[:there], weights, out=mean[:there])
        np.greater(mean[:there], best[:there], out=better[:there])
        np.copyto(best[:there], mean[:there], where=better[:there])
        np.copyto(top[:there], classes[:there, None], where=better[:there])
    return top
