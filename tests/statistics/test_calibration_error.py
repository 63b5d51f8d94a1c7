"""The calibration error's interval: the bound it rests on, and what must hold."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from flipguard.statistics import calibration_error
from flipguard.statistics.means import BUMP, WORST_VARIANCE


def sums(stated: np.ndarray, right: np.ndarray, bins: int = 15) -> list[np.ndarray]:
    at = np.minimum((stated * bins).astype(int), bins - 1)
    columns = (np.ones_like(stated), right, stated, (right - stated) ** 2)
    return [np.bincount(at, weights=column, minlength=bins) for column in columns]


@pytest.mark.parametrize("centre", np.linspace(0, 5, 21))
def test_the_corrected_gap_is_never_too_large_on_average(centre: float) -> None:
    def moment(power: int) -> float:
        def integrand(x: float) -> float:
            return (abs(x) - BUMP * np.exp(-(x**2) / 2)) ** power * norm.pdf(x - centre)

        return quad(integrand, centre - 9, centre + 9, points=[0.0] if centre < 9 else None)[0]

    assert moment(1) <= centre + 1e-9
    assert moment(2) - moment(1) ** 2 <= WORST_VARIANCE


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 2000), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_properties(n: int, seed: int, bias: float) -> None:
    rng = np.random.default_rng(seed)
    stated = rng.uniform(0.1, 1, n)
    right = (rng.random(n) < stated * bias).astype(float)
    table = sums(stated, right)
    low, high = calibration_error(*table, confidence=0.95)
    assert 0 <= low <= np.abs(table[1] - table[2]).sum() / n + 1e-12
    assert np.abs(table[1] - table[2]).sum() / n - 1e-12 <= high <= 1
    wider_low, wider_high = calibration_error(*table, confidence=0.95, design_effect=2.0)
    assert wider_low <= low
    assert high <= wider_high
    order = rng.permutation(15)
    shuffled = calibration_error(*(column[order] for column in table), confidence=0.95)
    np.testing.assert_allclose(shuffled, (low, high), atol=1e-12)


def test_a_calibrated_model_reaches_zero_and_a_bad_one_does_not() -> None:
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.1, 1, 5000)
    low, _ = calibration_error(*sums(stated, (rng.random(5000) < stated) * 1.0), confidence=0.95)
    assert low == 0
    low, high = calibration_error(
        *sums(stated, (rng.random(5000) < stated - 0.1) * 1.0), confidence=0.95
    )
    assert 0.05 < low < 0.1 < high < 0.13


def test_a_sure_bin_without_an_error_is_no_proof_of_miscalibration() -> None:
    # 190 answers at 99.5 %: no error is what one expects four times in ten.
    low, _ = calibration_error([190], [190], [190 * 0.995], [190 * 0.005**2], confidence=0.95)
    assert low == 0


def test_groups_and_empty_ones() -> None:
    n = np.array([[10.0, 20.0], [0.0, 0.0]])
    low, high = calibration_error(n, n * 0.5, n * 0.6, n * 0.3, confidence=0.9)
    assert low.shape == high.shape == (2,)
    assert np.isfinite([low[0], high[0]]).all()
    assert np.isnan([low[1], high[1]]).all()


def bin_by_bin(table: list[tuple[float, float, float, float]], effect: float) -> tuple[float, ...]:
    """The formulas of the module's comments, one bin after the other."""
    z, total = scipy.stats.norm.isf(0.025), sum(n for n, *_ in table)
    plain = corrected = widened = variance = 0.0
    for n, right, stated, squares in table:
        gap = (right - stated) / total
        # What a calibrated bin would vary by is the least that is believed.
        if n:
            squares = max(squares, n * (stated / n) * (1 - stated / n))
        spread = math.sqrt(max((squares / total - gap**2) / total, 0.0) * effect)
        plain += abs(gap)
        variance += spread**2
        if spread == 0:
            corrected += abs(gap)
            continue
        away = abs(gap) / spread
        corrected += abs(gap) - 2 / math.sqrt(math.pi) * spread * math.exp(-(away**2) / 2)
        # Four standard errors off it varies as much as at the worst mean, six off no more.
        widened += spread**2 * (1 + 0.632 * min(max((6 - away) / 2, 0.0), 1.0))
    one = effect / total
    steps = variance / one**2
    above = one * (scipy.stats.gamma.isf(0.025, steps + 1) - steps)
    return max(corrected - z * math.sqrt(widened), 0.0), min(plain + above, 1.0)


@pytest.mark.parametrize("effect", [1.0, 3.0])
@pytest.mark.parametrize(
    "table",
    [
        [(100, 60, 75.0, 28.0), (300, 250, 270.0, 45.0)],
        [(100, 20, 75.0, 50.0), (300, 200, 270.0, 90.0), (0, 0, 0.0, 0.0)],
        [(400, 300, 380.0, 90.0)],
        [(1000, 800, 905.0, 170.0), (1000, 500, 590.0, 250.0)],
        [(50, 50, 50.0, 0.0), (50, 40, 44.0, 8.0)],
    ],
)
def test_it_is_the_formula_bin_by_bin(
    table: list[tuple[float, float, float, float]], effect: float
) -> None:
    columns = np.array(table).T
    found = calibration_error(*columns, confidence=0.95, design_effect=effect)
    np.testing.assert_allclose(found, bin_by_bin(table, effect), rtol=1e-7, atol=1e-12)
