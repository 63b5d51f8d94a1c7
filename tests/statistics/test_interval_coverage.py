"""A small simulation: 95 % intervals cover about 95 %, also where the Wald interval does not.

The bounds leave five standard errors of the simulation, so a right method cannot fail by chance.
The full study is `benchmarks/calibration.py`.
"""

import math
import subprocess
import sys

import numpy as np
import pytest

import flipguard.statistics as statistics

DRAWS = 4000
LEAST = 0.935 - 5 * math.sqrt(0.05 * 0.95 / DRAWS)
MOST = 0.975 + 5 * math.sqrt(0.025 * 0.975 / DRAWS)
# both right, negative flip, positive flip, both wrong
CHANCES = np.array([0.885, 0.015, 0.02, 0.08])


def cover(interval: tuple[np.ndarray, np.ndarray], truth: float) -> float:
    low, high = interval
    return float(np.mean((low <= truth) & (truth <= high)))


def wald(x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    half = 1.96 * np.sqrt(x / n * (1 - x / n) / n)
    return x / n - half, x / n + half


@pytest.mark.parametrize("n", [300, 3000])
def test_flip_metrics(n: int) -> None:
    tables = np.random.default_rng(n).multinomial(n, CHANCES, size=DRAWS)
    right, negative, positive, wrong = tables.T
    assert LEAST < cover(statistics.wilson(negative, n, confidence=0.95), 0.015) < MOST
    gain = statistics.paired_difference(positive, negative, n, confidence=0.95)
    assert LEAST < cover(gain, 0.005) < MOST
    relative = statistics.relative_negative_flip_rate(
        negative, right + negative, negative + wrong, n, confidence=0.95
    )
    assert LEAST < cover(relative, 0.015 / (0.9 * 0.095)) < MOST


def test_the_simulation_tells_wald_from_wilson() -> None:
    flips = np.random.default_rng(0).binomial(300, 0.01, size=DRAWS)
    assert cover(wald(flips, 300), 0.01) < LEAST
    assert cover(statistics.wilson(flips, 300, confidence=0.95), 0.01) > LEAST


@pytest.mark.parametrize("n", [400, 4000])
def test_ratio_to_two_controls(n: int) -> None:
    chances = np.array([[0.88, 0.04, 0.02], [0.02, 0.02, 0.02]])
    tables = np.random.default_rng(n).multinomial(n, chances.ravel(), size=DRAWS).reshape(-1, 2, 3)
    interval = statistics.paired_ratio(tables, confidence=0.95)
    assert LEAST < cover(interval, 0.06 / 0.07) < MOST


@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_calibration_error(gap: float) -> None:
    stated = np.linspace(0.35, 0.95, 10)
    rng = np.random.default_rng(1)
    count = rng.multinomial(1000, np.full(10, 0.1), size=DRAWS)
    right = rng.binomial(count, stated - gap)
    squares = right * (1 - stated) ** 2 + (count - right) * stated**2
    interval = statistics.calibration_error(count, right, count * stated, squares, confidence=0.95)
    # Conservative by design: only too little is wrong.
    assert cover(interval, gap) > LEAST


def test_clustered_rate() -> None:
    clusters, size, rate, correlation, draws = 100, 10, 0.05, 0.3, 600
    rng = np.random.default_rng(2)
    shape = (1 - correlation) / correlation
    own = rng.beta(rate * shape, (1 - rate) * shape, size=(draws, clusters))
    flips = rng.binomial(size, own).astype(float)
    total, n = flips.sum(axis=1), clusters * size
    effects, degrees = [], []
    for i, sample in enumerate(flips):
        again = statistics.cluster_replicates(sample[:, None], replicates=200, seed=i)[:, 0] / n
        variance = statistics.proportion_variance(total[i], n)
        effects.append(statistics.design_effect(again, variance, clusters, largest=size))
        without, weights = statistics.leave_one_out(sample[:, None])
        degrees.append(statistics.effective_degrees(without[:, 0], weights))
    slack = 5 * math.sqrt(0.05 * 0.95 / draws)
    found = statistics.wilson(total, n, confidence=0.95, design_effect=effects, degrees=degrees)
    assert 0.935 - slack < cover(found, rate) < 0.975 + slack
    assert cover(statistics.wilson(total, n, confidence=0.95), rate) < 0.935 - slack


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("import flipguard.statistics", "scipy"),
        ("from flipguard.statistics import wilson; wilson(3, 9, confidence=0.9)", "scipy.stats"),
    ],
)
def test_heavy_modules_stay_out(program: str, module: str) -> None:
    check = f"{program}; import sys; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_all_names_are_there() -> None:
    assert statistics.__all__ == sorted(statistics.__all__)
    for name in statistics.__all__:
        assert callable(getattr(statistics, name))
