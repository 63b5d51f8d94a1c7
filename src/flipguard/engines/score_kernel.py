"""The arithmetic on class scores: everything computed from a row of logits, in one pass.

Rows are taken in blocks that stay in a cache, and blocks are shared among threads, because the time
goes into moving numbers, not into computing with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    # Not at run time: studies count where no table library is installed.
    from flipguard.predictions.table import ScoreKind

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Small enough to stay in a third-level cache, large enough that threads rarely wait for each other:
# they take turns at starting numpy's loops, and at an eighth of this size two were slower than one.
NUMBERS_PER_BLOCK = 1 << 19
# In double precision, in the second-level cache.
NUMBERS_IN_DOUBLE = 1 << 16
PROBABILITY_TOLERANCE = 1e-3
# What subtracting nearly equal numbers may leave below 0.
ROUNDING = 1e-6
LOG2_E = 1.4426950408889634
# Exponentials of this size, sums of a million of them, and the ratio of the largest to the smallest
# stay inside single precision.
SAFE_LOGIT = 40.0


@dataclass(slots=True)
class SideScores:
    """Values computed from the scores of one model, one per row."""

    top: IntArray
    confidence: FloatArray
    margin: FloatArray
    bad: npt.NDArray[np.bool_]


@dataclass(slots=True)
class PairRows:
    """Values computed from the scores of two models together, one per row."""

    surrogate: FloatArray
    distance: FloatArray | None


@dataclass(frozen=True, slots=True)
class Matching:
    """The indices of the common classes of two score tables."""

    old: IntArray
    new: IntArray
    only_old: IntArray
    only_new: IntArray


def match_classes(old: list[Any], new: list[Any]) -> Matching | None:
    """The indices of the common classes and of the classes on one side only; None if all match."""
    if old == new:
        return None
    place = {name: i for i, name in enumerate(new)}
    common = [(i, place[name]) for i, name in enumerate(old) if name in place]
    known = set(old)
    return Matching(
        old=np.array([a for a, _ in common], dtype=np.int64),
        new=np.array([b for _, b in common], dtype=np.int64),
        only_old=np.array([i for i, name in enumerate(old) if name not in place], dtype=np.int64),
        only_new=np.array([i for i, name in enumerate(new) if name not in known], dtype=np.int64),
    )


def side_and_pair_rows(
    old: Array | None,
    new: Array | None,
    *,
    kinds: tuple[ScoreKind | None, ScoreKind | None],
    matching: Matching | None,
    exponent: float,
) -> tuple[SideScores | None, SideScores | None, PairRows | None]:
    """The rows of both sides, and of the pair if both have scores."""
    given = [scores for scores in (old, new) if scores is not None]
    if not given:
        return None, None, None
    n = len(given[0])
    sides = tuple(None if scores is None else _empty_side(n) for scores in (old, new))
    logits = kinds == ("logits", "logits")
    pair = PairRows(np.empty(n), np.empty(n) if logits else None) if len(given) == 2 else None
    # Minus infinity leaves no trace in a softmax, but it does in a distance over all classes: where
    # that is computed anyway, no other search for it is needed.
    look = not (logits and matching is None and len(given) == 2)
    rows = max(1, NUMBERS_PER_BLOCK // max(1, *(scores.shape[1] for scores in given)))

    def work(starts: range) -> None:
        # Memory is allocated once per thread: allocating it for each block would cost more than the
        # arithmetic, because the system clears every fresh page.
        scratch = [np.empty((rows, scores.shape[1]), scores.dtype) for scores in given]
        for start in starts:
            stop = min(n, start + rows)
            weights: list[tuple[Array, Array]] = []
            for scores, kind, side in zip((old, new), kinds, sides, strict=True):
                if scores is not None and kind is not None and side is not None:
                    room = scratch[len(weights)][: stop - start]
                    block = scores[start:stop]
                    weights.append(_side_block(block, kind, side, room, start, stop, look=look))
            if pair is not None and old is not None and new is not None:
                (a, a_top), (b, b_top) = weights
                tops = np.divide(b_top, a_top)
                _surrogate_block(a, b, tops, b_top, matching, exponent, pair, start, stop)
                if pair.distance is not None:
                    room = scratch[0][: stop - start]
                    _distance_block(old[start:stop], new[start:stop], matching, room, pair, start)

    threads = min(os.cpu_count() or 1, -(-n // rows))
    shares = [range(i * rows, n, threads * rows) for i in range(threads)]
    with np.errstate(all="ignore"):
        if threads <= 1:
            for share in shares:
                work(share)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(_quietly(work), shares))
    if not look and pair is not None and pair.distance is not None:
        for side in sides:
            if side is not None:
                side.bad |= ~np.isfinite(pair.distance)
    return sides[0], sides[1], pair


def probabilities_of(
    scores: Array, kind: ScoreKind, rows: IntArray, classes: Sequence[IntArray]
) -> list[FloatArray]:
    """The probabilities of some rows' classes, in double precision; nan where a class is -1."""
    found = [np.full(len(rows), np.nan) for _ in classes]
    step = max(1, NUMBERS_IN_DOUBLE // max(1, scores.shape[1]))
    room = np.empty((step, scores.shape[1]))
    for start in range(0, len(rows), step):
        here = rows[start : start + step]
        values = room[: len(here)]
        np.copyto(values, scores[here])
        total = np.ones(len(here))
        if kind == "logits":
            np.subtract(values, values.max(axis=1, keepdims=True), out=values)
            np.exp(values, out=values)
            total = values.sum(axis=1)
        for out, every in zip(found, classes, strict=True):
            asked = every[start : start + step]
            known = np.flatnonzero(asked >= 0)
            out[start + known] = values[known, asked[known]] / total[known]
    return found


def _quietly(work: Callable[[range], None]) -> Callable[[range], None]:
    # numpy keeps its warning state a thread.
    def run(starts: range) -> None:
        with np.errstate(all="ignore"):
            work(starts)

    return run


def _empty_side(n: int) -> SideScores:
    return SideScores(
        top=np.empty(n, dtype=np.int64),
        confidence=np.empty(n),
        margin=np.empty(n),
        bad=np.empty(n, dtype=np.bool_),
    )


def _side_block(
    scores: Array,
    kind: ScoreKind,
    side: SideScores,
    room: Array,
    start: int,
    stop: int,
    *,
    look: bool,
) -> tuple[Array, Array]:
    """Fills one side's rows; returns weights proportional to its probabilities, and the largest."""
    every = np.arange(len(scores))
    top = scores.argmax(axis=1)
    if kind == "logits":
        weights, total = _softmax_weights(scores, scores[every, top], room)
        largest = weights[every, top]
        bad = ~np.isfinite(total)
        if look:
            # A sum is finite only if each of its terms is.
            bad |= ~np.isfinite(scores.sum(axis=1, dtype=np.float64))
    else:
        np.copyto(room, scores)
        weights, total = room, np.ones(len(scores))
        largest = weights[every, top]
        exact = scores.astype(np.float64).sum(axis=1)
        bad = ~(np.abs(exact - 1.0) <= PROBABILITY_TOLERANCE) | (scores.min(axis=1) < -ROUNDING)
    # The second largest is the largest once the first is away; argmax is the fastest search.
    weights[every, top] = -1.0
    second = weights[every, weights.argmax(axis=1)] if scores.shape[1] > 1 else np.zeros(len(top))
    weights[every, top] = largest
    side.top[start:stop] = top
    side.confidence[start:stop] = largest.astype(np.float64) / total
    side.margin[start:stop] = (largest.astype(np.float64) - second) / total
    side.bad[start:stop] = bad
    return weights, largest


def _softmax_weights(scores: Array, largest: Array, room: Array) -> tuple[Array, FloatArray]:
    """Exponentials up to one factor per row, and their sums."""
    # Which way is taken depends on the row alone: its neighbours must not change its last bit.
    far = ~(np.abs(largest) < SAFE_LOGIT)
    if far.all():
        np.subtract(scores, largest[:, None], out=room)
        np.exp(room, out=room)
    else:
        # Neither end overflows, so the usual subtraction of the row's largest can be left out; and
        # powers of two are twice as fast as exponentials.
        np.multiply(scores, scores.dtype.type(LOG2_E), out=room)
        np.exp2(room, out=room)
        if far.any():
            room[far] = np.exp(scores[far] - largest[far, None])
    return room, _row_sums(room).astype(np.float64)


def _row_sums(values: Array) -> Array:
    # Not by a matrix product: that adds up a row in an order that depends on its neighbours.
    sums: Array = np.einsum("ij->i", values)
    return sums


def _surrogate_block(
    old: Array,
    new: Array,
    tops: Array,
    new_top: Array,
    matching: Matching | None,
    exponent: float,
    pair: PairRows,
    start: int,
    stop: int,
) -> None:
    """Half the L1 distance of weights over their row's largest; overwrites `old`."""
    if matching is None and exponent == 1.0 and old.dtype == new.dtype:
        # |a/A - b/B| = |a * (B/A) - b| / B: one scaling instead of two.
        np.multiply(old, tops[:, None], out=old)
        np.subtract(old, new, out=old)
        np.abs(old, out=old)
        total = _row_sums(old)
        pair.surrogate[start:stop] = 0.5 * total / new_top
        return
    # A class that one side does not know has no probability there.
    a, b = old / (new_top / tops)[:, None], new / new_top[:, None]
    if exponent != 1.0:
        a, b = a**exponent, b**exponent
    alone = np.zeros(len(a))
    if matching is not None:
        alone += a[:, matching.only_old].sum(axis=1, dtype=np.float64)
        alone += b[:, matching.only_new].sum(axis=1, dtype=np.float64)
        a, b = a[:, matching.old], b[:, matching.new]
    pair.surrogate[start:stop] = 0.5 * (np.abs(a - b).sum(axis=1, dtype=np.float64) + alone)


def _distance_block(
    old: Array, new: Array, matching: Matching | None, room: Array, pair: PairRows, start: int
) -> None:
    """The Euclidean distance of logits, over the classes that both sides know."""
    if pair.distance is None:
        return
    if matching is not None:
        difference = new[:, matching.new] - old[:, matching.old]
    elif old.dtype == new.dtype:
        difference = np.subtract(new, old, out=room)
    else:
        difference = new - old
    squared = np.vecdot(difference, difference)
    pair.distance[start : start + len(old)] = np.sqrt(squared.astype(np.float64))
