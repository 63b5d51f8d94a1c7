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
    """Some rows of one model: its probabilities up to one factor per row, and their logarithms.

    `logs` are logarithms of the probabilities up to one number per row, as logits are. `weights`
    are proportional to the probabilities. The largest of each row, of class `top`, is 0 there: it
    is in `largest`, its logarithm in `top_log`, and the sum of the others in `rest`. Kept apart,
    the others are not lost next to a largest that is nearly all.
    """

    kind: ScoreKind
    logs: Array
    weights: Array
    top: IntArray
    largest: Array
    top_log: FloatArray
    rest: FloatArray

    @property
    def total(self) -> FloatArray:
        """The sum of all weights of each row."""
        return self.rest + self.largest

    @property
    def surprise(self) -> FloatArray:
        """Minus the logarithm of the largest probability of each row."""
        found: FloatArray = np.log1p(self.rest / self.largest)
        return found

    def put_back(self) -> None:
        """Make the weights those of all classes."""
        self.weights[np.arange(len(self.top)), self.top] = self.largest


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
            views = [scores[start:stop] for scores in given]
            blocks: list[Block] = []
            for kind, side in zip(kinds, sides, strict=True):
                if kind is not None and side is not None:
                    room, view = scratch[len(blocks)][:, : stop - start], views[len(blocks)]
                    blocks.append(_side_block(view, kind, side, room, start, stop, look=look))
            if pair is not None:
                rooms = [room[1, : stop - start] for room in scratch]
                _pair_block(views, blocks, matching, exponent, rooms, pair, start)

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
    """Fills one side's rows; `room` is memory for the weights and for their logarithms."""
    weights, logs = room
    if kind == "logits":
        # First, because memory is read while it computes: the search for the largest would wait.
        np.exp(scores, out=weights)
    top = scores.argmax(axis=1)
    if kind == "logits":
        logs = _softmax_weights(scores, top, weights, logs)
    else:
        # Rounding may have left a probability below 0.
        np.maximum(scores, 0.0, out=weights)
        np.log(np.maximum(weights, np.finfo(weights.dtype).tiny, out=logs), out=logs)
    block = _block(kind, logs, weights, top)
    if kind == "logits":
        total = whole = block.total
        bad = ~np.isfinite(total)
        if look:
            # A sum is finite only if each of its terms is.
            bad |= ~np.isfinite(scores.sum(axis=1, dtype=np.float64))
    else:
        total, whole = block.total, np.ones(len(scores))
        exact = scores.astype(np.float64).sum(axis=1)
        bad = ~(np.abs(exact - 1.0) <= PROBABILITY_TOLERANCE) | (scores.min(axis=1) < -ROUNDING)
    # Without the largest, the second is the largest; argmax is the fastest search.
    second = weights[np.arange(len(top)), weights.argmax(axis=1)]
    largest = block.largest.astype(np.float64)
    side.top[start:stop] = top
    side.confidence[start:stop] = largest / whole
    side.margin[start:stop] = (largest - second) / whole
    # The mean of how far a logarithm lies below the largest, which adds nothing.
    drops = block.top_log * block.rest - np.vecdot(weights, logs)
    side.entropy[start:stop] = block.surprise + drops / total
    side.bad[start:stop] = bad
    return block


def _block(kind: ScoreKind, logs: Array, weights: Array, top: IntArray) -> Block:
    """The rows of these weights; takes the largest of each row out of them."""
    every = np.arange(len(top))
    largest = weights[every, top]
    weights[every, top] = 0.0
    rest = _row_sums(weights).astype(np.float64)
    return Block(kind, logs, weights, top, largest, logs[every, top].astype(np.float64), rest)


def _softmax_weights(scores: Array, top: IntArray, weights: Array, room: Array) -> Array:
    """Put the exponentials right where they overflow or vanish; returns their logarithms."""
    # Which way is taken depends on the row alone: its neighbours must not change its last bit.
    largest = scores[np.arange(len(top)), top]
    far = ~(np.abs(largest) < SAFE_LOGIT)
    if not far.any():
        return scores
    if far.all():
        np.subtract(scores, largest[:, None], out=room)
        np.exp(room, out=weights)
    else:
        np.copyto(room, scores)
        room[far] -= largest[far, None]
        weights[far] = np.exp(room[far])
    return room


def _row_sums(values: Array) -> Array:
    # Not by a matrix product: that adds up a row in an order that depends on its neighbours.
    sums: Array = np.einsum("ij->i", values)
    return sums


def _pair_block(
    scores: list[Array],
    blocks: list[Block],
    matching: Matching | None,
    exponent: float,
    rooms: list[Array],
    pair: PairRows,
    start: int,
) -> None:
    """Fills the rows of a pair; `rooms` is memory where the logarithms of probabilities may be."""
    (a, b), stop = blocks, start + len(scores[0])
    # The difference of logits is that of the logarithms, where these are the logits themselves.
    one = matching is None and a.logs is scores[0] and b.logs is scores[1]
    difference = _distance(scores, matching, rooms[0], pair, start) if one else None
    pair.divergence[start:stop] = _divergence(a, b, matching, rooms, difference)
    a.put_back()
    b.put_back()
    pair.surrogate[start:stop] = _surrogate(a, b, matching, exponent)
    if not one:
        _distance(scores, matching, rooms[0], pair, start)


def _distance(
    scores: list[Array], matching: Matching | None, room: Array, pair: PairRows, start: int
) -> Array | None:
    """Fills the distances of logits; returns new minus old, over the classes that both know."""
    if pair.distance is None:
        return None
    old, new = scores
    if matching is not None:
        difference = new[:, matching.new] - old[:, matching.old]
    else:
        difference = np.subtract(new, old, out=room if old.dtype == new.dtype else None)
    squared = np.vecdot(difference, difference)
    pair.distance[start : start + len(old)] = np.sqrt(squared.astype(np.float64))
    return difference


def _divergence(
    old: Block,
    new: Block,
    matching: Matching | None,
    rooms: list[Array],
    difference: Array | None,
) -> FloatArray:
    """KL(p_old, p_new) over the shared classes, of which new has at least the least probability.

    `difference` is that of the logarithms, if it is already there.
    """
    if matching is not None:
        if not len(matching.old):
            return np.full(len(old.top), np.nan)
        old, new = _shared(old, matching.old), _shared(new, matching.new)
    every, top = np.arange(len(old.top)), old.top
    surprise = new.surprise
    # The logarithm of the least probability, on the scale of this row.
    least = new.top_log + (surprise - MOST_DIVERGENCE)
    at_top = np.maximum(new.logs[every, top].astype(np.float64), least)
    below = np.flatnonzero(new.logs[every, new.logs.argmin(axis=1)] < least)
    if difference is None or len(below) > len(every) // 4:
        same = matching is None and old.logs.dtype == new.logs.dtype
        lowest = least.astype(new.logs.dtype)[:, None]
        clipped = np.maximum(new.logs, lowest, out=rooms[1] if same else None)
        difference = np.subtract(clipped, old.logs, out=rooms[0] if same else None)
    elif len(below):
        lowest = least[below].astype(new.logs.dtype)[:, None]
        difference[below] = np.maximum(new.logs[below], lowest) - old.logs[below]
    # Differences are taken class by class, because those of two nearly equal models are small; and
    # that of old's top class apart, because the others may weigh very little next to it.
    rest = old.rest * (at_top - old.top_log) - np.vecdot(old.weights, difference)
    found = rest / old.total + (new.top_log - at_top + surprise) - old.surprise
    return np.clip(found, 0.0, MOST_DIVERGENCE)


def _shared(block: Block, places: IntArray) -> Block:
    """The scores of some classes alone; their largest is nan where they have no probability."""
    logs = block.logs.take(places, axis=1)
    top = logs.argmax(axis=1)
    if block.kind == "probabilities":
        block.put_back()
        weights = block.weights.take(places, axis=1)
    else:
        # Next to a much larger logit of another class, the weights may all be 0.
        weights = np.exp(logs - logs[np.arange(len(top)), top, None])
    shared = _block(block.kind, logs, weights, top)
    shared.largest[shared.largest == 0] = np.nan
    return shared


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
