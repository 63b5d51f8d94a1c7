"""The law of a weighted sum of squared normal numbers, against laws with a closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flipguard.statistics.generalized_chi2 import generalized_chi2_cdf, generalized_chi2_pdf

LEVELS = [1e-8, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999, 1 - 1e-8]


@pytest.mark.parametrize("weight", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("terms", [1, 2, 3, 10, 100, 1000])
def test_equal_weights_are_chi_squared(terms: int, weight: float) -> None:
    at = stats.chi2.ppf(LEVELS, terms)
    weights = np.full(terms, weight)
    assert generalized_chi2_cdf(at * weight, weights) == pytest.approx(LEVELS, abs=1e-8)
    coarse = generalized_chi2_cdf(at * weight, weights, coarse=True)
    assert coarse == pytest.approx(LEVELS, abs=1e-4)
    density = generalized_chi2_pdf(at * weight, weights) * weight
    assert density == pytest.approx(stats.chi2.pdf(at, terms), rel=1e-9)


@pytest.mark.parametrize("extra", [0.01, 1.0, 30.0, 1000.0, 1e5])
@pytest.mark.parametrize("terms", [1, 2, 5, 50])
def test_shifted_terms_are_noncentral_chi_squared(terms: int, extra: float) -> None:
    at = stats.ncx2.ppf([1e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999], terms, extra)
    # However the shift is spread over the terms.
    one = np.zeros(terms)
    one[0] = np.sqrt(extra)
    for shifts in (one, np.full(terms, np.sqrt(extra / terms))):
        found = generalized_chi2_cdf(at, np.ones(terms), shifts)
        assert found == pytest.approx(stats.ncx2.cdf(at, terms, extra), abs=1e-8)
        coarse = generalized_chi2_cdf(at, np.ones(terms), shifts, coarse=True)
        assert coarse == pytest.approx(found, abs=1e-4)
        density = generalized_chi2_pdf(at, np.ones(terms), shifts)
        assert density == pytest.approx(stats.ncx2.pdf(at, terms, extra), rel=1e-7)


def test_pairs_of_equal_weights_are_a_sum_of_exponential_numbers() -> None:
    scales = np.array([3.0, 1.0, 0.1, 0.02])
    at = np.array([0.001, 0.01, 0.1, 1.0, 3.0, 10.0, 30.0])
    expected = 1 - sum(
        np.prod([a / (a - b) for b in scales if b != a]) * np.exp(-at / a) for a in scales
    )
    found = generalized_chi2_cdf(at, np.repeat(scales, 2) / 2)
    assert found == pytest.approx(expected, abs=1e-10)


def test_unlike_weights_and_shifts_are_as_simulated() -> None:
    weights = np.array([100.0, 1.0, 0.01, 1e-6, 0.0])
    shifts = np.array([0.1, 2.0, 30.0, 1000.0, 7.0])
    numbers = np.random.default_rng(0).standard_normal((200_000, 5))
    drawn = (weights * (numbers + shifts) ** 2).sum(axis=1)
    levels = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    found = generalized_chi2_cdf(np.quantile(drawn, levels), weights, shifts)
    assert found == pytest.approx(levels, abs=0.004)


def test_the_density_is_the_slope_of_the_probability() -> None:
    weights, shifts = np.array([2.0, 0.7, 0.1]), np.array([0.5, -1.0, 2.0])
    at, step = np.linspace(0.2, 15, 40), 1e-4
    slope = generalized_chi2_cdf(at + step, weights, shifts)
    slope -= generalized_chi2_cdf(at - step, weights, shifts)
    assert generalized_chi2_pdf(at, weights, shifts) == pytest.approx(slope / (2 * step), abs=1e-6)


def test_values_and_weights_are_broadcast() -> None:
    weights = np.array([[[1.0, 1.0]], [[0.5, 0.5]]])
    at = np.array([[0.0, 1.0, -1.0], [2.0, 1.0, 0.5]])
    found = generalized_chi2_cdf(at, weights)
    rate = np.array([[2.0], [1.0]])
    assert found == pytest.approx(np.where(at > 0, 1 - np.exp(-at / rate), 0.0), abs=1e-10)


@pytest.mark.parametrize("weights", [[-1.0, 2.0], [0.0, 0.0]])
def test_weights_must_be_those_of_a_covariance(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights of zero or more"):
        generalized_chi2_cdf(1.0, weights)
