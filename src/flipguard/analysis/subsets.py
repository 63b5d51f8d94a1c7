"""The predicted classes of many ensembles drawn from the same models, without retraining any.

An ensemble is a column of weights over the models; the mean of all models' scores, each times its
weight, decides the class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flipguard.analysis.members import Array, IntArray

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
# A class that lies this many standard deviations below the best one never wins under a normal law.
NEVER = 8.0
# Rows are grouped by how many classes they have to look at, in powers of this.
GROWTH = 2


def orders_of(models: int, draws: int, random: np.random.Generator) -> IntArray:
    """Return random orders of the models, one per row."""
    found: IntArray = np.argsort(random.random((draws, models)), axis=1)
    return found


def weights_of_sizes(orders: IntArray, sizes: IntArray) -> FloatArray:
    """Return the weights of the first 1, 2, … models of each order, shape (models, draws, sizes)."""
    draws, models = orders.shape
    place = np.empty_like(orders)
    np.put_along_axis(place, orders, np.arange(models)[None, :].repeat(draws, axis=0), axis=1)
    inside = place.T[:, :, None] < sizes
    return np.asarray(inside / sizes)


def can_win(scores: Array) -> Mask:
    """Return which classes can be the first of a mean of some of the models, per row.

    A class whose best score is below another class's worst score never is.
    """
    floor = scores.min(axis=0).max(axis=1)
    return np.asarray(scores.max(axis=0) >= floor[:, None])


def can_win_by_law(scores: Array) -> Mask:
    """Return which classes can be the first if scores follow the normal law of these models."""
    mean = scores.mean(axis=0)
    best = mean.argmax(axis=1)
    gap = np.take_along_axis(scores, best[None, :, None], axis=2) - scores
    centre = gap.mean(axis=0)
    spread = gap.std(axis=0, ddof=1)
    # Rounding alone makes the same numbers differ a little.
    near = centre <= NEVER * spread + 1e-9
    near[np.arange(len(best)), best] = True
    return np.asarray(near)


@dataclass(frozen=True, slots=True)
class Packed:
    """The scores of rows that have about as many classes to look at, of shape (classes, rows, models).

    Rows with fewer classes are filled with minus infinity.
    """

    rows: IntArray
    scores: FloatArray
    classes: IntArray


def packed(scores: Array, keep: Mask) -> list[Packed]:
    """Return the kept scores of a block of shape (models, rows, classes), grouped by their number."""
    counts = keep.sum(axis=1)
    row, kept = np.nonzero(keep)  # in the order of rows, then of classes
    starts = np.cumsum(counts) - counts
    place = np.arange(len(row)) - starts[row]
    values = scores[:, row, kept].T.astype(np.float64)
    found, width, lower = [], 1, 0
    while lower < counts.max(initial=0):
        rows = np.flatnonzero((counts > lower) & (counts <= width))
        if len(rows):
            into = np.full(len(counts), -1, dtype=np.int64)
            into[rows] = np.arange(len(rows))
            taken = into[row] >= 0
            filled = np.full((width, len(rows), len(scores)), -np.inf)
            classes = np.zeros((width, len(rows)), dtype=np.int64)
            filled[place[taken], into[row[taken]]] = values[taken]
            classes[place[taken], into[row[taken]]] = kept[taken]
            found.append(Packed(rows, filled, classes))
        lower, width = width, width * GROWTH
    return found


def winners(groups: list[Packed], weights: FloatArray, n: int) -> npt.NDArray[np.int32]:
    """Return the predicted class of each row by each column of weights; ties go to the first."""
    found = np.zeros((n, weights.shape[1]), dtype=np.int32)
    for group in groups:
        best = np.full((len(group.rows), weights.shape[1]), -np.inf)
        top = np.zeros(best.shape, dtype=np.int32)
        for scores, classes in zip(group.scores, group.classes, strict=True):
            there = np.isfinite(scores[:, 0])
            mean = scores[there] @ weights
            better = mean > best[there]
            rows = np.flatnonzero(there)
            best[rows] = np.where(better, mean, best[rows])
            top[rows] = np.where(better, classes[rows, None], top[rows])
        found[group.rows] = top
    return found
