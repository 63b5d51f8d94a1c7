"""One rate, exactly: every possible count is weighted by its binomial probability."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import betaincinv
from scipy.stats import binom

from designs.drawing import (
    FAMILIES,
    FAMILY_ERROR,
    Floats,
    Interval,
    coverage_row,
    family_row,
    likely,
    normal,
)
from designs.row import Row
from flipguard import statistics

METRIC = "negative_flip_rate"
RATES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.10, 0.30)
SIZES = (20, 50, 100, 200, 1000, 5000, 50_000)
# At confidences other than 0.95 only the small test sets, which are the hard cases.
OTHER_SIZES = (20, 50, 100, 1000)


def rows(_: np.random.Generator, draws: int) -> Iterator[Row]:
    for confidence in (0.95, 0.8, 0.9, 0.99):
        for rate in RATES:
            for n in SIZES if confidence == 0.95 else OTHER_SIZES:
                hits = likely(n, rate)
                rivals = {
                    "Wilson": wilson_score(hits, n, confidence),
                    "Clopper-Pearson": clopper_pearson(hits, n, confidence),
                    "Jeffreys": jeffreys(hits, n, confidence),
                    "Wald": wald(hits, n, confidence),
                }
                yield coverage_row(
                    METRIC,
                    f"NFR {100 * rate:g} %",
                    n,
                    confidence,
                    draws,
                    statistics.wilson(hits, n, confidence=confidence),
                    rate,
                    binom.pmf(hits, n, rate),
                    rivals,
                    exact=True,
                )
    for groups in FAMILIES:
        confidence = 1 - FAMILY_ERROR / groups
        for rate in (0.001, 0.005, 0.02, 0.30):
            for n in (20, 100, 1000):
                hits = likely(n, rate, 1e-14)
                yield family_row(
                    METRIC,
                    f"NFR {100 * rate:g} %",
                    n,
                    groups,
                    statistics.wilson(hits, n, confidence=confidence),
                    rate,
                    binom.pmf(hits, n, rate),
                    {"Wilson": wilson_score(hits, n, confidence)},
                )


def wilson_score(x: Floats, n: int, confidence: float) -> Interval:
    """Wilson's score interval alone, without the exact limits."""
    z = normal(confidence)
    rate = x / n
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return np.where(x == 0, 0.0, centre - half), np.where(x == n, 1.0, centre + half)


def clopper_pearson(x: Floats, n: Floats | int, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    with np.errstate(all="ignore"):
        low = np.where(x > 0, betaincinv(np.where(x > 0, x, 1.0), n - x + 1, tail), 0.0)
        left = np.where(n > x, n - x, 1.0)
        high = np.where(n > x, betaincinv(x + 1, left, 1 - tail), 1.0)
    return low, high


def jeffreys(x: Floats, n: int, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low = np.where(x == 0, 0.0, betaincinv(x + 0.5, n - x + 0.5, tail))
    return low, np.where(x == n, 1.0, betaincinv(x + 0.5, n - x + 0.5, 1 - tail))


def wald(x: Floats, n: int, confidence: float) -> Interval:
    rate = x / n
    half = normal(confidence) * np.sqrt(rate * (1 - rate) / n)
    return rate - half, rate + half
