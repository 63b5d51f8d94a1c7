"""Intervals over samples, and the area under the ROC curve, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flipguard.statistics.sample_means import mean_of, ratio_of_ratios, ratio_of_sums, separation


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).normal(size=30)
    value, low, high = mean_of(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (value, low, high) == pytest.approx((values.mean(), *expected))


def test_ratios_cover_their_true_value() -> None:
    random, hits = np.random.default_rng(1), 0
    for _ in range(400):
        bottom = random.gamma(2.0, size=200)
        top = 0.3 * bottom * random.gamma(4.0, 0.25, size=200)
        _, low, high = ratio_of_sums(top, bottom)
        hits += low <= 0.3 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_a_product_of_powers_of_means() -> None:
    first, second = np.array([1.0, 3.0]), np.array([2.0, 6.0])
    assert ratio_of_ratios(((first, 2.0), (second, -1.0)))[0] == pytest.approx(1.0)
    value, low, _ = ratio_of_sums(np.zeros(3), np.ones(3))
    assert (value, np.isnan(low)) == (0.0, True)
    assert np.isnan(ratio_of_sums(np.ones(3), np.zeros(3))[0])


def test_the_area_counts_pairs_and_its_variance_is_delongs() -> None:
    random = np.random.default_rng(2)
    values, marked = random.integers(0, 12, 60) / 3, random.random(60) < 0.4
    first, others = values[marked], values[~marked]
    wins = (first[:, None] > others) + 0.5 * (first[:, None] == others)
    value, low, high = separation(values, marked)
    assert value == pytest.approx(wins.mean())
    variance = wins.mean(1).var(ddof=1) / len(first) + wins.mean(0).var(ddof=1) / len(others)
    assert (high - low) / 2 == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6)
    assert np.isnan(separation(values, np.zeros(60, dtype=bool))[0])
