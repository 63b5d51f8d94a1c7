"""The paired gain, against Tango's definition worked out by brute force."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

from flipguard.statistics import (
    equivalence_p,
    non_inferiority_p,
    paired_difference,
    paired_difference_variance,
)
from flipguard.statistics.rates import tango


def score(positive: int, negative: int, n: int, gain: float) -> float:
    """Observed minus supposed gain over its spread under the likeliest chances with that gain."""

    def unlikeliness(negative_rate: float) -> float:
        chances = (negative_rate + gain, negative_rate, 1 - 2 * negative_rate - gain)
        counts = (positive, negative, n - positive - negative)
        if min(chances) < 0:
            return math.inf
        return -sum(c * math.log(max(p, 1e-300)) for c, p in zip(counts, chances, strict=True) if c)

    bounds = (max(0.0, -gain), (1 - gain) / 2)
    best = minimize_scalar(unlikeliness, bounds=bounds, method="bounded", options={"xatol": 1e-12})
    variance = 2 * best.x + gain - gain**2
    return float(((positive - negative) / n - gain) / math.sqrt(variance / n))


@pytest.mark.parametrize(
    ("positive", "negative", "n"),
    [(30, 20, 1000), (1, 4, 60), (7, 3, 15), (0, 5, 40), (12, 0, 500)],
)
def test_limits_solve_tangos_equation(positive: int, negative: int, n: int) -> None:
    z = scipy.stats.norm.ppf(0.975)
    low, high = tango(*np.array([positive, negative, n, z], dtype=float)[:, np.newaxis])
    estimate = (positive - negative) / n
    slow_low = brentq(lambda g: score(positive, negative, n, g) - z, -0.9999, estimate - 1e-9)
    slow_high = brentq(lambda g: score(positive, negative, n, g) + z, estimate + 1e-9, 0.9999)
    assert low[0] == pytest.approx(slow_low, abs=2e-6)
    assert high[0] == pytest.approx(slow_high, abs=2e-6)


@pytest.mark.parametrize(("positive", "negative"), [(5, 1), (0, 8), (40, 40)])
def test_limits_reach_as_far_as_the_exact_ones_of_both_rates(positive: int, negative: int) -> None:
    n, tail = 200, 0.025
    # Clopper and Pearson's limits from SciPy's quantiles of the beta distribution.
    up = scipy.stats.beta.ppf(1 - tail, positive + 1, n - positive) - positive / n
    down = negative / n - scipy.stats.beta.ppf(tail, negative, n - negative + 1)
    down = 0.0 if negative == 0 else down
    high = paired_difference(positive, negative, n, confidence=0.95)[1]
    assert high >= (positive - negative) / n + math.hypot(up, down) - 1e-12


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.9995, 1 - 0.05 / 1000])
@pytest.mark.parametrize(("positive", "negative"), [(5, 0.3), (5, 1), (30, 0), (1, 10), (30, 30)])
def test_one_sided_error(positive: float, negative: float, confidence: float) -> None:
    """Exactly, by sums over all counts: each end misses about as often as stated."""
    n = 1000.0
    gains, losses = np.meshgrid(np.arange(80.0), np.arange(80.0), indexing="ij")
    chance = scipy.stats.poisson.pmf(gains, positive) * scipy.stats.poisson.pmf(losses, negative)
    low, high = paired_difference(gains, losses, n, confidence=confidence)
    truth = (positive - negative) / n
    for wrong in (low > truth, high < truth):
        assert chance[wrong].sum() <= 1.3 * (1 - confidence) / 2


def test_no_flip_at_all_still_has_a_width() -> None:
    # With no flip of either kind the limits are z^2 / (n + z^2), as Wilson's of no success.
    low, high = paired_difference(0, 0, 100, confidence=0.95)
    z = scipy.stats.norm.ppf(0.975)
    assert high == pytest.approx(z**2 / (100 + z**2))
    assert low == -high


@pytest.mark.parametrize("confidence", [0.01, 0.3, 0.95, 0.99999])
def test_tangos_limits_without_a_flip_are_wilsons(confidence: float) -> None:
    z = scipy.stats.norm.isf((1 - confidence) / 2)
    low, high = tango(*np.array([0.0, 0.0, 400.0, z])[:, np.newaxis])
    assert high[0] == pytest.approx(z**2 / (400 + z**2), rel=1e-9)
    assert low[0] == -high[0]


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99999])
def test_limits_of_few_samples_are_gains(confidence: float) -> None:
    positive, negative, n = (
        x.ravel() for x in np.meshgrid(np.arange(13), np.arange(13), np.arange(1, 13))
    )
    there = positive + negative <= n
    positive, negative, n = positive[there], negative[there], n[there]
    low, high = paired_difference(positive, negative, n, confidence=confidence)
    gain = (positive - negative) / n
    assert ((low >= -1) & (low <= gain) & (gain <= high) & (high <= 1)).all()


def test_edges() -> None:
    low, high = paired_difference([10, 0, 0], [0, 10, 0], [10, 10, 0], confidence=0.95)
    assert high[0] == 1.0
    assert low[1] == -1.0
    assert 0 < low[0] < 1
    assert -1 < high[1] < 0
    assert np.isnan(low[2])
    assert np.isnan(high[2])


def test_rare_flips_among_very_many_keep_their_digits() -> None:
    few = np.array(paired_difference(6, 2, 10**6, confidence=0.95)) * 10**6
    fewer = np.array(paired_difference(6, 2, 10**9, confidence=0.95)) * 10**9
    np.testing.assert_allclose(few, fewer, rtol=1e-4)


def test_many_samples_agree_with_wald() -> None:
    low, high = paired_difference(40_000, 30_000, 10**6, confidence=0.95)
    half = 1.959963984540054 * math.sqrt(paired_difference_variance(40_000, 30_000, 10**6))
    np.testing.assert_allclose([low, high], [0.01 - half, 0.01 + half], rtol=1e-4)


counts = st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 3000))


@settings(deadline=None, max_examples=200)
@given(counts, st.sampled_from([0.8, 0.95, 0.999]))
def test_properties(given_counts: tuple[int, int, int], confidence: float) -> None:
    positive, negative, rest = given_counts
    n = positive + negative + rest
    if n == 0:
        return
    low, high = paired_difference(positive, negative, n, confidence=confidence)
    assert -1 <= low <= (positive - negative) / n <= high <= 1
    swapped_low, swapped_high = paired_difference(negative, positive, n, confidence=confidence)
    assert (swapped_low, swapped_high) == (-high, -low)
    doubled = (2 * positive, 2 * negative, 2 * n)
    twice_low, twice_high = paired_difference(*doubled, confidence=confidence)
    assert twice_high - twice_low < high - low
    halved = paired_difference(*doubled, confidence=confidence, design_effect=2.0)
    np.testing.assert_allclose(halved, (low, high), atol=1e-12)


def test_without_a_margin_it_is_mcnemars_asymptotic_test() -> None:
    assert non_inferiority_p(30, 18, 400, margin=0.0) == pytest.approx(
        scipy.stats.norm.sf((30 - 18) / math.sqrt(48))
    )


@pytest.mark.parametrize(("positive", "negative"), [(30, 25), (3, 9), (0, 0), (0, 12)])
def test_p_value_and_interval_agree(positive: int, negative: int) -> None:
    for margin in (0.01, 0.02, 0.05):
        p = non_inferiority_p(positive, negative, 1000, margin=margin)
        assert p == pytest.approx(
            scipy.stats.norm.sf(score(positive, negative, 1000, -margin)), abs=1e-4
        )
        for alpha in (0.01, 0.05, 0.2):
            low, high = paired_difference(positive, negative, 1000, confidence=1 - 2 * alpha)
            assert (p < alpha) == (low > -margin)
            inside = low > -margin and high < margin
            assert (equivalence_p(positive, negative, 1000, margin=margin) < alpha) == inside


def test_tests_at_the_edges() -> None:
    assert non_inferiority_p(0, 10, 10, margin=1.0) == pytest.approx(0.5)
    assert np.isnan(non_inferiority_p(0, 0, 0, margin=0.1))
    assert non_inferiority_p(0, 0, 100, margin=0.0) == pytest.approx(0.5)
    np.testing.assert_array_equal(
        equivalence_p([3, 5], [5, 3], 100, margin=0.05),
        equivalence_p([5, 3], [3, 5], 100, margin=0.05),
    )


def test_variance_is_that_of_a_list_of_differences() -> None:
    differences = np.array([1] * 5 + [-1] * 3 + [0] * 12)
    assert paired_difference_variance(5, 3, 20) == pytest.approx(differences.var() / 20)
