"""The expected calibration error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from designs.clusters import World, alike, measured, sizes_of
from designs.drawing import Floats, Interval, coverage_row, covered, median_width, normal, shares
from designs.row import Row
from flipguard import statistics
from flipguard.counts import BINS, FlipCounts, StatisticsLayout, bin_name, unit
from flipguard.estimates import GroupCounts, intervals
from flipguard.metrics import METRICS

METRIC = "expected_calibration_error"
WORLDS = (
    ("sharp", 0.0, "calibrated"),
    ("flat", 0.0, "calibrated"),
    ("sharp", 0.01, "overconfident"),
    ("flat", 0.03, "both ways"),
    ("sharp", 0.05, "overconfident"),
    ("flat", 0.10, "both ways"),
    ("sharp", 0.20, "overconfident"),
)
# Stated confidences, their shares of the rows, and their accuracies.
CLUSTERED_WORLDS = (
    ("calibrated", (0.55, 0.75, 0.9, 0.97), (0.1, 0.2, 0.3, 0.4), (0.55, 0.75, 0.9, 0.97)),
    ("sharp, overconfident", (0.9, 0.99), (0.05, 0.95), (0.9, 0.97)),
    ("overconfident", (0.55, 0.75, 0.9, 0.97), (0.1, 0.2, 0.3, 0.4), (0.4, 0.6, 0.75, 0.82)),
)
LAYOUT = StatisticsLayout(has_target=True, scored=frozenset({"new"}))
UNLIKE_SIGNS = "the interval, without a warning; docs/statistics.md says so"
# The alternative needs a bootstrap per draw.
RIVAL_DRAWS = 200


def parts() -> dict[str, Callable[[np.random.Generator, int], Iterator[Row]]]:
    """Groups of designs that are drawn separately, so that they can run in parallel."""
    found: dict[str, Callable[[np.random.Generator, int], Iterator[Row]]] = {
        f"{count} clusters": lambda rng, draws, count=count: clustered(rng, draws, count)
        for count in (10, 30, 100)
    }
    return {"": rows} | found


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for shape, offset, pattern in WORLDS:
        stated, weight, accuracy = table(shape, offset, pattern)
        truth = float(np.abs((weight * (accuracy - stated)).sum(axis=-1)).sum())
        for n in (50, 200, 1000, 5000, 50_000):
            sums = sampled(rng, n, stated, weight, accuracy, draws)
            for confidence in (0.95,) if n > 200 else (0.95, 0.8, 0.9, 0.99):
                row = coverage_row(
                    METRIC,
                    f"{shape}, {pattern}, error {100 * truth:.2g} %",
                    n,
                    confidence,
                    draws,
                    statistics.calibration_error(*sums, confidence=confidence),
                    truth,
                    np.full(draws, 1 / draws),
                    {"plug-in, normal": plug_in(*sums, confidence)},
                )
                if confidence == 0.95:
                    again = plug_in_bootstrap(rng, *sums, confidence)
                    row["rivals"]["plug-in, bootstrap"] = covered(
                        again, truth, np.ones(len(again[0]))
                    )
                yield row


def table(shape: str, offset: float, pattern: str) -> tuple[Floats, Floats, Floats]:
    """Three stated confidences in each of 15 bins, their weights and true accuracies."""
    stated = (np.arange(45).reshape(15, 3) + 0.5) / 45
    weight = np.where(stated < 0.1, 0.0, stated**8 if shape == "sharp" else 1.0)
    sign = -1.0 if pattern != "both ways" else np.where(np.arange(15) % 2, 1.0, -1.0)[:, np.newaxis]
    return stated, weight / weight.sum(), np.clip(stated + sign * offset, 0.0, 1.0)


def sampled(
    rng: np.random.Generator, n: int, stated: Floats, weight: Floats, accuracy: Floats, draws: int
) -> list[Floats]:
    """Per draw and bin: rows, right ones, sum of confidences, sum of squared gaps."""
    count = rng.multinomial(n, weight.ravel(), size=draws).reshape(-1, *weight.shape)
    right = rng.binomial(count, accuracy)
    squares = right * (1 - stated) ** 2 + (count - right) * stated**2
    return [x.sum(axis=-1).astype(np.float64) for x in (count, right, count * stated, squares)]


def plug_in(
    count: Floats, right: Floats, sums: Floats, squares: Floats, confidence: float
) -> Interval:
    n = count.sum(axis=-1)
    value = np.abs(right - sums).sum(axis=-1) / n
    half = normal(confidence) * np.sqrt(squares.sum(axis=-1)) / n
    return value - half, value + half


def plug_in_bootstrap(
    rng: np.random.Generator,
    count: Floats,
    right: Floats,
    sums: Floats,
    squares: Floats,
    confidence: float,
) -> Interval:
    few = slice(0, 1000)
    n = count.sum(axis=-1)[few, np.newaxis]
    gap, spread = (right - sums)[few] / n, np.sqrt(squares[few]) / n
    again = np.abs(gap + spread * rng.standard_normal((300, *gap.shape))).sum(axis=-1)
    low, high = np.quantile(again, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def clustered(rng: np.random.Generator, draws: int, count: int) -> Iterator[Row]:
    """Rows of one cluster are right or wrong together; all clusters have the same confidences."""
    for correlation in (0.2, 0.5):
        for world in CLUSTERED_WORLDS:
            for shape in ("equal sizes", "Zipf sizes"):
                yield clustered_row(rng, draws, count, shape, correlation, world, 0.95)
    for world in CLUSTERED_WORLDS:
        yield clustered_row(rng, draws, count, "equal sizes", 0.2, world, 0.995)


def clustered_row(
    rng: np.random.Generator,
    draws: int,
    count: int,
    shape: str,
    correlation: float,
    world: tuple[str, tuple[float, ...], tuple[float, ...], tuple[float, ...]],
    confidence: float,
) -> Row:
    words, stated, weight, accuracy = world
    truth = sum(w * abs(a - c) for c, w, a in zip(stated, weight, accuracy, strict=True))
    design = f"{words}, error {100 * truth:.2g} %, ICC {correlation:g}, {shape}, {count:,} clusters"
    sizes, metric = sizes_of(shape, count), METRICS[f"{METRIC}_new"]
    values = in_clusters(rng, draws, sizes, correlation, stated, weight, accuracy)
    # Of the world, only its name and the sizes are used.
    row = measured(
        World(design, sizes, alike((1.0,), 0.0)),
        metric,
        values,
        LAYOUT,
        truth,
        confidence=confidence,
        printed=UNLIKE_SIGNS,
    )
    ends = [by_design_effect(one, confidence) for one in values[:RIVAL_DRAWS]]
    low, high = (np.array([pair[i] for pair in ends]) for i in (0, 1))
    once = np.ones(len(low))
    row["rivals"]["design effect, effective degrees"] = {
        "measured": shares((low, high), truth, once)[1],
        "width": median_width((low, high), once),
    }
    return row


def in_clusters(
    rng: np.random.Generator,
    draws: int,
    sizes: NDArray[np.int64],
    correlation: float,
    stated: tuple[float, ...],
    weight: tuple[float, ...],
    accuracy: tuple[float, ...],
) -> NDArray[np.float64]:
    """Counts of every cluster of every draw: (draws, clusters, statistics)."""
    values = np.zeros((draws, len(sizes), len(LAYOUT.names)))
    # A cluster is as good at all confidences as its rank among clusters says.
    rank = rng.random((draws, len(sizes)))
    count = rng.multinomial(sizes, weight, size=(draws, len(sizes)))
    scale = (1 - correlation) / correlation
    for i, (c, a) in enumerate(zip(stated, accuracy, strict=True)):
        chance = betaincinv(a * scale, (1 - a) * scale, rank)
        rows_here = count[..., i]
        right = rng.binomial(rows_here, np.clip(np.nan_to_num(chance, nan=1.0), 0.0, 1.0))
        index = min(int(np.ceil(c * BINS)) - 1, BINS - 1)
        for part, total in (
            ("n", rows_here),
            ("right", right),
            ("confidence", rows_here * c),
            ("gap_squared", right * (1 - c) ** 2 + (rows_here - right) * c**2),
        ):
            name = bin_name("new", index, part)
            values[..., LAYOUT.columns[name]] += np.rint(total / unit(name))
        values[..., LAYOUT.columns["both_right"]] += right
        values[..., LAYOUT.columns["negative_flip"]] += rows_here - right
    return values


def by_design_effect(clusters: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """Independent rows, widened by a bootstrap's design effect and Student's t."""
    table, metric = FlipCounts(LAYOUT, clusters), METRICS[f"{METRIC}_new"]
    effect, degrees = GroupCounts(counts=table.total(), clusters=table, replicates=200).design(
        metric
    )
    low, high = intervals(metric, table.total(), confidence, effect=effect, degrees=degrees)
    return float(low), float(high)
