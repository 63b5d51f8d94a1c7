"""One rate, against statsmodels and SciPy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from flipguard.statistics import proportion_variance, wilson


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("n", [100, 1000, 10**6])
def test_many_successes_and_failures_are_plain_wilson(n: int, confidence: float) -> None:
    successes = np.unique(np.linspace(30, n - 30, 50).astype(int))
    low, high = wilson(successes, n, confidence=confidence)
    peer_low, peer_high = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    np.testing.assert_allclose(low, peer_low, rtol=1e-10)
    np.testing.assert_allclose(high, peer_high, rtol=1e-10)


def test_few_successes_have_the_exact_lower_limit_with_four_fifths_of_the_error() -> None:
    for successes in (1, 2, 5, 8):
        low, _ = wilson(successes, 500, confidence=0.95)
        # At the limit, this many successes or more happen with a chance of 4 %.
        chance = scipy.stats.binom.sf(successes - 1, 500, float(low))
        assert chance == pytest.approx(0.04, rel=1e-8)


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
    # With t in place of z, Wilson's limits solve (rate - p)^2 = t^2 p (1 - p) / n.
    low, high = wilson(300, 1000, confidence=0.95, degrees=9)
    t = scipy.stats.t.ppf(0.975, 9)
    for limit in (low, high):
        assert (0.3 - limit) ** 2 == pytest.approx(t**2 * limit * (1 - limit) / 1000, rel=1e-9)


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
