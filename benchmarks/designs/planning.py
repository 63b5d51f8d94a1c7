"""How often an inconclusive rule is decided with the further samples that the gate asks for.

The further samples are drawn at the observed rates, as the gate assumes. The rival draws them at
the true rates, which the gate cannot know, so the chance to decide is a different one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from designs.row import Row
from flipguard.counts import CELLS, FlipCounts, FloatArray, StatisticsLayout
from flipguard.estimates import GroupCounts, intervals
from flipguard.metrics import METRICS
from flipguard.planning import CHANCES, Question, samples_needed

LAYOUT = StatisticsLayout(has_target=True)
PLACES = [LAYOUT.names.index(cell) for cell in CELLS]
CONFIDENCE = 0.95
# Each inconclusive table is planned for once, and then this many continuations are drawn.
CONTINUED = 20


@dataclass(frozen=True, kw_only=True)
class World:
    """A metric with its limits, and the true rates of both kinds of flips."""

    metric: str
    negative: float
    positive: float
    n: int
    lowest: float = -np.inf
    highest: float = np.inf

    @property
    def design(self) -> str:
        limits = [
            f"{word} {100 * limit:g} %"
            for word, limit in (("min", self.lowest), ("max", self.highest))
            if np.isfinite(limit)
        ]
        rates = f"NFR {100 * self.negative:g} %, PFR {100 * self.positive:g} %"
        return f"{rates}, {' and '.join(limits)}, first {self.n:,} samples"

    @property
    def chances(self) -> FloatArray:
        right = 0.8
        wrong = 1.0 - right - self.positive
        return np.array(
            [right - self.negative, self.negative, self.positive, 0.7 * wrong, 0.3 * wrong]
        )


def worlds() -> Iterator[World]:
    """Worlds whose limits are so near that most first samples leave the rule inconclusive."""
    for n, near, margin in ((200, 0.5, 0.015), (1_000, 0.25, 0.007), (10_000, 0.08, 0.002)):
        for rate in (0.005, 0.02, 0.05):
            flips = {"negative": rate, "positive": 0.02, "n": n}
            for factor in (1 + near, 1 - near):
                yield World(metric="negative_flip_rate", highest=round(rate * factor, 5), **flips)  # type: ignore[arg-type]
            expected = rate / (0.8 * (0.2 + rate - 0.02))
            yield World(
                metric="relative_negative_flip_rate",
                highest=round((1 + near) * expected, 3),
                **flips,  # type: ignore[arg-type]
            )
        for negative, positive in ((0.005, 0.005), (0.02, 0.02), (0.05, 0.05)):
            gain = {"metric": "accuracy_gain", "negative": negative, "positive": positive, "n": n}
            yield World(**gain, lowest=-margin)  # type: ignore[arg-type]
            width = round(3 * float(np.sqrt((negative + positive) / n)), 4)
            yield World(**gain, lowest=-width, highest=width)  # type: ignore[arg-type]
    yield World(
        metric="backward_trust_compatibility", negative=0.02, positive=0.02, n=1_000, lowest=0.97
    )


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Each world with a chance to decide of 50 % and of 90 %."""
    for world in worlds():
        yield from _measured(rng, world, draws)


def _measured(rng: np.random.Generator, world: World, draws: int) -> Iterator[Row]:
    metric = METRICS[world.metric]
    # Some tables have no number of samples that decides, so a few more are drawn.
    tables = _inconclusive(rng, world, max(5 * draws // (4 * CONTINUED), 20))
    samples = [GroupCounts(counts=_counts(table)) for table in tables]
    questions = [
        Question(
            sample=sample,
            value=float(metric.value(sample.counts)),
            lowest=world.lowest,
            highest=world.highest,
            passing=CONFIDENCE,
            failing=CONFIDENCE,
        )
        for sample in samples
    ]
    needed = samples_needed(metric, questions)
    for k, chance in enumerate(CHANCES):
        known = [i for i, pair in enumerate(needed) if pair[k] is not None]
        further = np.array([needed[i][k] for i in known], dtype=np.int64)
        seen = tables[known]
        shares = {
            name: _decided(rng, world, seen, further, chances)
            for name, chances in (
                ("rates seen", seen / seen.sum(axis=1, keepdims=True)),
                ("true rates", np.broadcast_to(world.chances, seen.shape)),
            )
        }
        yield Row(
            metric=world.metric,
            design=world.design,
            n=world.n,
            confidence=CONFIDENCE,
            draws=len(known) * CONTINUED,
            promise="decided",
            nominal=chance,
            measured=shares["rates seen"],
            above=None,
            below=None,
            width=float(np.median(further)),
            undefined=1.0 - len(known) / len(tables),
            rivals={"drawn at the true rates": {"measured": shares["true rates"], "width": None}},
            printed=None,
        )


def _inconclusive(rng: np.random.Generator, world: World, wanted: int) -> NDArray[np.int64]:
    """First samples that leave the rule inconclusive."""
    found: list[NDArray[np.int64]] = []
    while sum(map(len, found)) < wanted:
        tables = rng.multinomial(world.n, world.chances, size=4 * wanted)
        # If no flip was observed none is drawn, so the outcome is certain.
        some = tables[:, 1] + (world.metric == "accuracy_gain") * tables[:, 2] > 0
        tables = tables[some]
        found.append(tables[~_judged(world, tables)])
    return np.concatenate(found)[:wanted]


def _decided(
    rng: np.random.Generator,
    world: World,
    seen: NDArray[np.int64],
    further: NDArray[np.int64],
    chances: FloatArray,
) -> float:
    shares = [
        _judged(world, seen + rng.multinomial(further, chances)).mean() for _ in range(CONTINUED)
    ]
    return float(np.mean(shares))


def _judged(world: World, tables: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a rule is decided by these tables."""
    low, high = intervals(METRICS[world.metric], _counts(tables), CONFIDENCE)
    inside = (low >= world.lowest) & (high <= world.highest)
    return np.asarray(inside | (low > world.highest) | (high < world.lowest))


def _counts(tables: NDArray[np.int64]) -> FlipCounts:
    values = np.zeros((*tables.shape[:-1], len(LAYOUT.names)), dtype=np.int64)
    values[..., PLACES] = tables
    return FlipCounts(LAYOUT, values)
