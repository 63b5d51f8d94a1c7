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

from flipguard.counts import MOST_DIVERGENCE

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
    entropy: FloatArray
    bad: npt.NDArray[np.bool_]
    classes: int


@dataclass(slots=True)
class PairRows:
    """Values computed from the scores of two models together, one per row.

    `divergence` is nan where one of the models gives the shared classes no probability at all.
    """

    surrogate: FloatArray
    divergence: FloatArray
    distance: FloatArray | None


@dataclass(slots=True)
class Block:
    """Some rows of one model: numbers proportional to its probabilities, and their logarithms.

    `largest` and `total` are the largest weight of each row and the sum of its weights. `drops` is
    how far the logarithm of each weight lies below that of the largest.
    """

    kind: ScoreKind
    weights: Array
    largest: Array
    total: FloatArray
    drops: Array


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
    sides = tuple(None if scores is None else _empty_side(scores) for scores in (old, new))
    logits = kinds == ("logits", "logits")
    pair = _empty_pair(n, logits=logits) if len(given) == 2 else None
    # Minus infinity leaves no trace in a softmax, but it does in a distance over all classes: where
    # that is computed anyway, no other search for it is needed.
    look = not (logits and matching is None and len(given) == 2)
    rows = max(1, NUMBERS_PER_BLOCK // max(1, *(scores.shape[1] for scores in given)))

    def work(starts: range) -> None:
        # Memory is allocated once per thread: allocating it for each block would cost more than the
        # arithmetic, because the system clears every fresh page.
        scratch = [np.empty((2, rows, scores.shape[1]), scores.dtype) for scores in given]
        for start in starts:
            stop = min(n, start + rows)
            blocks: list[Block] = []
            for scores, kind, side in zip((old, new), kinds, sides, strict=True):
                if scores is not None and kind is not None and side is not None:
                    room = scratch[len(blocks)][:, : stop - start]
                    block = scores[start:stop]
                    blocks.append(_side_block(block, kind, side, room, start, stop, look=look))
            if pair is not None and old is not None and new is not None:
                a, b = blocks
                pair.divergence[start:stop] = _divergence(a, b, matching)
                pair.surrogate[start:stop] = _surrogate(a, b, matching, exponent)
                if pair.distance is not None:
                    room = scratch[0][0, : stop - start]
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


def _empty_side(scores: Array) -> SideScores:
    n, classes = scores.shape
    return SideScores(
        top=np.empty(n, dtype=np.int64),
        confidence=np.empty(n),
        margin=np.empty(n),
        entropy=np.empty(n),
        bad=np.empty(n, dtype=np.bool_),
        classes=classes,
    )


def _empty_pair(n: int, *, logits: bool) -> PairRows:
    return PairRows(np.empty(n), np.empty(n), np.empty(n) if logits else None)


def _side_block(
    scores: Array,
    kind: ScoreKind,
    side: SideScores,
    room: Array,
    start: int,
    stop: int,
    *,
    look: bool,
) -> Block:
    """Fills one side's rows; `room` is memory for the weights and for the drops."""
    every = np.arange(len(scores))
    top = scores.argmax(axis=1)
    weights, drops = room
    if kind == "logits":
        total = _softmax_weights(scores, scores[every, top], weights)
        whole = total
        bad = ~np.isfinite(total)
        if look:
            # A sum is finite only if each of its terms is.
            bad |= ~np.isfinite(scores.sum(axis=1, dtype=np.float64))
        np.subtract(scores[every, top, None], scores, out=drops)
    else:
        # Rounding may have left a probability below 0.
        np.maximum(scores, 0.0, out=weights)
        total = scores.astype(np.float64).sum(axis=1)
        whole = np.ones(len(scores))
        bad = ~(np.abs(total - 1.0) <= PROBABILITY_TOLERANCE) | (scores.min(axis=1) < -ROUNDING)
        np.log(np.maximum(weights, np.finfo(weights.dtype).tiny, out=drops), out=drops)
        np.subtract(drops[every, top, None], drops, out=drops)
    largest = weights[every, top]
    # The second largest is the largest once the first is away; argmax is the fastest search.
    weights[every, top] = -1.0
    second = weights[every, weights.argmax(axis=1)] if scores.shape[1] > 1 else np.zeros(len(top))
    weights[every, top] = largest
    block = Block(kind, weights, largest, total, drops)
    side.top[start:stop] = top
    side.confidence[start:stop] = largest.astype(np.float64) / whole
    side.margin[start:stop] = (largest.astype(np.float64) - second) / whole
    side.entropy[start:stop] = _surprise(block) + _mean_drop(block, drops)
    side.bad[start:stop] = bad
    return block


def _softmax_weights(scores: Array, largest: Array, room: Array) -> FloatArray:
    """Exponentials up to one factor per row, in `room`; returns their sums."""
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
    return _row_sums(room).astype(np.float64)


def _row_sums(values: Array) -> Array:
    # Not by a matrix product: that adds up a row in an order that depends on its neighbours.
    sums: Array = np.einsum("ij->i", values)
    return sums


def _surprise(block: Block) -> FloatArray:
    """Minus the logarithm of the largest probability of each row."""
    found: FloatArray = np.log(block.total / block.largest)
    return found


def _mean_drop(block: Block, drops: Array) -> FloatArray:
    """The mean of some values per class, weighted by a model's probabilities."""
    found: FloatArray = np.vecdot(block.weights, drops).astype(np.float64) / block.total
    return found


def _divergence(old: Block, new: Block, matching: Matching | None) -> FloatArray:
    """KL(p_old, p_new) over the shared classes, of which new has at least the least probability.

    Overwrites the drops of `new`.
    """
    if matching is not None:
        if not len(matching.old):
            return np.full(len(old.total), np.nan)
        old, new = _shared(old, matching.old), _shared(new, matching.new)
    surprise = _surprise(new)
    # Differences are taken class by class, because those of two nearly equal models are small.
    most = (MOST_DIVERGENCE - surprise).astype(new.drops.dtype)
    drops = np.minimum(new.drops, most[:, None], out=new.drops)
    drops = np.subtract(drops, old.drops, out=drops if drops.dtype == old.drops.dtype else None)
    found = _mean_drop(old, drops) + (surprise - _surprise(old))
    return np.clip(found, 0.0, MOST_DIVERGENCE)


def _shared(block: Block, places: IntArray) -> Block:
    """The scores of some classes alone; their total is nan where they have no probability."""
    drops = block.drops.take(places, axis=1)
    drops -= drops.min(axis=1, keepdims=True)
    # Not the weights themselves: next to a much larger logit of another class they may all be 0.
    weights = np.exp(-drops)
    if block.kind == "probabilities":
        weights[block.weights.take(places, axis=1) == 0] = 0.0
    total = _row_sums(weights).astype(np.float64)
    total[total == 0] = np.nan
    return Block(block.kind, weights, np.ones(len(weights), weights.dtype), total, drops)


def _surrogate(
    old_block: Block, new_block: Block, matching: Matching | None, exponent: float
) -> FloatArray:
    """Half the L1 distance of weights over their row's largest; overwrites those of old."""
    old, new, new_top = old_block.weights, new_block.weights, new_block.largest
    tops = np.divide(new_top, old_block.largest)
    if matching is None and exponent == 1.0 and old.dtype == new.dtype:
        # |a/A - b/B| = |a * (B/A) - b| / B: one scaling instead of two.
        np.multiply(old, tops[:, None], out=old)
        np.subtract(old, new, out=old)
        np.abs(old, out=old)
        return np.asarray(0.5 * _row_sums(old) / new_top)
    # A class that one side does not know has no probability there.
    a, b = old / (new_top / tops)[:, None], new / new_top[:, None]
    if exponent != 1.0:
        a, b = a**exponent, b**exponent
    alone = np.zeros(len(a))
    if matching is not None:
        alone += a[:, matching.only_old].sum(axis=1, dtype=np.float64)
        alone += b[:, matching.only_new].sum(axis=1, dtype=np.float64)
        a, b = a[:, matching.old], b[:, matching.new]
    return np.asarray(0.5 * (np.abs(a - b).sum(axis=1, dtype=np.float64) + alone))


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
