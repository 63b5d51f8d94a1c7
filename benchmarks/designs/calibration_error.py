"""The expected calibration error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from designs.drawing import Floats, Interval, coverage_row, covered, normal
from designs.row import Row
from flipguard import statistics

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
