"""The range of one more retrain, against the binomial law and in small simulations."""

import math
import statistics

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formulas import evaluated

from flipguard.statistics import prediction_interval, retrain_gain, retrain_rate
from flipguard.statistics.seeds import retraining_variance


def test_equal_retrains_with_few_flips_leave_room_for_chance() -> None:
    low, high = retrain_rate([1, 1], 200, confidence=0.95)
    assert low == 0
    assert 0.02 < high < 0.03
    low, high = retrain_rate([0, 0], 200, confidence=0.95)
    assert 0 == low < high < 0.02
    low, high = retrain_gain([1, 1], [1, 1], 200, confidence=0.95)
    assert low < -0.015
    assert high > 0.015


@pytest.mark.parametrize("k", [2, 3, 5, 10, 20, 50])
@pytest.mark.parametrize("each", [0, 1, 7, 30, 400])
def test_equal_retrains_have_the_exact_range_of_one_rate(k: int, each: int) -> None:
    n, total = 10_000, k * each
    low, high = np.array(retrain_rate([each] * k, n, confidence=0.95)) * n

    def is_plausible(flips: int) -> bool:
        # Given the total, the count of the further retrain is binomial.
        above = scipy.stats.binom.sf(flips - 1, total + flips, 1 / (k + 1))
        below = scipy.stats.binom.cdf(flips, total + flips, 1 / (k + 1))
        return bool(min(above, below) > 0.025)

    assert high == pytest.approx(round(high))
    inside = range(math.ceil(low - 1e-9), round(high) + 1)
    assert all(is_plausible(flips) for flips in inside)
    assert not is_plausible(round(high) + 1)
    assert low == 0 or not is_plausible(inside[0] - 1)


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=2, max_size=6), st.sampled_from([0.8, 0.95, 0.9999]))
def test_no_range_is_narrower_than_that_of_the_scatter(seen: list[int], level: float) -> None:
    n = 1000
    low, high = retrain_rate(seen, n, confidence=level)
    scatter = prediction_interval(np.array(seen) / n, confidence=level)
    assert low <= max(scatter[0], 0) + 1e-12
    assert high >= min(scatter[1], 1) - 1e-12
    assert 0 <= low <= np.mean(seen) / n <= high <= 1
    low, high = retrain_gain(seen, seen[::-1], n, confidence=level)
    assert -1 <= low <= high <= 1
    assert low == pytest.approx(-high)


@pytest.mark.parametrize("k", [5, 10, 20])
@pytest.mark.parametrize("expected", [0.1, 0.2, 0.5, 2.0])
def test_a_retrain_with_few_flips_is_rarely_above(k: int, expected: float) -> None:
    rng = np.random.default_rng(k)
    flips = rng.binomial(1000, expected / 1000, size=(4000, k + 1))
    _, high = retrain_rate(flips[:, 1:], 1000, confidence=0.95)
    assert np.mean(flips[:, 0] / 1000 > high + 1e-12) < 0.025
    fixed = rng.binomial(1000, expected / 1000, size=(4000, k + 1))
    low, high = retrain_gain(fixed[:, 1:], flips[:, 1:], 1000, confidence=0.95)
    gain = (fixed[:, 0] - flips[:, 0]) / 1000
    assert np.mean((gain > high + 1e-12) | (gain < low - 1e-12)) < 0.055


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize(("rate", "n"), [(0.005, 200), (0.02, 1000), (0.05, 10_000)])
@pytest.mark.parametrize("variation", [0.0, 0.1])
def test_a_harmless_retrain_is_inside(k: int, rate: float, n: int, variation: float) -> None:
    rng = np.random.default_rng(k)
    rates = rate * np.exp(variation * rng.standard_normal((3000, k + 1)))
    flips = rng.binomial(n, rates)
    low, high = retrain_rate(flips[:, 1:], n, confidence=0.95)
    new = flips[:, 0] / n
    assert np.mean((low <= new) & (new <= high)) > 0.94
    fixed = rng.binomial(n, rate, size=(3000, k + 1))
    low, high = retrain_gain(fixed[:, 1:], flips[:, 1:], n, confidence=0.95)
    gain = (fixed[:, 0] - flips[:, 0]) / n
    assert np.mean((low <= gain) & (gain <= high)) > 0.94


def test_more_controls_that_vary_as_much_give_a_narrower_range() -> None:
    for seen in ([1, 1], [20, 30], [15, 22, 31]):
        two = retrain_rate(seen, 1000, confidence=0.95)
        five = retrain_rate(seen, 1000, confidence=0.95, controls=5)
        assert five[1] < two[1]
    five = [10, 12, 20, 30, 33]
    same = retrain_rate(five, 1000, confidence=0.95, controls=5)
    np.testing.assert_allclose(same, retrain_rate(five, 1000, confidence=0.95))


def test_one_retrain_or_no_sample_gives_no_range() -> None:
    assert np.isnan(retrain_rate([3], 100, confidence=0.95)).all()
    assert np.isnan(retrain_rate([0, 0], 0, confidence=0.95)).all()
    assert np.isnan(retrain_gain([0, 0], [0, 0], 0, confidence=0.95)).all()


def test_the_seed_adds_nothing_where_controls_vary_no_more_than_samples_do() -> None:
    assert retraining_variance([100, 100, 100], 60.0, confidence=0.95) == 0
    spread = np.log([80.5, 120.5]).var(ddof=1)
    expected = 1.5 * scipy.stats.t.ppf(0.975, 1) ** 2 * spread
    assert retraining_variance([80, 120], 0.0, confidence=0.95) == pytest.approx(expected)


@pytest.mark.parametrize("flips", [[80, 120], [400, 150, 210], [90, 100, 95, 105]])
def test_the_formula_of_the_page_is_what_is_computed(flips: list[int]) -> None:
    k, apart = len(flips), 60.0
    expected = evaluated(
        "docs/statistics.md",
        ("a", "more"),
        **{"s²": statistics.variance(math.log(one + 0.5) for one in flips)},
        k=k,
        apart=apart,
        flips=statistics.mean(flips),
        t=float(scipy.stats.t.ppf(0.975, k - 1)),
        z=statistics.NormalDist().inv_cdf(0.975),
    )
    assert retraining_variance(flips, apart, confidence=0.95) == pytest.approx(expected)


def test_one_flip_among_the_retrains_may_be_none_in_the_next() -> None:
    for level in (0.05, 0.5, 0.95):
        low, high = retrain_rate([1, 0], 200, confidence=level)
        assert low == 0
        assert high > 0
