"""The relative negative flip rate of independent rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binom

from designs.drawing import (
    FAMILIES,
    FAMILY_ERROR,
    Floats,
    Interval,
    bootstrap,
    cells,
    coverage_row,
    drawn,
    family_row,
    likely,
    normal,
)
from designs.row import Row
from flipguard import statistics

METRIC = "relative_negative_flip_rate"
# Old's error rate, new's error rate, relative NFR.
WORLDS = (
    (0.05, 0.055, 0.10),
    (0.05, 0.045, 0.30),
    (0.05, 0.055, 0.50),
    (0.05, 0.040, 0.80),
    (0.10, 0.090, 0.10),
    (0.10, 0.090, 0.50),
    (0.20, 0.180, 0.10),
    (0.20, 0.180, 0.30),
    (0.20, 0.120, 0.80),
    (0.40, 0.360, 0.10),
    (0.40, 0.360, 0.30),
    # Without negative flips; independent errors; hardly any difference; NFR of 30 %.
    (0.20, 0.150, 0.0),
    (0.50, 0.500, 1.0),
    (0.02, 0.020, 0.02),
    (0.40, 0.600, 0.8333),
)
# The hard cases: old was seldom wrong.
FAMILY_WORLDS = (
    ((0.10, 0.08, 0.05), (30, 50, 100)),
    ((0.05, 0.025, 0.05), (50, 100)),
    ((0.05, 0.055, 0.50), (50, 100)),
    ((0.02, 0.016, 0.10), (100, 200)),
    ((0.50, 0.30, 0.50), (30, 50)),
)
SIZES = (200, 1000, 5000, 50_000)
SMALL = (20, 50, 100)


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for world in WORLDS:
        for n in (*SMALL, *SIZES):
            yield one(rng, world, n, 0.95, draws, resampled=n in (50, 1000))
    for confidence in (0.8, 0.9, 0.99):
        for world in WORLDS[::2]:
            for n in (50, 200):
                yield one(rng, world, n, confidence, draws)
    yield from families()


def told(world: tuple[float, float, float]) -> str:
    error_old, error_new, truth = world
    return f"error rates {100 * error_old:g} and {100 * error_new:g} %, relative NFR {truth:.3g}"


def one(
    rng: np.random.Generator,
    world: tuple[float, float, float],
    n: int,
    confidence: float,
    draws: int,
    *,
    resampled: bool = False,
) -> Row:
    error_old, error_new, truth = world
    found, weight = drawn(
        rng, n, cells(error_old=error_old, error_new=error_new, relative=truth), draws
    )
    row = coverage_row(
        METRIC,
        told(world),
        n,
        confidence,
        draws,
        chosen(found, n, confidence),
        truth,
        weight,
        {
            "log delta": log_delta(found, confidence),
            "log delta + 1/2": log_delta(found + 0.5, confidence),
        },
    )
    if resampled:
        row["rivals"] |= dict(
            bootstrap(rng, found, weight, value, influence, truth, confidence, most=1000)
        )
    return row


def chosen(table: Floats, n: int, confidence: float) -> Interval:
    right, negative, _, wrong = table.T
    return statistics.relative_negative_flip_rate(
        negative, right + negative, negative + wrong, n, confidence=confidence
    )


def families() -> Iterator[Row]:
    for world, sizes in FAMILY_WORLDS:
        for n in sizes:
            found, weight = tables(world, n)
            for groups in FAMILIES:
                confidence = 1 - FAMILY_ERROR / groups
                yield family_row(
                    METRIC,
                    told(world),
                    n,
                    groups,
                    chosen(found, n, confidence),
                    world[2],
                    weight,
                    {"log delta + 1/2": log_delta(found + 0.5, confidence)},
                )


def tables(world: tuple[float, float, float], n: int) -> tuple[Floats, Floats]:
    """All likely tables: how often old was right, and new's errors there and on the rest."""
    error_old, error_new, relative = world
    right, negative, positive, wrong = cells(
        error_old=error_old, error_new=error_new, relative=relative
    )
    lost, kept_wrong = negative / (right + negative), wrong / (positive + wrong)
    parts = []
    for old_right in likely(n, 1 - error_old, 1e-8):
        broken, left = np.meshgrid(
            likely(int(old_right), lost, 1e-8),
            likely(int(n - old_right), kept_wrong, 1e-8),
            indexing="ij",
        )
        chance = (
            binom.pmf(old_right, n, 1 - error_old)
            * binom.pmf(broken, old_right, lost)
            * binom.pmf(left, n - old_right, kept_wrong)
        )
        table = np.stack([old_right - broken, broken, n - old_right - left, left], axis=-1)
        parts.append((table.reshape(-1, 4), chance.ravel()))
    found, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    # The omitted tables have less than 1e-4 of the error allowed for one of 1,000 groups.
    kept = weight > 1e-12
    return found[kept], weight[kept]


def value(table: Floats) -> Floats:
    right, negative, _, wrong = np.moveaxis(table, -1, 0)
    with np.errstate(all="ignore"):
        return negative * table.sum(axis=-1) / ((right + negative) * (negative + wrong))


def influence(table: Floats) -> Floats:
    """Derivative of R with respect to the probability of each cell, up to a constant."""
    right, negative, _, wrong = np.moveaxis(table, -1, 0)
    n = table.sum(axis=-1)
    old_right, new_wrong = right + negative, negative + wrong
    with np.errstate(all="ignore"):
        ratio = value(table)
        by_right, by_wrong = -n / old_right, -n / new_wrong
        parts = [by_right, n / negative + by_right + by_wrong, 0 * n, by_wrong]
        return np.stack([ratio * part for part in parts], axis=-1)


def log_delta(table: Floats, confidence: float) -> Interval:
    right, negative, _, wrong = table.T
    n = table.sum(axis=-1)
    ratio = value(table)
    with np.errstate(all="ignore"):
        variance = 1 / negative - 1 / (right + negative) - 1 / (negative + wrong)
        half = normal(confidence) * np.sqrt(np.maximum(variance + (2 * ratio - 1) / n, 0.0))
        low, high = ratio * np.exp(-half), ratio * np.exp(half)
    # Without flips the method has no interval: [0, 0] is what it leaves to report.
    return np.where(negative == 0, 0.0, low), np.where(negative == 0, 0.0, high)
