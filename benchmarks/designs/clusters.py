"""Rows in clusters: flipguard's own intervals on simulated clusters of many sizes and kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from designs.cluster_rivals import RIVAL_DRAWS, rivals_of
from designs.drawing import Floats, median_width, shares
from designs.row import Row
from flipguard.counts import CELLS, FlipCounts, StatisticsLayout, joint_name
from flipguard.estimates import intervals, p_values_beyond, widened
from flipguard.metric import Metric
from flipguard.metrics import METRICS
from flipguard.notes import are_uneven

CONFIDENCE = 0.95
# Two p values say whether an interval misses, in a tenth of the time that the interval takes. So
# only this many draws give a width.
WIDTH_DRAWS = 100
LAYOUT = StatisticsLayout(has_target=True, controls=1)
PLAIN = StatisticsLayout(has_target=True)
# Rows per cluster if sizes are equal. Other shapes have the same mean, and at most this many rows
# in one cluster, by the number of clusters.
SIZE = 100
MOST_ROWS = {100: 4_000, 300: 10_000, 1000: 20_000}
SHAPES = ("equal sizes", "Zipf sizes", "one giant cluster")
RATES = (0.01, 0.03, 0.05, 0.20)
CORRELATIONS = (0.0, 0.05, 0.2, 0.5)
COUNTS = (3, 5, 10, 30, 100, 1000)
BEYOND = ", beyond the stated bounds"

NOT_SEEN = (
    "the interval, and a note that names the share of the rows in the largest cluster and says "
    "that intervals assume that large clusters flip as often as small ones"
)
TOO_ALIKE = (
    "the interval, without a warning: it allows for an intraclass correlation of up to 1/2; "
    "docs/statistics.md says so"
)


# The chance of each cell, or of each flag, in every cluster of every draw.
Chances = Callable[[np.random.Generator, tuple[int, int]], Floats]


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for part in parts().values():
        yield from part(rng, draws)


def parts() -> dict[str, Callable[[np.random.Generator, int], Iterator[Row]]]:
    """Groups of designs that are drawn separately, so that they can run in parallel."""
    found: dict[str, Callable[[np.random.Generator, int], Iterator[Row]]] = {
        f"rates, {count} clusters": lambda rng, draws, count=count: grid(rng, draws, count)
        for count in COUNTS
    }
    return found | {
        "rates, other designs": other_rates,
        "rates, beyond the bounds": beyond,
        "gains and ratios, equal sizes": lambda rng, draws: paired(rng, draws, "equal sizes"),
        "gains and ratios, Zipf sizes": lambda rng, draws: paired(rng, draws, "Zipf sizes"),
        "gains and ratios, giant": lambda rng, draws: paired(rng, draws, "one giant cluster"),
    }


# ---------------------------------------------------------------- sizes and chances


def sizes_of(shape: str, count: int, size: int = SIZE) -> NDArray[np.int64]:
    if shape == "equal sizes":
        return np.full(count, size)
    total = min(size * count, MOST_ROWS.get(count, size * count))
    if shape == "Zipf sizes":
        share = 1 / np.arange(1, count + 1)
    else:
        share = np.full(count, 1 / max(count - 1, 1))
        share[0] = 1.0
    return np.maximum(np.round(total * share / share.sum()), 1).astype(np.int64)


def alike(chances: Sequence[float], correlation: float) -> Chances:
    """Dirichlet probabilities per cluster that give its rows this intraclass correlation."""
    mean = np.asarray(chances, dtype=np.float64)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        if correlation == 0:
            return np.broadcast_to(mean, (*shape, len(mean)))
        if correlation == 1:
            return np.eye(len(mean))[rng.choice(len(mean), p=mean, size=shape)]
        own = rng.standard_gamma(mean * (1 - correlation) / correlation, size=(*shape, len(mean)))
        total = own.sum(axis=-1, keepdims=True)
        # Gammas of tiny shape can all underflow to 0; then one cell gets all, as in the limit.
        lost = np.eye(len(mean))[rng.choice(len(mean), p=mean, size=shape)]
        with np.errstate(all="ignore"):
            return np.where(total > 0, own / total, lost)

    return draw


def rare(rate: float, elsewhere: float, within: float) -> Chances:
    """Clusters with one of two flip rates, low or high, such that the mean is `rate`."""
    share = (rate - elsewhere) / (within - elsewhere)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        own = np.where(rng.random(shape) < share, within, elsewhere)
        return np.stack([own, 1 - own], axis=-1)

    return draw


def by_size(rate: float, correlation: float, sizes: NDArray[np.int64], factor: float) -> Chances:
    """The largest clusters, which hold half of the rows, flip `factor` times as often."""
    order = np.argsort(-sizes, kind="stable")
    large = np.zeros(len(sizes), dtype=bool)
    large[order[: int(np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2)) + 1]] = True
    share = sizes[large].sum() / sizes.sum()
    low = rate / (share * factor + 1 - share)
    often, seldom = (alike((r, 1 - r), correlation) for r in (factor * low, low))

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        return np.where(large[:, np.newaxis], often(rng, shape), seldom(rng, shape))

    return draw


# ---------------------------------------------------------------- one design


@dataclass(frozen=True)
class World:
    """Clusters of given sizes, each with its own chances."""

    design: str
    sizes: NDArray[np.int64]
    chances: Chances

    def tables(self, rng: np.random.Generator, draws: int) -> NDArray[np.int64]:
        """Counts of each cell: (draws, clusters, cells)."""
        chances = self.chances(rng, (draws, len(self.sizes)))
        # Rounding may leave a sum slightly above 1.
        return rng.multinomial(self.sizes, np.clip(chances, 0.0, 1.0 - 1e-12))


def measured(
    world: World,
    metric: Metric,
    values: NDArray[np.int64],
    layout: StatisticsLayout,
    truth: float,
    *,
    name: str = "",
    confidence: float = CONFIDENCE,
    printed: str | None = None,
) -> Row:
    """How often flipguard's interval misses the true value on either side."""
    groups = [FlipCounts(layout, one) for one in values]
    whole = FlipCounts(layout, values.sum(axis=1))
    low, high = intervals(metric, whole, confidence)
    alpha = 1 - confidence
    missed = {
        side: p_values_beyond(metric, groups, truth, side) <= alpha for side in ("above", "below")
    }
    few = groups[:WIDTH_DRAWS]
    width = widened(metric, (low[: len(few)], high[: len(few)]), few, confidence)
    defined = ~(np.isnan(low) | np.isnan(high))
    # On each side the interval is the wider of that over clusters and that of independent rows.
    above = float((missed["above"] & (low > truth))[defined].mean())
    below = float((missed["below"] & (high < truth))[defined].mean())
    return {
        "metric": f"{metric.name}, clustered{name}",
        "design": world.design,
        "n": int(world.sizes.sum()),
        "confidence": confidence,
        "draws": len(values),
        "promise": "wrong pass",
        "nominal": alpha / 2,
        "measured": above if metric.name == "accuracy_gain" else below,
        "above": above,
        "below": below,
        "width": median_width(width, np.ones(len(few))),
        "undefined": float(1 - defined.mean()),
        "rivals": {},
        "printed": NOT_SEEN if are_uneven(world.sizes) else printed,
    }


def rate_row(
    rng: np.random.Generator,
    draws: int,
    world: World,
    rate: float,
    *,
    name: str = "",
    confidence: float = CONFIDENCE,
    printed: str | None = None,
) -> Row:
    tables = world.tables(rng, draws)
    values = placed(tables, PLAIN, ("negative_flip", "both_right"))
    metric = METRICS["negative_flip_rate"]
    row = measured(
        world, metric, values, PLAIN, rate, name=name, confidence=confidence, printed=printed
    )
    for rival, interval in rivals_of(tables[:RIVAL_DRAWS, :, 0], world.sizes, confidence).items():
        once = np.ones(len(interval[0]))
        width = median_width(interval, once)
        row["rivals"][rival] = {"measured": shares(interval, rate, once)[1], "width": width}
    return row


def placed(
    tables: NDArray[np.int64], layout: StatisticsLayout, names: Sequence[str]
) -> NDArray[np.int64]:
    values = np.zeros((*tables.shape[:-1], len(layout.names)), dtype=np.int64)
    values[..., [layout.columns[name] for name in names]] = tables
    return values


# ---------------------------------------------------------------- rates


def grid(rng: np.random.Generator, draws: int, count: int) -> Iterator[Row]:
    for shape in SHAPES:
        sizes = sizes_of(shape, count)
        for rate in RATES:
            for correlation in CORRELATIONS:
                design = f"NFR {100 * rate:g} %, ICC {correlation:g}, {shape}, {count:,} clusters"
                world = World(design, sizes, alike((rate, 1 - rate), correlation))
                yield rate_row(rng, draws, world, rate)


def other_rates(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for count in (100, 1000):
        sizes = sizes_of("Zipf sizes", count)
        design = f"NFR 2 %, ICC 0.3, Zipf sizes, {count:,} clusters"
        yield rate_row(rng, draws, World(design, sizes, alike((0.02, 0.98), 0.3)), 0.02)
    for count in (5, 10, 30):
        for size in (100, 200, 400):
            design = f"NFR 3 %, ICC 0.2, {count} equal clusters of {size} rows"
            world = World(design, sizes_of("equal sizes", count, size), alike((0.03, 0.97), 0.2))
            yield rate_row(rng, draws, world, 0.03)
    for count, size in ((50, 2), (50, 20), (200, 5), (200, 20), (2000, 5)):
        for rate in (0.01, 0.10):
            design = f"NFR {100 * rate:g} %, ICC 0.2, {count:,} equal clusters of {size} rows"
            sizes = sizes_of("equal sizes", count, size)
            yield rate_row(rng, draws, World(design, sizes, alike((rate, 1 - rate), 0.2)), rate)
    sizes = sizes_of("equal sizes", 200, 10)
    design = "NFR 2 %, ICC 0.3, 200 equal clusters of 10 rows"
    yield rate_row(rng, draws, World(design, sizes, alike((0.02, 0.98), 0.3)), 0.02)
    for count in (5, 10, 30, 100):
        for shape in ("equal sizes", "Zipf sizes"):
            sizes = sizes_of(shape, count)
            for words, rate, chances in (
                ("clean or half broken clusters", 0.03, rare(0.03, 0.0, 0.5)),
                ("1 % everywhere and rare half broken clusters", 0.02, rare(0.02, 0.01, 0.5)),
                ("one clean cluster in ten", 0.05, rare(0.05, 0.0, 0.05 / 0.9)),
            ):
                design = f"NFR {100 * rate:g} %, {words}, {shape}, {count} clusters"
                yield rate_row(rng, draws, World(design, sizes, chances), rate)
    for confidence in (0.8, 0.9, 0.99):
        for count in (10, 30, 100):
            for shape in ("equal sizes", "Zipf sizes"):
                design = f"NFR 3 %, ICC 0.2, {shape}, {count} clusters"
                world = World(design, sizes_of(shape, count), alike((0.03, 0.97), 0.2))
                yield rate_row(rng, draws, world, 0.03, confidence=confidence)


def beyond(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Designs in which the interval is known not to hold."""
    for shape, count in (
        ("Zipf sizes", 100),
        ("Zipf sizes", 1000),
        ("one giant cluster", 100),
        ("one giant cluster", 1000),
    ):
        sizes = sizes_of(shape, count)
        design = (
            f"NFR 3 %, ICC 0.2, large clusters flip three times as often, {shape}, {count:,} "
            "clusters"
        )
        world = World(design, sizes, by_size(0.03, 0.2, sizes, 3.0))
        yield rate_row(rng, draws, world, 0.03, name=BEYOND)
    for correlation in (0.6, 0.8, 1.0):
        for count in (10, 30, 100):
            for rate in (0.03, 0.20):
                design = f"NFR {100 * rate:g} %, ICC {correlation:g}, equal sizes, {count} clusters"
                sizes = sizes_of("equal sizes", count)
                world = World(design, sizes, alike((rate, 1 - rate), correlation))
                yield rate_row(rng, draws, world, rate, name=BEYOND, printed=TOO_ALIKE)


# ---------------------------------------------------------------- gains, relative rates, ratios

# Negative flips, positive flips, both wrong.
PAIRED_WORLDS = ((0.03, 0.04, 0.07), (0.01, 0.005, 0.20))


def paired(rng: np.random.Generator, draws: int, shape: str) -> Iterator[Row]:
    for count in (3, 5, 10, 30, 100, 300):
        sizes = sizes_of(shape, count)
        for correlation in (0.0, 0.2, 0.5):
            where = f"ICC {correlation:g}, {shape}, {count} clusters"
            for negative, positive, wrong in PAIRED_WORLDS:
                yield from gain_and_relative(
                    rng, draws, where, sizes, correlation, negative, positive, wrong
                )
            for rate, ratio in ((0.03, 1.0), (0.05, 0.6)):
                yield ratio_row(rng, draws, where, sizes, correlation, rate, ratio)


def gain_and_relative(
    rng: np.random.Generator,
    draws: int,
    where: str,
    sizes: NDArray[np.int64],
    correlation: float,
    negative: float,
    positive: float,
    wrong: float,
) -> Iterator[Row]:
    chances = (1 - negative - positive - wrong, negative, positive, wrong)
    design = f"NFR {100 * negative:g} %, PFR {100 * positive:g} %, {where}"
    world = World(design, sizes, alike(chances, correlation))
    values = placed(world.tables(rng, draws), PLAIN, CELLS[:4])
    yield measured(world, METRICS["accuracy_gain"], values, PLAIN, positive - negative)
    truth = negative / ((1 - positive - wrong) * (negative + wrong))
    design = f"NFR {100 * negative:g} %, relative {truth:.3f}, {where}"
    world = World(design, sizes, world.chances)
    yield measured(world, METRICS["relative_negative_flip_rate"], values, PLAIN, truth)


def ratio_row(
    rng: np.random.Generator,
    draws: int,
    where: str,
    sizes: NDArray[np.int64],
    correlation: float,
    rate: float,
    ratio: float,
) -> Row:
    # Of the flips of the model with fewer flips, a third are flips of the other model too.
    both = min(rate, rate * ratio) / 3
    chances = (1 - rate - rate * ratio + both, rate - both, rate * ratio - both, both)
    design = f"control flips {100 * rate:g} %, ratio {ratio:g}, {where}"
    world = World(design, sizes, alike(chances, correlation))
    names = [joint_name("negative_flip", new, old) for new in (0, 1) for old in (0, 1)]
    values = placed(world.tables(rng, draws), LAYOUT, names)
    return measured(world, METRICS["negative_flip_ratio"], values, LAYOUT, ratio)
