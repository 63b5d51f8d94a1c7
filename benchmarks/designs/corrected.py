"""How often at least one group or rule fails after a correction, if all lie at their limits.

With Holm's and with Benjamini and Hochberg's correction, the first of G groups fails if its p value
is at most alpha / G, that is if its interval at confidence 1 - alpha / G lies beyond the limit.
Groups are independent. So the chance that any fails follows from that of one group, which is drawn
as often as all groups together would be. Values within two standard errors of the limit cannot fail
at these levels, so no interval is computed for them.

Ratios to several controls, and means, are measured at corrected levels in their own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from designs.planning import LAYOUT, PLACES
from designs.row import Row
from flipguard import statistics
from flipguard.corrections import rule_alphas
from flipguard.counts import FlipCounts, FloatArray, StatisticsLayout, joint_name
from flipguard.estimates import GroupCounts, intervals
from flipguard.estimates import p_values as sample_p_values
from flipguard.metrics import METRICS

ALPHA = 0.05
GROUPS = (10, 100, 1_000)
SIZE = 500
# At most this many groups are drawn for one row.
MOST_DRAWN = 4_000_000
CHUNK = 100_000
RULES = (6, 20)
UNCORRECTED = "the rules that failed, without a warning; docs/gate.md says that errors add up"


@dataclass(frozen=True, kw_only=True)
class World:
    """A metric, its true value as limit, and how the counts of a group are drawn."""

    metric: str
    design: str
    limit: float
    above: bool
    layout: StatisticsLayout
    draw: Callable[[np.random.Generator, int], FloatArray]


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """The share of draws in which any group fails, for each metric, and in which any rule fails."""
    for world in worlds():
        for groups in GROUPS:
            yield _over_groups(rng, world, groups, min(draws * groups, MOST_DRAWN))
    for count in RULES:
        for correction in ("none", "holm", "benjamini-hochberg"):
            yield _over_rules(rng, count, correction, draws)


def worlds() -> Iterator[World]:
    """Worlds for every kind of metric that a rule can correct."""
    for rate in (0.005, 0.02, 0.1):
        right, positive = 0.8, 0.02
        wrong = 1 - right - positive
        chances = np.array([right - rate, rate, positive, 0.7 * wrong, 0.3 * wrong])
        expected = rate / (right * (1 - right + rate - positive))
        for metric, limit in (
            ("negative_flip_rate", rate),
            ("relative_negative_flip_rate", expected),
        ):
            yield World(
                metric=metric,
                design=f"NFR {100 * rate:g} %",
                limit=limit,
                above=True,
                layout=LAYOUT,
                draw=_cells(chances),
            )
    for negative, positive in ((0.02, 0.0), (0.02, 0.0005), (0.05, 0.05), (0.1, 0.01)):
        wrong = 0.2 - positive
        yield World(
            metric="accuracy_gain",
            design=f"NFR {100 * negative:g} %, PFR {100 * positive:g} %",
            limit=positive - negative,
            above=False,
            layout=LAYOUT,
            draw=_cells(np.array([0.8 - negative, negative, positive, 0.7 * wrong, 0.3 * wrong])),
        )
    for rate, shared in ((0.02, 0.3), (0.1, 0.5)):
        yield World(
            metric="churn_ratio",
            design=f"churn {100 * rate:g} % of new and of one control, {100 * shared:g} % shared",
            limit=1.0,
            above=True,
            layout=StatisticsLayout(has_target=True, controls=1),
            draw=_joint(rate, shared),
        )


def _cells(chances: FloatArray) -> Callable[[np.random.Generator, int], FloatArray]:
    def draw(rng: np.random.Generator, count: int) -> FloatArray:
        values = np.zeros((count, len(LAYOUT.names)))
        values[:, PLACES] = rng.multinomial(SIZE, chances, size=count)
        return values

    return draw


def _joint(rate: float, shared: float) -> Callable[[np.random.Generator, int], FloatArray]:
    layout = StatisticsLayout(has_target=True, controls=1)
    places = [layout.columns[joint_name("churn", new, old)] for new in (0, 1) for old in (0, 1)]
    alone, both = rate * (1 - shared), rate * shared

    def draw(rng: np.random.Generator, count: int) -> FloatArray:
        values = np.zeros((count, len(layout.names)))
        values[:, places] = rng.multinomial(
            SIZE, [1 - 2 * alone - both, alone, alone, both], size=count
        )
        return values

    return draw


def _over_groups(rng: np.random.Generator, world: World, groups: int, drawn: int) -> Row:
    metric = METRICS[world.metric]
    confidence = 1.0 - ALPHA / groups
    some = metric.value(FlipCounts(world.layout, world.draw(rng, 20_000)))
    spread = np.std(some[np.isfinite(some)])
    failed = undefined = 0
    for start in range(0, drawn, CHUNK):
        counts = FlipCounts(world.layout, world.draw(rng, min(CHUNK, drawn - start)))
        values = metric.value(counts)
        undefined += int(np.isnan(values).sum())
        distance = (values - world.limit) * (1 if world.above else -1)
        far, times = np.unique(counts.values[distance > 2 * spread], axis=0, return_counts=True)
        low, high = intervals(metric, FlipCounts(world.layout, far), confidence)
        failed += int(times[(low > world.limit) if world.above else (high < world.limit)].sum())
    return Row(
        metric=world.metric,
        design=f"{world.design}, {groups:,} groups of {SIZE} at their limit, corrected",
        n=SIZE,
        confidence=confidence,
        draws=drawn // groups,
        promise="family-wise error",
        nominal=ALPHA,
        measured=float(1.0 - (1.0 - failed / drawn) ** groups),
        above=None,
        below=None,
        width=None,
        undefined=undefined / drawn,
        rivals={},
        printed=None,
    )


def _over_rules(rng: np.random.Generator, count: int, correction: str, draws: int) -> Row:
    """Rules at their limits, every second one over ten groups, each on separate samples.

    Rules on the same samples err together, which makes it rarer that any of them does.
    """
    named = (("negative_flip_rate", 0.02), ("churn", 0.10), ("error_rate_new", 0.19))
    p_values = []
    for i in range(count):
        metric, limit = named[i % len(named)]
        flips = rng.binomial(SIZE, limit, size=(draws, 10 if i % 2 else 1))
        p_values.append(_p_values_of_counts(metric, limit)[flips])
    failed = 0
    for k in range(draws):
        adjusted = [statistics.corrected(p[k], correction) for p in p_values]
        alphas = rule_alphas(adjusted, correction, ALPHA)
        failed += any((p <= alpha).any() for p, alpha in zip(adjusted, alphas, strict=True))
    return Row(
        metric="several rules",
        design=f"{count} rules at their limits, half of them over 10 groups, {correction}",
        n=SIZE,
        confidence=1.0 - ALPHA,
        draws=draws,
        promise="family-wise error",
        nominal=ALPHA,
        measured=failed / draws,
        above=None,
        below=None,
        width=None,
        undefined=0.0,
        rivals={},
        printed=UNCORRECTED if correction == "none" else None,
    )


def _p_values_of_counts(metric: str, limit: float) -> FloatArray:
    """The p value of lying above the limit, for every count from 0 to all."""
    cell = {"negative_flip_rate": "negative_flip", "churn": "wrong_different"}
    found = np.ones(SIZE + 1)
    above = np.arange(int(SIZE * limit) + 1, SIZE + 1)
    samples = [
        GroupCounts(
            counts=FlipCounts.of(
                LAYOUT, **{cell.get(metric, "wrong_same"): int(x), "both_right": SIZE - int(x)}
            )
        )
        for x in above
    ]
    found[above] = sample_p_values(METRICS[metric], samples, limit, "above")
    return found
