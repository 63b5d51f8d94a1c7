"""The accuracy gain (positive minus negative flips), exact if there are few possible tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binom

from designs.drawing import (
    FAMILIES,
    FAMILY_ERROR,
    Floats,
    Interval,
    coverage_row,
    drawn,
    family_row,
    likely,
    normal,
)
from designs.row import Row
from flipguard import statistics
from flipguard.statistics.rates import tango

METRIC = "accuracy_gain"
# Rates of negative and of positive flips.
WORLDS = (
    (0.0, 0.0),
    (0.005, 0.005),
    (0.01, 0.015),
    (0.02, 0.012),
    (0.05, 0.075),
    (0.10, 0.08),
    (0.30, 0.0),
    (0.0, 0.30),
    (0.30, 0.30),
)
SIZES = (20, 50, 100, 200, 1000, 5000, 50_000)
# Expected numbers of flips: (nearly) all of one kind, and models that hardly differ.
FEW = ((0.0, 1.0), (0.0, 5.0), (5.0, 0.0), (0.3, 5.0), (1.0, 5.0), (5.0, 1.0), (0.5, 0.5), (2, 2))
MOST_TABLES = 40_000


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for confidence in (0.95, 0.8, 0.9, 0.99):
        for negative, positive in WORLDS:
            for n in SIZES if confidence == 0.95 else (20, 50, 100):
                design = f"NFR {100 * negative:g} %, PFR {100 * positive:g} %"
                yield one(rng, design, negative, positive, n, confidence, draws)
        for losses, gains in FEW:
            for n in (100, 1000):
                design = f"{losses:g} negative and {gains:g} positive flips expected"
                yield one(rng, design, losses / n, gains / n, n, confidence, draws)
    yield from families()


def one(
    rng: np.random.Generator,
    design: str,
    negative: float,
    positive: float,
    n: int,
    confidence: float,
    draws: int,
) -> Row:
    losses, gains, weight = tables(n, negative, positive)
    exact = len(weight) <= MOST_TABLES
    if not exact:
        chances = np.array([negative, positive, 1 - negative - positive])
        found, weight = drawn(rng, n, chances, draws)
        losses, gains, _ = found.T
    return coverage_row(
        METRIC,
        design,
        n,
        confidence,
        draws,
        statistics.paired_difference(gains, losses, n, confidence=confidence),
        positive - negative,
        weight,
        {
            "Tango": tango_alone(gains, losses, n, confidence),
            "Bonett-Price": wald(gains + 1, losses + 1, n + 2, confidence),
            "Wald": wald(gains, losses, n, confidence),
        },
        exact=exact,
    )


def families() -> Iterator[Row]:
    for groups in FAMILIES:
        confidence = 1 - FAMILY_ERROR / groups
        for losses, gains in (*FEW, (20.0, 20.0)):
            for n in (100, 1000):
                negative, positive, weight = tables(n, losses / n, gains / n, 1e-12)
                yield family_row(
                    METRIC,
                    f"{losses:g} negative and {gains:g} positive flips expected",
                    n,
                    groups,
                    statistics.paired_difference(positive, negative, n, confidence=confidence),
                    (gains - losses) / n,
                    weight,
                    {"Tango": tango_alone(positive, negative, n, confidence)},
                )


def tables(
    n: int, negative: float, positive: float, omitted: float = 1e-9
) -> tuple[Floats, Floats, Floats]:
    """All likely pairs of numbers of negative and positive flips, with their probabilities."""
    few, many = likely(n, negative, omitted), likely(n, positive, omitted)
    if len(few) * len(many) > MOST_TABLES:
        return few, many, np.ones(len(few) * len(many))
    losses, gains = (x.ravel() for x in np.meshgrid(few, many, indexing="ij"))
    possible = losses + gains <= n
    losses, gains = losses[possible], gains[possible]
    weight = binom.pmf(losses, n, negative) * binom.pmf(
        gains, n - losses, positive / (1 - negative)
    )
    kept = weight > 1e-16
    return losses[kept], gains[kept], weight[kept]


def tango_alone(gains: Floats, losses: Floats, n: int, confidence: float) -> Interval:
    z = np.full(gains.shape, normal(confidence))
    return tango(gains, losses, np.full(gains.shape, float(n)), z)


def wald(gains: Floats, losses: Floats, n: int, confidence: float) -> Interval:
    gain = (gains - losses) / n
    spread = np.sqrt(np.maximum((gains + losses) / n - gain**2, 0.0) / n)
    half = normal(confidence) * spread
    return gain - half, gain + half
