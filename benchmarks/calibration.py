"""Do the intervals cover what they say? Simulated coverage of every interval, and of its rivals.

    .venv/bin/python benchmarks/calibration.py [--quick] [--out benchmarks/results/calibration.json]

Each setting is a table of cell probabilities. It is drawn thousands of times; `coverage` is the
share of draws whose 95 % interval contains the value that the probabilities imply. The rivals were
measured and not chosen; they live here and not in the library.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, ndtri

from flipguard import statistics
from gate_errors import gate_rows, print_gate_table

Floats = NDArray[np.float64]
Interval = tuple[Floats, Floats]
Row = dict[str, Any]

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
Z = float(ndtri(1 - ALPHA / 2))
SAMPLE_SIZES = (200, 1000, 5000, 50_000)
CELLS = ("both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different")


# ---------------------------------------------------------------- drawing


def cells(*, error_old: float, error_new: float, relative: float) -> Floats:
    """Cell probabilities of two models with these error rates and relative negative flip rate."""
    negative = relative * (1 - error_old) * error_new
    both_wrong = error_new - negative
    positive = error_old - both_wrong
    # A third of the samples that both get wrong are labelled differently.
    table = np.array(
        [1 - error_old - negative, negative, positive, both_wrong * 2 / 3, both_wrong / 3]
    )
    assert table.min() > 0
    return table


def draw(
    rng: np.random.Generator, n: int, chances: Floats, replications: int
) -> tuple[Floats, Floats]:
    """Distinct tables and how often each came up."""
    tables, often = np.unique(
        rng.multinomial(n, chances, size=replications), axis=0, return_counts=True
    )
    return tables.astype(np.float64), often.astype(np.float64)


def coverage(interval: Interval, truth: float, often: Floats) -> float:
    """Share of the draws that are defined whose interval contains the truth."""
    low, high = interval
    defined = ~(np.isnan(low) | np.isnan(high))
    with np.errstate(invalid="ignore"):
        inside = (low <= truth + 1e-12) & (truth - 1e-12 <= high)
    return float((often * (inside & defined)).sum() / (often * defined).sum())


def row(
    quantity: str,
    setting: str,
    n: int,
    expected: float,
    method: str,
    cover: float,
    rivals: dict[str, float],
) -> Row:
    return {
        "quantity": quantity,
        "setting": setting,
        "n": n,
        "expected_count": round(expected, 1),
        "method": method,
        "coverage": round(cover, 4),
        "rejected": {name: round(value, 4) for name, value in rivals.items()},
    }


# ---------------------------------------------------------------- one rate


def rate_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for rate in (0.005, 0.01, 0.02, 0.05, 0.10):
        chances = cells(error_old=0.2, error_new=0.18, relative=rate / (0.8 * 0.18))
        for n in SAMPLE_SIZES:
            tables, often = draw(rng, n, chances, replications)
            flips = tables[:, 1]
            chosen = statistics.wilson(flips, n, confidence=CONFIDENCE)
            rivals = {
                "plain Wilson": plain_wilson(flips, n),
                "Wald": wald_rate(flips, n),
                "Jeffreys": jeffreys(flips, n),
                "Clopper-Pearson": clopper_pearson(flips, n),
            }
            yield row(
                "negative_flip_rate",
                f"NFR {rate:.1%}",
                n,
                n * rate,
                "Wilson, small-count limits",
                coverage(chosen, rate, often),
                {name: coverage(interval, rate, often) for name, interval in rivals.items()},
            )


def plain_wilson(x: Floats, n: int) -> Interval:
    rate = x / n
    centre = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * np.sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return np.where(x == 0, 0.0, centre - half), centre + half


def wald_rate(x: Floats, n: int) -> Interval:
    rate = x / n
    half = Z * np.sqrt(rate * (1 - rate) / n)
    return rate - half, rate + half


def jeffreys(x: Floats, n: int) -> Interval:
    low = np.where(x == 0, 0.0, betaincinv(x + 0.5, n - x + 0.5, ALPHA / 2))
    return low, betaincinv(x + 0.5, n - x + 0.5, 1 - ALPHA / 2)


def clopper_pearson(x: Floats, n: int) -> Interval:
    low = np.where(x == 0, 0.0, betaincinv(np.maximum(x, 1), n - x + 1, ALPHA / 2))
    return low, betaincinv(x + 1, n - x, 1 - ALPHA / 2)


# ---------------------------------------------------------------- paired gain


def gain_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for rate, change in ((0.005, 0.0), (0.01, 0.5), (0.02, -0.4), (0.05, 0.5), (0.10, -0.2)):
        positive = rate * (1 + change)
        chances = np.array([0.8 - rate, rate, positive, 0.12, 0.08 - positive + 0.0])
        chances[-1] = 1 - chances[:-1].sum()
        for n in SAMPLE_SIZES:
            tables, often = draw(rng, n, chances, replications)
            losses, gains = tables[:, 1], tables[:, 2]
            truth = positive - rate
            chosen = statistics.paired_difference(gains, losses, n, confidence=CONFIDENCE)
            rivals = {
                "Wald": wald_gain(gains, losses, n),
                "Bonett-Price": wald_gain(gains + 1, losses + 1, n + 2),
            }
            yield row(
                "accuracy_gain",
                f"NFR {rate:.1%}, PFR {positive:.1%}",
                n,
                n * min(rate, positive),
                "Tango score",
                coverage(chosen, truth, often),
                {name: coverage(interval, truth, often) for name, interval in rivals.items()},
            )


def wald_gain(gains: Floats, losses: Floats, n: int) -> Interval:
    gain = (gains - losses) / n
    half = Z * np.sqrt(np.maximum((gains + losses) / n - gain**2, 0.0) / n)
    return gain - half, gain + half


# ---------------------------------------------------------------- relative negative flip rate

RELATIVE_SETTINGS = (
    # old's error rate, new's error rate, relative NFR
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
)


def relative_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for error_old, error_new, truth in RELATIVE_SETTINGS:
        chances = cells(error_old=error_old, error_new=error_new, relative=truth)
        for n in SAMPLE_SIZES:
            tables, often = draw(rng, n, merge_wrong(chances), replications)
            right, negative, _, wrong = tables.T
            chosen = statistics.relative_negative_flip_rate(
                negative, right + negative, negative + wrong, n, confidence=CONFIDENCE
            )
            rivals = {
                "log delta": log_delta_relative(tables),
                "log delta + 1/2": log_delta_relative(tables + 0.5),
            }
            covers = {name: coverage(interval, truth, often) for name, interval in rivals.items()}
            covers |= bootstrap_coverage(
                rng, tables, often, relative_value, relative_influence, truth
            )
            yield row(
                "relative_negative_flip_rate",
                f"ER_old {error_old:.0%}, ER_new {error_new:.1%}, R {truth:.0%}",
                n,
                n * chances[1],
                "Koopman + Wilson by MOVER",
                coverage(chosen, truth, often),
                covers,
            )


def merge_wrong(table: Floats) -> Floats:
    """Both kinds of samples that both models get wrong, as one cell."""
    return np.concatenate([table[..., :3], table[..., 3:].sum(axis=-1, keepdims=True)], axis=-1)


def relative_value(table: Floats) -> Floats:
    right, negative, _, wrong = np.moveaxis(table, -1, 0)
    with np.errstate(all="ignore"):
        return negative * table.sum(axis=-1) / ((right + negative) * (negative + wrong))


def relative_influence(table: Floats) -> Floats:
    """Derivative of R by the chance of each cell, up to a constant."""
    right, negative, _, wrong = np.moveaxis(table, -1, 0)
    n = table.sum(axis=-1)
    old_right, new_wrong = right + negative, negative + wrong
    with np.errstate(all="ignore"):
        value = relative_value(table)
        by_right, by_wrong = -n / old_right, -n / new_wrong
        return np.stack(
            [
                value * by_right,
                value * (n / negative + by_right + by_wrong),
                0 * n,
                value * by_wrong,
            ],
            axis=-1,
        )


def log_delta_relative(table: Floats) -> Interval:
    right, negative, _, wrong = table.T
    n = table.sum(axis=-1)
    value = relative_value(table)
    with np.errstate(all="ignore"):
        variance = 1 / negative - 1 / (right + negative) - 1 / (negative + wrong)
        half = Z * np.sqrt(np.maximum(variance + (2 * value - 1) / n, 0.0))
        low, high = value * np.exp(-half), value * np.exp(half)
    # Without flips the method has no interval: [0, 0] is what it leaves to report.
    return np.where(negative == 0, 0.0, low), np.where(negative == 0, 0.0, high)


def bootstrap_coverage(
    rng: np.random.Generator,
    tables: Floats,
    often: Floats,
    value: Callable[[Floats], Floats],
    influence: Callable[[Floats], Floats],
    truth: float,
    *,
    draws: int = 300,
    most: int = 2000,
) -> dict[str, float]:
    """Multinomial bootstrap, percentile and BCa, on at most `most` of the tables."""
    picked = rng.choice(len(tables), size=most, p=often / often.sum())
    table = tables[picked]
    n = table[0].sum()
    again = rng.multinomial(int(n), table / n, size=(draws, len(table))).astype(np.float64)
    estimate = value(table)
    values = np.sort(np.nan_to_num(value(again), nan=0.0), axis=0)
    one = np.ones(len(table))
    low, high = np.quantile(values, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    result = {"bootstrap percentile": coverage((low, high), truth, one)}
    with np.errstate(all="ignore"):
        u = np.nan_to_num(influence(table), posinf=0.0, neginf=0.0)
        u = u - (table * u).sum(axis=-1, keepdims=True) / n
        skew = (table * u**3).sum(axis=-1) / (6 * (table * u**2).sum(axis=-1) ** 1.5)
        below = ((values < estimate).sum(axis=0) + 0.5 * (values == estimate).sum(axis=0)) / draws
        shift = ndtri(np.clip(below, 0.5 / draws, 1 - 0.5 / draws))

        def end(z: float) -> Floats:
            level = ndtr(shift + (shift + z) / (1 - np.nan_to_num(skew) * (shift + z)))
            at = np.clip(
                (np.nan_to_num(level, nan=0.5) * (draws - 1)).round().astype(int), 0, draws - 1
            )
            return np.take_along_axis(values, at[np.newaxis], axis=0)[0]

        result["bootstrap BCa"] = coverage((end(-Z), end(Z)), truth, one)
    return result


# ---------------------------------------------------------------- ratio to the controls

RATIO_SETTINGS = (
    # the controls' flag rate, the ratio, the correlation of two models' flags
    (0.005, 1.0, 0.0),
    (0.005, 0.6, 0.3),
    (0.02, 0.3, 0.0),
    (0.02, 0.6, 0.7),
    (0.02, 1.5, 0.3),
    (0.05, 0.3, 0.3),
    (0.05, 0.6, 0.7),
    (0.05, 1.0, 0.0),
    (0.15, 0.6, 0.3),
    (0.15, 1.0, 0.7),
    (0.15, 1.5, 0.7),
)


def ratio_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for controls in (1, 3):
        for rate, truth, correlation in RATIO_SETTINGS:
            chances = joint_chances(
                rate=rate, ratio=truth, correlation=correlation, controls=controls
            )
            for n in SAMPLE_SIZES:
                tables, often = draw(rng, n, chances.ravel(), replications)
                joint = tables.reshape(-1, 2, controls + 1)
                seen = joint[:, :, 1:].sum(axis=(1, 2)) > 0
                joint, often = joint[seen], often[seen]
                chosen = statistics.paired_ratio(joint, confidence=CONFIDENCE)
                rivals = {
                    "log delta": log_delta_ratio(joint),
                    "MOVER-Wilson": mover_wilson(joint),
                }
                if controls == 1:
                    rivals["Bonett-Price"] = bonett_price(joint)
                covers = {
                    name: coverage(interval, truth, often) for name, interval in rivals.items()
                }
                covers |= ratio_bootstrap(rng, joint, often, truth)
                yield row(
                    f"churn_ratio, negative_flip_ratio, k={controls}",
                    f"rate {rate:.1%}, ratio {truth}, correlation {correlation}",
                    n,
                    n * rate * min(truth, 1.0),
                    "constrained-likelihood score",
                    coverage(chosen, truth, often),
                    covers,
                )


def joint_chances(*, rate: float, ratio: float, correlation: float, controls: int) -> Floats:
    """Flags that share one normal cause, strong enough for the wanted correlation of two flags."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    weights = weights / weights.sum()
    new_rate = rate * ratio

    def flagged(chance: float, strength: float) -> Floats:
        return np.asarray(
            ndtr((ndtri(chance) - math.sqrt(strength) * nodes) / math.sqrt(1 - strength))
        )

    def correlated(strength: float) -> float:
        both = float((weights * flagged(new_rate, strength) * flagged(rate, strength)).sum())
        scale = math.sqrt(new_rate * (1 - new_rate) * rate * (1 - rate))
        return (both - new_rate * rate) / scale

    low, high = 0.0, 0.995
    assert correlated(high) >= correlation
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if correlated(middle) < correlation else (low, middle)
    new, control = flagged(new_rate, low), flagged(rate, low)
    chances = np.empty((2, controls + 1))
    for j in range(controls + 1):
        these = math.comb(controls, j) * control**j * (1 - control) ** (controls - j)
        chances[:, j] = (weights * (1 - new) * these).sum(), (weights * new * these).sum()
    return chances / chances.sum()


def ratio_value(joint: Floats) -> Floats:
    share = np.linspace(0, 1, joint.shape[-1])
    with np.errstate(all="ignore"):
        return joint[..., 1, :].sum(axis=-1) / (joint.sum(axis=-2) * share).sum(axis=-1)


def log_delta_ratio(joint: Floats) -> Interval:
    half = Z * np.sqrt(statistics.log_paired_ratio_variance(joint))
    value = ratio_value(joint)
    low, high = value * np.exp(-half), value * np.exp(half)
    return np.where(value == 0, 0.0, low), np.where(value == 0, 0.0, high)


def mover_wilson(joint: Floats) -> Interval:
    """Donner and Zou's: Wilson for both means, joined with their correlation."""
    n = joint.sum(axis=(-2, -1))
    share = np.linspace(0, 1, joint.shape[-1])
    either = joint.sum(axis=-2)
    new = joint[..., 1, :].sum(axis=-1) / n
    control = (either * share).sum(axis=-1) / n
    variance = (either * share**2).sum(axis=-1) / n - control**2
    covariance = (joint[..., 1, :] * share).sum(axis=-1) / n - new * control
    with np.errstate(all="ignore"):
        together = np.nan_to_num(covariance / np.sqrt(new * (1 - new) * variance))
        low_new, high_new = statistics.wilson(new * n, n, confidence=CONFIDENCE)
        low_control, high_control = statistics.wilson(
            control * n,
            n,
            confidence=CONFIDENCE,
            design_effect=variance / (control * (1 - control)),
        )

        def end(reach: Floats, other: Floats, sign: float) -> Floats:
            a, b = control**2 - other**2, new * control - together * reach * other
            c = new**2 - reach**2
            root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
            return (b + root) / a if sign > 0 else np.maximum(c / (b + root), 0.0)

        low = end(new - low_new, high_control - control, -1)
        high = end(high_new - new, control - low_control, 1)
    return np.where(new == 0, 0.0, low), high


def bonett_price(joint: Floats) -> Interval:
    """The hybrid Wilson interval for one control (Bonett and Price, 2006)."""
    both, new_only, control_only = joint[..., 1, 1], joint[..., 1, 0], joint[..., 0, 1]
    n = both + new_only + control_only
    first, second = both + new_only + 1, both + control_only + 1
    with np.errstate(all="ignore"):
        joined = np.sqrt((new_only + control_only + 2) / (first * second))
        apart = np.sqrt((1 - first / (n + 2)) / first) + np.sqrt((1 - second / (n + 2)) / second)
        z = Z * joined / apart

        def wilson(x: Floats) -> Interval:
            centre = (2 * x + z**2) / (2 * (n + z**2))
            half = z * np.sqrt(z**2 + 4 * x * (1 - x / n)) / (2 * (n + z**2))
            return centre - half, centre + half

        low_new, high_new = wilson(both + new_only)
        low_control, high_control = wilson(both + control_only)
        return low_new / high_control, high_new / low_control


def ratio_bootstrap(
    rng: np.random.Generator, joint: Floats, often: Floats, truth: float
) -> dict[str, float]:
    shape = joint.shape[1:]

    def value(flat: Floats) -> Floats:
        return ratio_value(flat.reshape(*flat.shape[:-1], *shape))

    def influence(flat: Floats) -> Floats:
        new = np.repeat([0.0, 1.0], shape[1])
        share = np.tile(np.linspace(0, 1, shape[1]), 2)
        return new - value(flat)[..., np.newaxis] * share

    flat = joint.reshape(len(joint), -1)
    result = bootstrap_coverage(rng, flat, often, value, influence, truth, draws=200)
    return {"bootstrap percentile": result["bootstrap percentile"]}


# ---------------------------------------------------------------- calibration error


def calibration_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for shape, offset, pattern in (
        ("sharp", 0.0, "calibrated"),
        ("flat", 0.0, "calibrated"),
        ("sharp", 0.01, "overconfident"),
        ("flat", 0.03, "both ways"),
        ("sharp", 0.05, "overconfident"),
        ("flat", 0.10, "both ways"),
        ("sharp", 0.20, "overconfident"),
    ):
        stated, weight, accuracy = calibration_table(shape, offset, pattern)
        gap = (weight * (accuracy - stated)).sum(axis=-1)
        truth = float(np.abs(gap).sum())
        for n in SAMPLE_SIZES:
            count = rng.multinomial(n, weight.ravel(), size=replications).reshape(-1, *weight.shape)
            right = rng.binomial(count, accuracy)
            squares = right * (1 - stated) ** 2 + (count - right) * stated**2
            sums = [
                x.sum(axis=-1).astype(np.float64) for x in (count, right, count * stated, squares)
            ]
            chosen = statistics.calibration_error(*sums, confidence=CONFIDENCE)
            rivals = {
                "plug-in, normal": plug_in_normal(*sums),
                "plug-in, bootstrap percentile": plug_in_bootstrap(rng, *sums),
            }
            once = np.ones(replications)
            yield row(
                "expected_calibration_error",
                f"{shape}, {pattern}, ECE {truth:.1%}",
                n,
                n * truth,
                "bias-bounded, conservative",
                coverage(chosen, truth, once),
                {name: coverage(i, truth, np.ones(len(i[0]))) for name, i in rivals.items()},
            )


def calibration_table(shape: str, offset: float, pattern: str) -> tuple[Floats, Floats, Floats]:
    """Three stated confidences in each of 15 bins, their weights and true accuracies."""
    stated = (np.arange(45).reshape(15, 3) + 0.5) / 45
    weight = np.where(stated < 0.1, 0.0, stated**8 if shape == "sharp" else 1.0)
    sign = -1.0 if pattern != "both ways" else np.where(np.arange(15) % 2, 1.0, -1.0)[:, np.newaxis]
    return stated, weight / weight.sum(), np.clip(stated + sign * offset, 0.0, 1.0)


def plug_in_normal(count: Floats, right: Floats, sums: Floats, squares: Floats) -> Interval:
    n = count.sum(axis=-1)
    value = np.abs(right - sums).sum(axis=-1) / n
    half = Z * np.sqrt(squares.sum(axis=-1)) / n
    return value - half, value + half


def plug_in_bootstrap(
    rng: np.random.Generator, count: Floats, right: Floats, sums: Floats, squares: Floats
) -> Interval:
    few = slice(0, 1000)
    n = count.sum(axis=-1)[few, np.newaxis]
    gap, spread = (right - sums)[few] / n, np.sqrt(squares[few]) / n
    again = gap + spread * rng.standard_normal((300, *gap.shape))
    low, high = np.quantile(np.abs(again).sum(axis=-1), [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    return low, high


# ---------------------------------------------------------------- rows in clusters

CLUSTER_SETTINGS = (
    # clusters, rows in each, intraclass correlation
    (50, 2, 0.2),
    (50, 20, 0.05),
    (50, 20, 0.5),
    (200, 5, 0.2),
    (200, 20, 0.2),
    (2000, 5, 0.05),
    (2000, 5, 0.5),
)
BOOTSTRAP_DRAWS = 200


def clustered_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for clusters, size, correlation in CLUSTER_SETTINGS:
        for error_old, error_new, relative in ((0.10, 0.09, 0.13), (0.30, 0.28, 0.50)):
            chances = merge_wrong(
                cells(error_old=error_old, error_new=error_new, relative=relative)
            )
            samples = list(draw_clusters(rng, clusters, size, correlation, chances, replications))
            setting = f"G {clusters}, m {size}, ICC {correlation}, NFR {chances[1]:.1%}"
            metrics = flip_metrics(samples, chances, relative, clusters * size)
            yield from clustered_metrics(
                metrics, samples, setting, size, clusters * size, float(chances[1])
            )


# The true value; the metric on sums of rows, as a logarithm where it is a ratio; its variance if
# rows were independent; and its interval.
Metric = tuple[float, Callable[[Floats], Floats], Floats, Callable[..., Interval]]


def flip_metrics(
    samples: list[Floats], chances: Floats, relative: float, n: int
) -> dict[str, Metric]:
    right, negative, positive, wrong = np.array([sample.sum(axis=0) for sample in samples]).T
    ratio = (negative, right + negative, negative + wrong, n)
    return {
        "negative_flip_rate": (
            float(chances[1]),
            lambda t: t[:, 1] / n,
            statistics.proportion_variance(negative, n),
            lambda **k: statistics.wilson(negative, n, confidence=CONFIDENCE, **k),
        ),
        "accuracy_gain": (
            float(chances[2] - chances[1]),
            lambda t: (t[:, 2] - t[:, 1]) / n,
            statistics.paired_difference_variance(positive, negative, n),
            lambda **k: statistics.paired_difference(
                positive, negative, n, confidence=CONFIDENCE, **k
            ),
        ),
        "relative_negative_flip_rate": (
            relative,
            lambda t: log(relative_value(t)),
            statistics.log_relative_negative_flip_rate_variance(*ratio),
            lambda **k: statistics.relative_negative_flip_rate(*ratio, confidence=CONFIDENCE, **k),
        ),
    }


def ratio_metrics(samples: list[Floats], truth: float) -> dict[str, Metric]:
    joint = np.array([sample.sum(axis=0) for sample in samples]).reshape(-1, 2, 2)
    return {
        "negative_flip_ratio, k=1": (
            truth,
            lambda t: log(ratio_value(t.reshape(-1, 2, 2))),
            statistics.log_paired_ratio_variance(joint),
            lambda **k: statistics.paired_ratio(joint, confidence=CONFIDENCE, **k),
        )
    }


def clustered_ratio_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    for clusters, size, correlation in ((50, 20, 0.2), (200, 5, 0.5), (2000, 5, 0.2)):
        for rate, truth in ((0.03, 0.6), (0.10, 1.0)):
            chances = joint_chances(rate=rate, ratio=truth, correlation=0.4, controls=1)
            samples = list(
                draw_clusters(rng, clusters, size, correlation, chances.ravel(), replications)
            )
            n = clusters * size
            setting = f"G {clusters}, m {size}, ICC {correlation}, rate {rate:.0%}, ratio {truth}"
            metrics = ratio_metrics(samples, truth)
            yield from clustered_metrics(metrics, samples, setting, size, n, rate * truth)


def clustered_metrics(
    metrics: dict[str, Metric],
    samples: list[Floats],
    setting: str,
    size: int,
    n: int,
    rate: float,
) -> Iterator[Row]:
    clusters = len(samples[0])
    effects: dict[str, list[Floats]] = {name: [] for name in metrics}
    freedoms: dict[str, list[Floats]] = {name: [] for name in metrics}
    percentiles: dict[str, list[Floats]] = {name: [] for name in metrics}
    for index, sample in enumerate(samples):
        again = statistics.cluster_replicates(sample, replicates=BOOTSTRAP_DRAWS, seed=index)
        without, weights = statistics.leave_one_out(sample)
        for name, (_, value, variance, _) in metrics.items():
            values = value(again)
            effects[name].append(
                statistics.design_effect(values, variance[index], clusters, largest=size)
            )
            freedoms[name].append(statistics.effective_degrees(value(without), weights))
            percentiles[name].append(
                np.quantile(np.nan_to_num(values, neginf=-99), [ALPHA / 2, 1 - ALPHA / 2])
            )
    once = np.ones(len(samples))
    for name, (truth, _, _, interval) in metrics.items():
        effect, freedom = np.array(effects[name]), np.array(freedoms[name])
        ends = np.array(percentiles[name])
        logged = "relative" in name or "ratio" in name
        yield row(
            f"clustered {name}",
            setting,
            n,
            n * rate,
            "bootstrap design effect, effective degrees",
            coverage(interval(design_effect=effect, degrees=freedom), truth, once),
            {
                "rows as if independent": coverage(interval(), truth, once),
                "G - 1 degrees": coverage(
                    interval(design_effect=effect, degrees=clusters - 1), truth, once
                ),
                "cluster bootstrap percentile": coverage(
                    (ends[:, 0], ends[:, 1]), math.log(truth) if logged else truth, once
                ),
            },
        )


def draw_clusters(
    rng: np.random.Generator,
    clusters: int,
    size: int,
    correlation: float,
    chances: Floats,
    replications: int,
) -> Iterator[Floats]:
    """Clusters with cell probabilities of their own: Dirichlet, for the wanted correlation."""
    for _ in range(replications):
        own = rng.standard_gamma(
            chances * (1 - correlation) / correlation, size=(clusters, len(chances))
        )
        total = own.sum(axis=1, keepdims=True)
        # Gammas of tiny shape can all underflow to 0; then one cell takes it all, as in the limit.
        lost = np.flatnonzero(total[:, 0] <= 0)
        own[lost] = np.eye(len(chances))[rng.choice(len(chances), size=len(lost), p=chances)]
        yield rng.multinomial(size, own / own.sum(axis=1, keepdims=True)).astype(np.float64)


def log(values: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return np.log(values)


# ---------------------------------------------------------------- the program

# A section: the function, and the replications of a full run.
SECTIONS: tuple[tuple[Callable[[np.random.Generator, int], Iterator[Row]], int], ...] = (
    (rate_rows, 20_000),
    (gain_rows, 20_000),
    (relative_rows, 10_000),
    (ratio_rows, 4_000),
    (calibration_rows, 4_000),
    (clustered_rows, 4_000),
    (clustered_ratio_rows, 4_000),
)


def run(*, quick: bool, seed: int) -> list[Row]:
    rows: list[Row] = []
    for number, (section, full) in enumerate(SECTIONS):
        started = time.perf_counter()
        replications = 300 if quick else full
        found = [
            r | {"replications": replications}
            for r in section(np.random.default_rng([seed, number]), replications)
        ]
        rows += found
        print(
            f"{section.__name__}: {len(found)} rows, {time.perf_counter() - started:.0f} s",
            file=sys.stderr,
        )
    return rows


def print_table(rows: list[Row]) -> None:
    print(f"{'quantity':34} {'setting':46} {'n':>6} {'count':>8}  cover  rejected")
    for r in rows:
        rivals = "  ".join(f"{name} {100 * value:.1f}" for name, value in r["rejected"].items())
        mark = " " if 0.935 <= r["coverage"] <= 0.975 else "-" if r["coverage"] < 0.935 else "+"
        print(
            f"{r['quantity']:34} {r['setting']:46} {r['n']:6} {r['expected_count']:8}"
            f"  {100 * r['coverage']:5.1f}{mark} {rivals}"
        )
    for quantity in dict.fromkeys(r["quantity"] for r in rows):
        covers = [r["coverage"] for r in rows if r["quantity"] == quantity]
        print(
            f"{quantity}: {100 * min(covers):.1f} to {100 * max(covers):.1f} %"
            f" in {len(covers)} settings"
        )


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few replications: does it run?")
    parser.add_argument("--seed", type=int, default=20240607)
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")
    arguments = parser.parse_args()
    if arguments.out is None and not arguments.quick:
        arguments.out = Path(__file__).parent / "results" / "calibration.json"
    started = time.perf_counter()
    rows = run(quick=arguments.quick, seed=arguments.seed)
    print_table(rows)
    gate = list(
        gate_rows(np.random.default_rng([arguments.seed, 99]), 100 if arguments.quick else 2_000)
    )
    print_gate_table(gate)
    if arguments.out is None:
        return
    record = {
        "schema": "flipguard.calibration/1",
        "command": " ".join(["python benchmarks/calibration.py", *sys.argv[1:]]),
        "confidence": CONFIDENCE,
        "seed": arguments.seed,
        "quick": arguments.quick,
        "bootstrap_replications": "at most 2000 for the rivals that resample",
        "seconds": round(time.perf_counter() - started),
        "machine": {
            "cpu": cpu(),
            "system": platform.system(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "rows": rows,
        "gate": gate,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
