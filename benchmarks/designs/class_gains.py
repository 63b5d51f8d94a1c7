"""Precision, recall and F1 of one class, and the gain of the mean F1 over all classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from designs.drawing import Floats, Interval, coverage_row, drawn, normal
from designs.row import Row
from flipguard import METRICS, statistics
from flipguard.counts import FlipCounts, StatisticsLayout, fixed_point, unit
from flipguard.estimates import GroupCounts
from flipguard.metric_kinds import Design

SIZES = (50, 200, 1_000, 5_000)
# Draws on which the slow bootstrap is measured, and its resamples.
BOOTSTRAPPED, RESAMPLES = 400, 400
ABSENT = "the interval; a class without a sample does not count"


@dataclass(frozen=True, kw_only=True)
class World:
    """Shares of the classes, error rates of both models in each, and how many errors they share.

    A wrong label is any of the other classes, with the same chance.
    """

    words: str
    prior: tuple[float, ...]
    old: tuple[float, ...]
    new: tuple[float, ...]
    common: float

    @property
    def cells(self) -> Floats:
        """The chance of each target, label of old and label of new."""
        classes = len(self.prior)
        table = np.zeros((classes, classes, classes))
        for target, (share, old, new) in enumerate(
            zip(self.prior, self.old, self.new, strict=True)
        ):
            both = self.common * min(old, new)
            table[target, target, target] = share * (1 - old - new + both)
            for label in set(range(classes)) - {target}:
                part = share / (classes - 1)
                table[target, label, label] += part * both
                table[target, target, label] += part * (new - both)
                table[target, label, target] += part * (old - both)
        return table

    def rarest(self, n: int) -> float:
        """The expected number of samples of the rarest class."""
        return n * min(self.prior)


def zipf(classes: int, power: float) -> tuple[float, ...]:
    shares = np.arange(1.0, classes + 1) ** -power
    return tuple(shares / shares.sum())


WORLDS = (
    World(words="2 equal classes", prior=(0.5, 0.5), old=(0.1,) * 2, new=(0.09,) * 2, common=0.7),
    World(
        words="2 classes, one of 5 %",
        prior=(0.95, 0.05),
        old=(0.02, 0.3),
        new=(0.02, 0.3),
        common=0.7,
    ),
    World(
        words="2 classes, one of 1 %",
        prior=(0.99, 0.01),
        old=(0.005, 0.3),
        new=(0.005, 0.35),
        common=0.7,
    ),
    World(
        words="2 classes, one of 10 %, few flips",
        prior=(0.9, 0.1),
        old=(0.02, 0.1),
        new=(0.02, 0.1),
        common=0.95,
    ),
    World(
        words="2 equal classes, 1 % flips, all negative",
        prior=(0.5, 0.5),
        old=(0.0, 0.0),
        new=(0.01, 0.01),
        common=0.0,
    ),
    World(
        words="2 classes, one of 10 %, 2 % flips, all negative",
        prior=(0.9, 0.1),
        old=(0.0, 0.0),
        new=(0.01, 0.11),
        common=0.0,
    ),
    World(
        words="10 equal classes, 1 % flips, all positive",
        prior=(0.1,) * 10,
        old=(0.11,) * 10,
        new=(0.1,) * 10,
        common=1.0,
    ),
    World(
        words="10 equal classes",
        prior=(0.1,) * 10,
        old=(0.1,) * 10,
        new=(0.09,) * 10,
        common=0.6,
    ),
    World(
        words="10 equal classes, few flips",
        prior=(0.1,) * 10,
        old=(0.1,) * 10,
        new=(0.1,) * 10,
        common=0.97,
    ),
    World(
        words="10 classes, sizes 1/k",
        prior=zipf(10, 1),
        old=(0.1,) * 10,
        new=(0.12,) * 10,
        common=0.6,
    ),
    World(
        words="10 classes, sizes 1/k^2",
        prior=zipf(10, 2),
        old=(0.1,) * 10,
        new=(0.12,) * 10,
        common=0.6,
    ),
)


def parts() -> dict[str, Callable[[np.random.Generator, int], Iterator[Row]]]:
    """Groups of designs that are drawn separately, so that they can run in parallel."""
    found = {world.words: partial(gains, world) for world in WORLDS}
    return {**found, "one class": one_class, "clusters": clustered}


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for part in parts().values():
        yield from part(rng, draws)


def gains(world: World, rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for n in SIZES:
        tables = rng.multinomial(n, world.cells.ravel(), size=draws).astype(np.float64)
        tables = tables.reshape(draws, *world.cells.shape)
        truth = float(mean_gain(world.cells))
        sums = linearised(tables)
        for confidence in (0.95,) if n != 200 else (0.95, 0.8, 0.99):
            rivals = {"linearised, without more flips": plain(sums, confidence)}
            if confidence == 0.95 and n <= 1_000 and len(world.prior) == 2:
                rivals["bootstrap"] = bootstrap(rng, tables, confidence)
            few = world.rarest(n) < 5
            yield coverage_row(
                "macro_f1_gain",
                world.words,
                n,
                confidence,
                draws,
                statistics.padded_mean(*sums, confidence=confidence),
                truth,
                np.full(draws, 1 / draws),
                rivals,
                printed=ABSENT if few else None,
            )


def f1s(tables: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Rows of each class; then per model the F1 and the sum of actual and predicted rows."""
    actual = tables.sum(axis=(-1, -2))
    found = []
    for labels in (tables.sum(axis=-1), tables.sum(axis=-2)):
        right = np.einsum("...cc->...c", labels)
        whole = actual + labels.sum(axis=-2)
        f1 = np.divide(2 * right, whole, out=np.zeros_like(right), where=whole > 0)
        found += [f1, whole]
    return actual, *found  # type: ignore[return-value]


def mean_gain(tables: Floats) -> Floats:
    actual, old, _, new, _ = f1s(tables)
    here = actual > 0
    return np.asarray(np.where(here, new - old, 0.0).sum(axis=-1) / here.sum(axis=-1))


def linearised(tables: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The arguments of `padded_mean`: what each row adds to the gain of the mean F1, summed."""
    actual, f1_old, whole_old, f1_new, whole_new = f1s(tables)
    here, n = actual > 0, tables.sum(axis=(-1, -2, -3))
    weight = n / here.sum(axis=-1)

    def changes(f1: Floats, whole: Floats) -> tuple[Floats, Floats]:
        one = np.divide(1.0, whole, out=np.zeros_like(whole), where=here)
        table = -((f1 * one)[..., :, None] + (f1 * one)[..., None, :])
        place = np.arange(f1.shape[-1])
        table[..., place, place] += 2 * one
        fall = f1 * one
        others = fall.sum(axis=-1, keepdims=True) - fall
        others /= np.maximum(here.sum(axis=-1, keepdims=True) - 1, 1)
        return table, (2 - f1) * one + others

    (old, _), (new, pull) = changes(f1_old, whole_old), changes(f1_new, whole_new)
    each = (new[..., :, None, :] - old[..., :, :, None]) * weight[..., None, None, None]
    each += mean_gain(tables)[..., None, None, None]
    one_flip = (weight[..., None] * pull) ** 2 * here
    cells = (-1, -2, -3)
    return (
        (tables * each).sum(axis=cells),
        (tables * each**2).sum(axis=cells),
        weight * one_flip.sum(axis=-1),
        n,
    )


def plain(sums: tuple[Floats, ...], confidence: float) -> Interval:
    total, squares, _, n = sums
    half = normal(confidence) * np.sqrt(np.maximum(squares / n - (total / n) ** 2, 0.0) / n)
    return total / n - half, total / n + half


def bootstrap(rng: np.random.Generator, tables: Floats, confidence: float) -> Interval:
    """Percentiles of paired resamples, on the first draws; no interval on the others."""
    ends = np.full((2, len(tables)), np.nan)
    for i, table in enumerate(tables[:BOOTSTRAPPED]):
        chances = table.ravel() / table.sum()
        again = rng.multinomial(int(table.sum()), chances, size=RESAMPLES).reshape(-1, *table.shape)
        tails = ((1 - confidence) / 2, (1 + confidence) / 2)
        ends[:, i] = np.quantile(mean_gain(again.astype(np.float64)), tails)
    return ends[0], ends[1]


# -- one class -----------------------------------------------------------------------------------


def one_class(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Rates whose number of samples is random too."""
    for share, recall, false in ((0.1, 0.9, 0.02), (0.02, 0.7, 0.01), (0.02, 0.95, 0.001)):
        chances = np.array([share * recall, share * (1 - recall), (1 - share) * false])
        chances = np.append(chances, 1 - chances.sum())
        hit, miss, alarm, _ = chances
        truths = {
            "precision_new": hit / (hit + alarm),
            "recall_new": hit / (hit + miss),
            "f1_new": 2 * hit / (2 * hit + miss + alarm),
        }
        for n in (200, 1_000, 5_000):
            tables, weight = drawn(rng, n, chances, draws)
            counts = one_class_counts(tables)
            for metric, truth in truths.items():
                interval = METRICS[metric].kind.interval(counts, confidence=0.95, design=Design())
                yield coverage_row(
                    metric,
                    f"class of {100 * share:g} %, recall {100 * recall:g} %, "
                    f"{100 * false:g} % of the others predicted as it",
                    n,
                    0.95,
                    draws,
                    interval,
                    float(truth),
                    weight,
                    {"normal": normal_interval(metric, counts, 0.95)},
                )


def one_class_counts(tables: Floats) -> FlipCounts:
    layout = StatisticsLayout(has_target=True, is_class=True)
    values = np.zeros((len(tables), len(layout.names)))
    for name, place in (("positive_flip", 0), ("wrong_same", 1), ("false_new", 2)):
        values[:, layout.columns[name]] = tables[:, place]
    return FlipCounts(layout, values)


def normal_interval(metric: str, counts: FlipCounts, confidence: float) -> Interval:
    kind = METRICS[metric].kind
    value, half = kind.value(counts), normal(confidence) * np.sqrt(kind.variance(counts))
    return value - half, value + half


# -- clusters ------------------------------------------------------------------------------------


def clustered(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """The gain of the mean F1 where rows of one cluster tend to be of one class and to flip."""
    world = WORLDS[0]
    for clusters, size, same in ((10, 20, 0.5), (30, 20, 0.5), (100, 20, 0.0), (100, 20, 0.5)):
        each = [_one(rng, world, clusters, size, same) for _ in range(draws)]
        ends = np.array(each).T
        yield coverage_row(
            "macro_f1_gain, clustered",
            f"{clusters} clusters of {size} rows, {100 * same:g} % of rows like the first",
            clusters * size,
            0.95,
            draws,
            (ends[0], ends[1]),
            float(mean_gain(world.cells)),
            np.full(draws, 1 / draws),
            {},
        )


def _one(
    rng: np.random.Generator, world: World, clusters: int, size: int, same: float
) -> tuple[float, float]:
    shape, chances = world.cells.shape, world.cells.ravel()
    kinds = rng.choice(chances.size, (clusters, size), p=chances)
    kinds = np.where(rng.random(kinds.shape) < same, kinds[:, :1], kinds)
    tables = np.zeros((clusters, chances.size))
    np.add.at(tables, (np.arange(clusters)[:, None], kinds), 1.0)
    whole = tables.sum(axis=0).reshape(1, *shape)
    # The sums of each kind of row on its own, with the totals of the whole.
    single = [linearised_row(whole, kind) for kind in range(chances.size)]
    values, padding = np.array(single), linearised(whole)[2] / (clusters * size)
    layout = StatisticsLayout(has_target=True, has_classes=True)
    table = np.zeros((clusters, len(layout.names)))
    table[:, layout.columns["both_right"]] = size
    table[:, layout.columns["class_gain"]] = np.rint(tables @ values / unit("class_gain"))
    squares = {"class_gain_squared": tables @ values**2}
    squares["class_gain_of_flip_squared"] = np.full(clusters, padding * size)
    for name, numbers in squares.items():
        for part, units in fixed_point(name, np.asarray(numbers)).items():
            table[:, layout.columns[part]] = units
    found = FlipCounts(layout, table)
    sample = GroupCounts(counts=found.total(), clusters=found, replicates=500)
    return sample.interval(METRICS["macro_f1_gain"], 0.95)


def linearised_row(whole: Floats, kind: int) -> float:
    """What a row of one kind adds to the gain, by the linear change of the whole."""
    step = np.zeros(whole.size)
    step[kind] = 1e-4
    n = whole.sum()
    more = mean_gain(whole + step.reshape(whole.shape)) - mean_gain(whole)
    return float(mean_gain(whole)[0] + n * more[0] / 1e-4)
