"""What seeds do to many differences, of which each has few seeds."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.formulas import evaluated

from flipguard.statistics.seeds import FEWEST, SHARED_DEGREES, difference_intervals

shares = st.floats(min_value=-0.5, max_value=0.5).map(lambda x: round(x, 4))
tables = st.integers(2, 6).flatmap(
    lambda seeds: st.lists(st.lists(shares, min_size=seeds, max_size=seeds), max_size=8)
)


def of(differences: list[list[float]]) -> list[tuple[float, float]]:
    return difference_intervals(differences, confidence=0.95)


@settings(max_examples=50, deadline=None)
@given(st.lists(shares, min_size=2, max_size=6))
def test_one_difference_alone_has_students_t(apart: list[float]) -> None:
    reach = stats.t.ppf(0.975, len(apart) - 1) * np.std(apart, ddof=1) / math.sqrt(len(apart))
    expected = np.mean(apart) - reach, np.mean(apart) + reach
    assert of([apart])[0] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(tables)
def test_each_is_about_its_own_mean_and_the_order_does_not_matter(table: list[list[float]]) -> None:
    found = of(table)
    assert [sum(one) / 2 for one in found] == pytest.approx([np.mean(one) for one in table])
    assert of(table[::-1]) == [pytest.approx(one, abs=1e-12) for one in found[::-1]]


@settings(max_examples=50, deadline=None)
@given(tables)
def test_fewer_than_five_are_judged_each_by_itself(table: list[list[float]]) -> None:
    few = table[: FEWEST - 1]
    assert of(few) == [pytest.approx(of([one])[0], abs=1e-12) for one in few]


@settings(max_examples=50, deadline=None)
@given(tables.filter(lambda table: len(table) >= FEWEST))
def test_the_noisiest_is_never_wider_than_by_itself_and_the_others_come_nearer_to_it(
    table: list[list[float]],
) -> None:
    widths = np.array([high - low for low, high in of(table)])
    alone = np.array([high - low for low, high in (of([one])[0] for one in table)])
    quietest, noisiest = alone.argmin(), alone.argmax()
    assert widths[noisiest] <= alone[noisiest] + 1e-9
    assert widths[quietest] * alone[noisiest] >= widths[noisiest] * alone[quietest] - 1e-12


def test_five_of_which_the_variances_are_known() -> None:
    """Variances 1, 1, 1, 1 and 16 of three seeds, whose mean is 4: (4 + 2 own) / 3."""
    found = of([[-1.0, 0.0, 1.0]] * 4 + [[-4.0, 0.0, 4.0]])
    reach = stats.t.ppf(0.975, 3) / math.sqrt(3)
    assert found[0] == pytest.approx((-reach * math.sqrt(2), reach * math.sqrt(2)))
    assert found[4] == pytest.approx((-reach * math.sqrt(12), reach * math.sqrt(12)))


@pytest.mark.parametrize(("seeds", "shared"), [(2, 1.0), (3, 1.0), (5, 4.0), (10, 0.0)])
def test_the_formula_of_the_page_is_what_is_computed(seeds: int, shared: float) -> None:
    table = np.random.default_rng(seeds).normal(size=(6, seeds))
    found = difference_intervals(table, confidence=0.95, shared_degrees=shared)
    variances = [statistics.variance(row) for row in table.tolist()]
    for row, own, (low, high) in zip(table.tolist(), variances, found, strict=True):
        half = evaluated(
            "docs/results/calibration.md",
            ("variance", "half_width"),
            **{"d": shared, "n": seeds, "m": statistics.mean(variances), "s²": own},
            t=float(stats.t.ppf(0.975, shared + seeds - 1)),
        )
        middle = statistics.mean(row)
        assert (low, high) == pytest.approx((middle - half, middle + half))


def test_with_ten_seeds_one_that_is_wild_does_not_widen_the_others() -> None:
    random = np.random.default_rng(0)
    quiet = random.normal(size=(6, 10))
    wild = 1000 * random.normal(size=(1, 10))
    assert difference_intervals([*quiet, *wild], confidence=0.95)[:6] == difference_intervals(
        quiet, confidence=0.95
    )
    alone = [of([one.tolist()])[0] for one in quiet]
    assert difference_intervals(quiet, confidence=0.95) == [pytest.approx(one) for one in alone]
    nine = difference_intervals([*quiet[:, :9], *wild[:, :9]], confidence=0.95)[0]
    assert np.ptp(nine) > 100


def test_pairs_with_other_seeds_are_not_taken_together() -> None:
    three, four = [[0.1, 0.2, 0.4]] * 5, [[0.1, 0.3, 0.2, 0.9]] * 5
    assert of([*three, *four]) == [*of(three), *of(four)]


def test_what_has_no_number_has_no_interval_and_says_nothing_of_the_others() -> None:
    known = [[0.01, 0.02, 0.03], *[[0.05, 0.01, 0.02]] * 4]
    found = of([[0.1, math.nan, 0.2], [0.3], [], *known])
    assert found[3:] == of(known)
    assert all(math.isnan(x) for one in found[:3] for x in one)
    assert of([]) == []


def test_equal_runs_stay_undecided_also_among_others() -> None:
    low, high = of([[0.0, 0.0, 0.0], *[[0.1, 0.2, 0.1]] * 4])[0]
    assert low < 0 < high


def by_chance(seeds: int, shared_degrees: float) -> tuple[float, float]:
    """Twelve rows that do not differ, noisy to different degrees, all held against each other.

    How many pairs are decided, and how many of those that vary more than the mean.
    """
    random = np.random.default_rng(0)
    first, second = np.triu_indices(12, 1)
    decided, noisy = [], []
    for _ in range(300):
        noise = random.uniform(0.5, 2.0, size=(12, 1))
        rows = noise * random.normal(size=(12, seeds)) + random.normal(size=(1, seeds))
        apart = list(rows[second] - rows[first])
        found = np.array(
            difference_intervals(apart, confidence=0.95, shared_degrees=shared_degrees)
        )
        wrong = (found[:, 0] > 0) | (found[:, 1] < 0)
        true = (noise[first] ** 2 + noise[second] ** 2)[:, 0]
        decided.append(wrong.mean())
        noisy.append(wrong[true > true.mean()].mean())
    return float(np.mean(decided)), float(np.mean(noisy))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_no_more_is_decided_by_chance_than_said(seeds: int) -> None:
    decided, noisy = by_chance(seeds, SHARED_DEGREES)
    assert 0.004 < decided < 0.05
    assert 0.004 < noisy < 0.06


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_and_a_larger_worth_would_decide_too_much(seeds: int) -> None:
    assert by_chance(seeds, shared_degrees=50.0)[1] > 0.06
