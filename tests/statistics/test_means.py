"""Means and prediction intervals, against statsmodels and the textbook formula."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.weightstats import DescrStatsW

from flipguard.statistics import mean, mean_variance, prediction_interval

# Thousandths: values nearer to each other than that drown in the rounding of a sum of squares.
thousandths = st.integers(-100_000, 100_000).map(lambda value: value / 1_000)
numbers = st.lists(thousandths, min_size=2, max_size=30)


@settings(deadline=None)
@given(numbers)
def test_mean_is_statsmodels_t_interval(values: list[float]) -> None:
    x = np.array(values)
    found = mean(x.sum(), (x**2).sum(), len(x), confidence=0.9)
    expected = DescrStatsW(x).tconfint_mean(alpha=0.1) if np.ptp(x) > 0 else [x.mean()] * 2
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_design_effect_and_degrees() -> None:
    x = np.array([1.0, 2.0, 3.0, 5.0, 9.0])
    low, high = mean(x.sum(), (x**2).sum(), 5, confidence=0.95, design_effect=2.0, degrees=3)
    half = scipy.stats.t.ppf(0.975, 3) * math.sqrt(2 * x.var(ddof=1) / 5)
    np.testing.assert_allclose([low, high], [4 - half, 4 + half])


def test_one_sample_or_none_is_undefined() -> None:
    low, high = mean([3.0, 0.0], [9.0, 0.0], [1, 0], confidence=0.95)
    assert np.isnan(low).all()
    assert np.isnan(high).all()
    assert np.isnan(mean_variance(3.0, 9.0, 1))


def test_equal_values_have_no_spread() -> None:
    low, high = mean(0.1 * 3, 0.01 * 3, 3, confidence=0.95)
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)


@settings(deadline=None)
@given(numbers)
def test_prediction_interval_is_the_textbook_one(values: list[float]) -> None:
    k = len(values)
    centre = sum(values) / k
    spread = math.sqrt(sum((x - centre) ** 2 for x in values) / (k - 1))
    half = scipy.stats.t.ppf(0.975, k - 1) * spread * math.sqrt(1 + 1 / k)
    found = prediction_interval(values, confidence=0.95)
    np.testing.assert_allclose(found, [centre - half, centre + half], atol=1e-9)


def test_prediction_interval_covers_the_next_draw() -> None:
    draws = np.random.default_rng(0).normal(5, 2, size=(20_000, 4))
    low, high = prediction_interval(draws[:, :3], confidence=0.95)
    assert np.mean((low <= draws[:, 3]) & (draws[:, 3] <= high)) == pytest.approx(0.95, abs=0.006)


def test_one_retrain_says_nothing_of_the_next() -> None:
    assert np.isnan(prediction_interval([0.03], confidence=0.95)).all()
    low, _ = prediction_interval(np.zeros((4, 1)), confidence=0.95)
    assert low.shape == (4,)
