"""Means and prediction intervals, against a plain definition, exact limits and the textbook."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flipguard.statistics import bounded_mean, mean_variance, prediction_interval

# Thousandths: values nearer to each other than that drown in the rounding of a sum of squares.
thousandths = st.integers(-100_000, 100_000).map(lambda value: value / 1_000)
numbers = st.lists(thousandths, min_size=2, max_size=30)
shares = st.lists(st.integers(0, 1_000).map(lambda value: value / 1_000), min_size=1, max_size=30)


def interval(rows: np.ndarray, **options) -> tuple[float, float]:
    return bounded_mean(rows.sum(), (rows**2).sum(), len(rows), **options)


def plain_low(rows: list[float], confidence: float) -> float:
    """Lower end of a sample of rows of 0 or one step with the same mean and variance."""
    step = sum(x * x for x in rows) / sum(rows)
    moved = sum(rows) / step
    chance = (1 - confidence) / 2
    return step * float(scipy.stats.beta.ppf(chance, moved, len(rows) - moved + 1))


@settings(deadline=None)
@given(shares, st.sampled_from([0.5, 0.95, 0.999]))
def test_the_lower_end_is_that_of_the_plain_definition(
    rows: list[float], confidence: float
) -> None:
    assume(sum(rows) > 0.0)
    low, _ = interval(5.0 * np.array(rows), most=5.0, confidence=confidence)
    assert low == pytest.approx(5.0 * plain_low(rows, confidence))


@settings(deadline=None)
@given(shares)
def test_the_upper_end_is_the_highest_of_all_means_with_these_squares(rows: list[float]) -> None:
    assume(0.0 < sum(rows) < len(rows))
    x, n = np.array(rows), len(rows)
    squares = (x**2).sum()
    _, high = interval(x, most=1.0, confidence=0.9)
    means = np.linspace(squares, x.sum(), 2_001) / n
    step = (1 - 2 * means + squares / n) / (1 - means)
    moved = np.minimum(n * (1 - means) / step, n)
    ends = 1 - step * scipy.stats.beta.ppf(0.05, moved, n - moved + 1)
    assert high == pytest.approx(ends.max(), rel=1e-6)
    assert high >= ends.max() - 1e-9


def test_rows_of_0_and_1_have_the_exact_interval() -> None:
    hits = np.arange(21.0)
    low, high = bounded_mean(3 * hits, 9 * hits, 20, most=3.0, confidence=0.9, guard_low=True)
    expected = scipy.stats.beta.ppf([[0.05], [0.95]], [hits, hits + 1], [21 - hits, 20 - hits])
    np.testing.assert_allclose(low, np.where(hits == 0, 0, 3 * expected[0]), atol=1e-12)
    np.testing.assert_allclose(high, np.where(hits == 20, 3, 3 * expected[1]))


def test_many_rows_have_fay_and_feuers_lower_end_of_weighted_counts() -> None:
    # 7 rows of 1 and 2 of 4 among a million.
    total, squares = 7 + 2 * 4, 7 + 2 * 16
    low, _ = bounded_mean(total, squares, 1e6, most=10.0, confidence=0.95)
    expected = scipy.stats.gamma.ppf(0.025, total**2 / squares, scale=squares / total)
    assert 1e6 * low == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("most", [0.5, 5.0, 500.0])
def test_unchanged_rows_do_not_show_that_nothing_moves(most: float) -> None:
    # With half of the error: if one row in 27 moves fully, it is possible to see none in 100.
    low, high = bounded_mean(0.0, 0.0, 100, most=most, confidence=0.95)
    assert low == 0.0
    assert high == pytest.approx(most * (1 - 0.025 ** (1 / 100)))


def test_numbers_without_an_upper_bound_have_a_lower_end_alone() -> None:
    rows = np.random.default_rng(0).exponential(3.0, 50)
    low, high = interval(rows, most=math.inf, confidence=0.95)
    assert high == math.inf
    bounded = interval(rows, most=1e9, confidence=0.95)[0]
    assert low == pytest.approx(bounded, rel=1e-6)
    assert interval(np.zeros(50), most=math.inf, confidence=0.95) == (0.0, math.inf)


@settings(deadline=None, max_examples=200)
@given(shares, st.data(), st.sampled_from([1.0, 500.0]), st.sampled_from([0.8, 0.95, 0.99995]))
def test_a_row_that_rises_never_lowers_a_guarded_end(
    rows: list[float], data: st.DataObject, most: float, confidence: float
) -> None:
    before = most * np.array(rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    after = before.copy()
    after[place] += (most - after[place]) * data.draw(st.floats(0.0, 1.0))
    low, high = interval(before, most=most, confidence=confidence, guard_low=True)
    rose_low, rose_high = interval(after, most=most, confidence=confidence, guard_low=True)
    assert rose_high >= high - 1e-9 * most
    assert rose_low >= low - 1e-9 * most
    assert 0.0 <= low <= before.mean() * (1 + 1e-12)
    assert before.mean() * (1 - 1e-12) <= high <= most


def test_rows_that_grow_more_alike_by_rising_do_not_lower_the_upper_end() -> None:
    # The one low row rises to the level of the others, and the upper end of Student's t falls.
    apart = np.array([0.0] + [0.9] * 99)
    alike = np.full(100, 0.9)
    ends = [interval(x, most=1.0, confidence=0.95)[1] for x in (apart, alike)]
    assert ends[1] >= ends[0]
    assert apart.mean() + 1.98 * apart.std() / 10 > alike.mean()


@pytest.mark.parametrize("n", [5, 20, 100])
def test_corrected_lower_ends_hold_where_all_rows_of_a_small_sample_move(n: int) -> None:
    # In 95 % of cases none of 1,000 groups at their limit may fail by chance.
    moved = np.arange(1.0, n + 1)
    for chance in (0.02, 0.3, 0.6, 0.9):
        for most in (1.0, 5.0, 500.0):
            low, _ = bounded_mean(moved, moved, n, most=most, confidence=1 - 0.05 / 1_000)
            missed = scipy.stats.binom.pmf(moved, n, chance)[low > chance].sum()
            assert missed <= 2.5e-5


@pytest.mark.parametrize("flips", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("most", [5.0, 500.0])
def test_rare_large_values_are_covered(flips: float, most: float) -> None:
    # Student's t covers 40, 86 and 90 % of such draws.
    rng = np.random.default_rng(1)
    moved = rng.random((2_000, 100)) < flips
    rows = np.where(moved, rng.uniform(0.5, 1.5, moved.shape), 0.0)
    low, high = bounded_mean(rows.sum(-1), (rows**2).sum(-1), 100, most=most, confidence=0.95)
    assert np.mean((low <= flips) & (flips <= high)) >= 0.93
    assert (low >= 0).all()


def test_where_rows_scatter_widely_the_interval_is_close_to_students() -> None:
    rows = np.random.default_rng(2).beta(2.0, 2.0, 5_000)
    low, high = interval(rows, most=1.0, confidence=0.95, guard_low=True)
    half = scipy.stats.t.ppf(0.975, 4_999) * rows.std(ddof=1) / math.sqrt(5_000)
    assert high - low == pytest.approx(2 * half, rel=0.05)


def test_design_effect_and_degrees() -> None:
    # Counts are divided by the design effect and the critical value is larger, as for a rate.
    wide = bounded_mean(30.0, 14.0, 100, most=1.0, confidence=0.95, design_effect=2.0)
    np.testing.assert_allclose(wide, bounded_mean(15.0, 7.0, 50, most=1.0, confidence=0.95))
    student = bounded_mean(30.0, 14.0, 100, most=1.0, confidence=0.95, degrees=3)
    tail = scipy.stats.norm.sf(scipy.stats.t.isf(0.025, 3))
    normal = bounded_mean(30.0, 14.0, 100, most=1.0, confidence=1 - 2 * tail)
    np.testing.assert_allclose(student, normal)


def test_no_sample_is_undefined_and_one_says_little() -> None:
    low, high = bounded_mean([0.3, 0.0], [0.09, 0.0], [1, 0], most=1.0, confidence=0.95)
    assert np.isnan([low[1], high[1]]).all()
    assert 0.0 < low[0] < 0.3
    assert 0.9 < high[0] < 1.0
    assert np.isnan(mean_variance(3.0, 9.0, 1))


def test_equal_values_that_fill_the_range_end_there() -> None:
    low, high = bounded_mean(0.1 * 30, 0.01 * 30, 30, most=0.1, confidence=0.95)
    assert high == pytest.approx(0.1)
    assert low == pytest.approx(0.1 * 0.025 ** (1 / 30))


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
