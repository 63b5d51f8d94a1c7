"""How many further samples decide, and quantiles of a binomial, against a peer."""

import numpy as np
import pytest
from scipy.stats import binom

from flipguard.statistics import binomial_quantile, samples_to_decide, skewed, wilson


@pytest.mark.parametrize("guess", [1.0, 50.0, 1e9, np.nan, np.inf])
def test_it_is_the_first_that_decides(guess: float) -> None:
    needed = np.array([1, 2, 3, 17, 123, 200, 10**13])
    found = samples_to_decide(lambda i, m: m >= needed[i], np.full(len(needed), guess))
    assert found[:-1].tolist() == needed[:-1].tolist()
    assert np.isnan(found[-1])


def test_beyond_two_hundred_it_is_near_the_first() -> None:
    (found,) = samples_to_decide(lambda i, m: m >= 123_456, [10.0])
    assert 123_456 <= found <= 123_456 * 1.005


def test_against_counting_one_by_one() -> None:
    def decided(i: object, m: np.ndarray) -> np.ndarray:
        total = 150 + np.asarray(m)
        return np.asarray(wilson(0.0 * total, total, confidence=0.95)[1] <= 0.02)

    (found,) = samples_to_decide(decided, [5.0])
    assert found == next(m for m in range(1, 1000) if decided(None, np.array([m])).all())


def test_binomial_quantiles_are_a_peers() -> None:
    rng = np.random.default_rng(0)
    n, p = rng.integers(1, 3000, 500), rng.choice([0, 1e-4, 0.003, 0.05, 0.47, 0.97, 1], 500)
    level = rng.choice([0.1, 0.5, 0.9, 0.99], 500)
    assert binomial_quantile(level, n, p).tolist() == binom.ppf(level, n, p).tolist()
    assert binomial_quantile(0.9, 0, 0.3) == 0
    # So large that the quantile is approximate.
    assert binomial_quantile(0.9, 10**8, 0.02) == pytest.approx(
        binom.ppf(0.9, 10**8, 0.02), rel=1e-6
    )


@pytest.mark.parametrize(
    ("needed", "guess", "most"),
    [
        (3, 1.0, 5),
        (150, 135.0, 9),
        (150, 450.0, 10),
        (123_456, 1.0, 18),
        (123_456, 135_000.0, 10),
        (10**9, 3e9, 11),
    ],
)
def test_it_asks_few_times(needed: int, guess: float, most: int) -> None:
    asked = []

    def decided(i: object, m: np.ndarray) -> np.ndarray:
        asked.append(m)
        return np.asarray(m >= needed)

    samples_to_decide(decided, [guess])
    assert len(asked) <= most


def test_a_count_that_is_reached_with_exactly_this_chance() -> None:
    n = np.array([1, 3, 5, 99, 2001])
    np.testing.assert_array_equal(binomial_quantile(0.5, n, 0.5), (n - 1) / 2)
    np.testing.assert_array_equal(binomial_quantile([0.25, 0.75], 2, 0.5), [0, 1])


def test_many_samples_have_a_peers_quantiles_as_well() -> None:
    n = np.arange(10**6, 10**6 + 300 * 977, 977)
    for rate in (0.02, 0.5, 0.98):
        for level in (0.01, 0.5, 0.99):
            away = binomial_quantile(level, n, rate) - binom.ppf(level, n, rate)
            assert np.abs(away).max() <= 1
            assert np.abs(away).mean() < 0.35


def test_a_skewed_quantile_by_hand() -> None:
    assert skewed(2.0, 0.6) == pytest.approx(2.0 + (4 - 1) * 0.6 / 6)
    assert skewed(-2.0, 0.6) == pytest.approx(-2.0 + (4 - 1) * 0.6 / 6)
    assert skewed(2.0, 50.0) == pytest.approx(2.0 + (4 - 1) * 2 / 6)
    assert skewed(2.0, -50.0) == pytest.approx(2.0 - (4 - 1) * 2 / 6)
