"""Controls: the range of one more retrain, and ratios to controls with different seeds.

Every draw is a harmless update: a further retrain of the controls' recipe, or (for ratios) of a
recipe with a known ratio to it. The rate of each retrain varies from seed to seed by a stated
share.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from designs.retrains import Floats, flip_counts, flip_rates, joint_flips
from designs.row import Rival, Row
from flipguard import statistics
from flipguard.statistics._arrays import critical_value

CONFIDENCE = 0.95
VARIATIONS = (0.0, 0.1, 0.3)
# the flip rate, the number of rows, and how much the retrains agree on which samples flip
WORLDS = (
    (0.005, 200, 0.5),
    (0.005, 1_000, 0.5),
    (0.02, 1_000, 0.5),
    (0.02, 10_000, 0.5),
    (0.1, 1_000, 0.7),
    (0.1, 10_000, 0.0),
    (0.3, 10_000, 0.5),
)
RARE_WORLDS = ((0.0001, 1_000, 0.5), (0.0002, 1_000, 0.5), (0.0005, 1_000, 0.5))
RATIO_WORLDS = ((0.01, 500, 0.5), (0.02, 2_000, 0.5), (0.05, 10_000, 0.7))
Interval = tuple[Floats, Floats]
PRINTED_FOR_FEW = "the range, and how large a change these controls can show"
PRINTED_FOR_MANY = "the range, without a warning; docs/statistics.md says so"
PRINTED_FOR_ONE = "the ratio, and a line that one control does not allow for another seed"


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """All designs."""
    for rate, n, shared in WORLDS:
        for variation in VARIATIONS:
            for k in (2, 3, 5, 10):
                yield from _floor_rows(rng, draws, rate, n, shared, variation, k)
    for rate, n, shared in RATIO_WORLDS:
        for variation in VARIATIONS:
            for truth in (0.5, 1.0):
                for k in (1, 2, 3, 5):
                    yield _ratio_row(rng, draws, rate, n, shared, variation, truth, k)
    for rate, n, shared in RARE_WORLDS:
        for k in (5, 10, 20):
            yield from _floor_rows(rng, draws, rate, n, shared, 0.1, k)


def _floor_rows(
    rng: np.random.Generator,
    draws: int,
    rate: float,
    n: int,
    shared: float,
    variation: float,
    k: int,
) -> Iterator[Row]:
    negative = flip_counts(rng, n, flip_rates(rng, draws, k + 1, rate, variation), shared)
    positive = flip_counts(rng, n, flip_rates(rng, draws, k + 1, rate, variation), shared)
    share = f"{rate:.1%}" if rate >= 0.001 else f"{rate:.2%}"
    world = f"{share} flips, seeds vary by {variation:.0%}, {k} controls, shared {shared}"
    seen, new = negative[:, 1:] / n, negative[:, 0] / n
    of_rate = _row(
        "noise floor of negative_flip_rate, churn",
        world,
        n,
        statistics.retrain_rate(negative[:, 1:], n, confidence=CONFIDENCE),
        new,
        {
            "Student's t alone": statistics.prediction_interval(seen, confidence=CONFIDENCE),
            "t, variance at least p(1-p)/n": _floored(seen, seen * (1 - seen) / n),
        },
    )
    # A t interval is symmetric, and rates that vary by 30 % are not: most misses are above it.
    of_rate["printed"] = PRINTED_FOR_FEW if k < 5 else PRINTED_FOR_MANY
    yield of_rate
    gains = (positive - negative) / n
    spread = (positive + negative)[:, 1:] / n**2
    yield _row(
        "noise floor of accuracy_gain",
        world,
        n,
        statistics.retrain_gain(positive[:, 1:], negative[:, 1:], n, confidence=CONFIDENCE),
        gains[:, 0],
        {
            "Student's t alone": statistics.prediction_interval(
                gains[:, 1:], confidence=CONFIDENCE
            ),
            "t, variance at least that of the flips": _floored(gains[:, 1:], spread),
        },
    )


def _floored(seen: Floats, least: Floats) -> Interval:
    """Student's t, with a variance that is at least that of independent samples."""
    k = seen.shape[-1]
    variance = np.maximum(seen.var(axis=-1, ddof=1), least.mean(axis=-1)) * (1 + 1 / k)
    half = critical_value(confidence=CONFIDENCE, degrees=k - 1) * np.sqrt(variance)
    return seen.mean(axis=-1) - half, seen.mean(axis=-1) + half


def _ratio_row(
    rng: np.random.Generator,
    draws: int,
    rate: float,
    n: int,
    shared: float,
    variation: float,
    truth: float,
    k: int,
) -> Row:
    rates = flip_rates(rng, draws, k + 1, rate, variation)
    rates[:, 0] *= truth
    joint, controls = joint_flips(rng, n, rates, shared)
    row = _row(
        f"ratio of recipes, k={k}",
        f"{rate:.1%} flips, ratio {truth}, seeds vary by {variation:.0%}, shared {shared}",
        n,
        statistics.paired_ratio(joint, controls=controls, confidence=CONFIDENCE),
        np.full(draws, truth),
        {"these models only": statistics.paired_ratio(joint, confidence=CONFIDENCE)},
    )
    if k == 1 and variation > 0:
        row["printed"] = PRINTED_FOR_ONE
    return row


def _row(
    metric: str, design: str, n: int, chosen: Interval, truth: Floats, others: dict[str, Interval]
) -> Row:
    low, high = chosen
    known = ~np.isnan(low)
    above, below = low[known] > truth[known], high[known] < truth[known]
    rivals = {
        name: Rival(
            measured=float(np.mean((a <= truth)[known] & (truth <= b)[known])),
            width=_width(a[known], b[known]),
        )
        for name, (a, b) in others.items()
    }
    return Row(
        metric=metric,
        design=design,
        n=n,
        confidence=CONFIDENCE,
        draws=len(truth),
        promise="coverage",
        nominal=CONFIDENCE,
        measured=float(1 - np.mean(above | below)),
        above=float(np.mean(above)),
        below=float(np.mean(below)),
        width=_width(low[known], high[known]),
        undefined=float(np.mean(~known)),
        rivals=rivals,
        printed=None,
    )


def _width(low: Floats, high: Floats) -> float | None:
    """The median width; None if it is infinite or no interval is defined."""
    if not len(low):
        return None
    width = float(np.median(high - low))
    return width if np.isfinite(width) else None
