"""One rate, against statsmodels and SciPy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from flipguard.statistics import proportion_variance, wilson


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.9995])
@pytest.mark.parametrize("n", [20, 100, 1000, 10**6])
def test_the_wider_of_wilson_and_the_exact_limits(n: int, confidence: float) -> None:
    successes = np.unique(np.linspace(0, n, 60).astype(int))
    low, high = wilson(successes, n, confidence=confidence)
    ends = [
        proportion_confint(successes, n, alpha=1 - confidence, method=method)
        for method in ("wilson", "beta")
    ]
    np.testing.assert_allclose(low, np.minimum(ends[0][0], ends[1][0]), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(high, np.maximum(ends[0][1], ends[1][1]), rtol=1e-7)


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.9995])
@pytest.mark.parametrize("n", [20, 100, 20_000])
def test_it_covers_at_least_what_it_says(n: int, confidence: float) -> None:
    successes = np.arange(min(n, 400) + 1)
    low, high = wilson(successes, n, confidence=confidence)
    for rate in np.geomspace(0.02, min(n / 2, 200), 200) / n:
        inside = (low <= rate) & (rate <= high)
        assert scipy.stats.binom.pmf(successes, n, rate)[inside].sum() >= confidence - 1e-9


def test_the_upper_limit_mirrors_the_lower_one() -> None:
    successes = np.arange(0, 51)
    low, high = wilson(successes, 50, confidence=0.95)
    np.testing.assert_allclose(low, 1 - high[::-1], atol=1e-14)


def test_ends_are_exact_and_nothing_is_undefined_but_an_empty_sample() -> None:
    low, high = wilson([0, 10, 0], [10, 10, 0], confidence=0.95)
    assert low[0] == 0.0
    assert high[1] == 1.0
    assert 0 < high[0] < 1
    assert 0 < low[1] < 1
    assert np.isnan(low[2])
    assert np.isnan(high[2])


def test_degrees_widen_by_student() -> None:
    # A t value stands for the confidence of the normal with the same critical value.
    t = scipy.stats.t.ppf(0.975, 9)
    same = wilson(300, 1000, confidence=1 - 2 * scipy.stats.norm.sf(t))
    found = wilson(300, 1000, confidence=0.95, degrees=9)
    np.testing.assert_allclose(found, same, rtol=1e-9)


def test_no_degrees_of_freedom_is_undefined() -> None:
    assert np.isnan(wilson(3, 10, confidence=0.95, degrees=0)).all()


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 2000), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_properties(n: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = wilson(successes, n, confidence=confidence)
    assert 0 <= low <= successes / n <= high <= 1
    twice_low, twice_high = wilson(2 * successes, 2 * n, confidence=confidence)
    assert twice_high - twice_low < high - low
    halved = wilson(2 * successes, 2 * n, confidence=confidence, design_effect=2.0)
    np.testing.assert_allclose(halved, (low, high), rtol=1e-9, atol=1e-15)
    wider_low, wider_high = wilson(successes, n, confidence=1 - (1 - confidence) / 2)
    assert wider_low <= low
    assert high <= wider_high


def test_variance_is_that_of_a_list_of_zeros_and_ones() -> None:
    flags = np.array([1, 0, 0, 1, 0, 0, 0])
    assert proportion_variance(2, 7) == pytest.approx(flags.var() / 7)
    assert np.isnan(proportion_variance(0, 0))
