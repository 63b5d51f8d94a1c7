"""Groups and rules that all lie at their limits: how often any of them fails after a correction.

Holm and Benjamini and Hochberg fail the first of G groups where its p value is alpha / G: where its
interval at a confidence of 1 - alpha / G lies beyond the limit. Groups are independent, so the
chance that any fails follows from that of one, and one is drawn as often as all groups together
would be. Values that lie within two standard errors of the limit cannot fail at these levels; they
are counted without an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from benchmarks.designs.planning import LAYOUT, PLACES
from benchmarks.designs.row import Row

from flipguard.comparison import Group
from flipguard.corrections import failing_alphas
from flipguard.counts import FlipCounts, FloatArray, Layout, joint_name
from flipguard.estimates import Sample, estimate_groups, intervals
from flipguard.metrics import METRICS
from flipguard.policy import Policy

ALPHA = 0.05
GROUPS = (10, 100, 1_000)
SIZE = 500
# No more groups than these are drawn for one row.
MOST_DRAWN = 1_000_000
CHUNK = 100_000
RULES = (6, 20)


@dataclass(frozen=True, kw_only=True)
class World:
    """A metric, its true value as limit, and how the counts of a group are drawn."""

    metric: str
    design: str
    limit: float
    above: bool
    layout: Layout
    draw: Callable[[np.random.Generator, int], FloatArray]


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Any-fail over groups for each metric, and over rules."""
    for world in worlds():
        for groups in GROUPS:
            yield _over_groups(rng, world, groups, min(draws * groups, MOST_DRAWN))
    for count in RULES:
        for correction in ("none", "holm", "benjamini-hochberg"):
            yield _over_rules(rng, count, correction, draws)


def worlds() -> Iterator[World]:
    """Every kind of metric that a rule may correct."""
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
            layout=Layout(has_target=True, controls=1),
            draw=_joint(rate, shared),
        )


def _cells(chances: FloatArray) -> Callable[[np.random.Generator, int], FloatArray]:
    def draw(rng: np.random.Generator, count: int) -> FloatArray:
        values = np.zeros((count, len(LAYOUT.names)))
        values[:, PLACES] = rng.multinomial(SIZE, chances, size=count)
        return values

    return draw


def _joint(rate: float, shared: float) -> Callable[[np.random.Generator, int], FloatArray]:
    layout = Layout(has_target=True, controls=1)
    places = [layout.places[joint_name("churn", new, old)] for new in (0, 1) for old in (0, 1)]
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
    spread = np.nanstd(metric.value(FlipCounts(world.layout, world.draw(rng, 20_000))))
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
    """Rules on one update: half on all samples, half on groups of ten, all at their limits."""
    chances = np.array([0.78, 0.02, 0.03, 0.12, 0.05])
    named = {"negative_flip_rate": 0.02, "churn": 0.10, "error_rate_new": 0.19}
    failed = 0
    alone = [(name, limit) for name, limit in named.items()] * (count // 6)
    document = {
        "correction": correction,
        "rule": [
            *({"metric": name, "max": limit} for name, limit in alone),
            *({"metric": name, "max": limit, "by": "group"} for name, limit in alone),
        ],
    }
    policy = Policy.from_dict(document)
    draws = min(draws, 4_000) // 4
    for _ in range(draws):
        # Each rule is about samples of its own: shared ones would make errors coincide.
        judged = []
        for rule in policy.rules:
            values = np.zeros((10 if rule.by else 1, len(LAYOUT.names)))
            values[:, PLACES] = rng.multinomial(1_000, chances, size=len(values))
            judged.append(_groups(rule.metric, values))
        alphas = failing_alphas(policy, judged)
        failed += any(
            group.sample.interval(METRICS[rule.metric], 1.0 - alpha)[0] > (rule.max or 0.0)
            for rule, groups, errors in zip(policy.rules, judged, alphas, strict=True)
            for group, alpha in zip(groups, errors, strict=True)
            if group[rule.metric].value > (rule.max or 0.0)
        )
    rules = len(policy.rules)
    return Row(
        metric="several rules",
        design=f"{rules} rules at their limits, half of them over 10 groups, {correction}",
        n=1_000,
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
        printed="rules that are not corrected add up their errors"
        if correction == "none"
        else None,
    )


def _groups(metric: str, values: FloatArray) -> list[Group]:
    samples = [Sample(counts=FlipCounts(LAYOUT, row)) for row in values]
    estimates = estimate_groups(METRICS[metric], samples, 1.0 - ALPHA)
    return [
        Group(name=str(i), sample=sample, estimates={metric: estimate}, confidence=1.0 - ALPHA)
        for i, (sample, estimate) in enumerate(zip(samples, estimates, strict=True))
    ]
