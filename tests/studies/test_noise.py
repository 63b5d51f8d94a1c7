"""What seeds do to many differences, of which each has few seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.studies.agreement import paired_interval
from flipguard.studies.noise import intervals

shares = st.floats(min_value=-0.5, max_value=0.5).map(lambda x: round(x, 4))
tables = st.integers(2, 6).flatmap(
    lambda seeds: st.lists(st.lists(shares, min_size=seeds, max_size=seeds), max_size=6)
)


def of(differences: list[list[float]]) -> list[tuple[float, float]]:
    return intervals(differences, confidence=0.95)


@settings(max_examples=50, deadline=None)
@given(st.lists(shares, min_size=2, max_size=6))
def test_one_difference_alone_has_students_t(apart: list[float]) -> None:
    assert of([apart])[0] == pytest.approx(paired_interval([0.0] * len(apart), apart), abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(tables)
def test_each_is_about_its_own_mean_and_the_order_does_not_matter(table: list[list[float]]) -> None:
    found = of(table)
    assert [sum(one) / 2 for one in found] == pytest.approx([np.mean(one) for one in table])
    assert of(table[::-1]) == [pytest.approx(one, abs=1e-12) for one in found[::-1]]


@settings(max_examples=50, deadline=None)
@given(tables.filter(lambda table: len(table) > 1))
def test_the_quietest_gets_more_and_the_noisiest_less_than_its_own(
    table: list[list[float]],
) -> None:
    widths = [high - low for low, high in of(table)]
    spread = [float(np.std(one, ddof=1)) for one in table]
    order = np.argsort(spread)
    assert widths[order[0]] <= widths[order[-1]] + 1e-12
    alone = [high - low for low, high in (of([one])[0] for one in table)]
    assert widths[order[-1]] <= alone[order[-1]] + 1e-9


def test_what_has_no_number_has_no_interval_and_says_nothing_of_the_others() -> None:
    known = [[0.01, 0.02, 0.03], [0.05, 0.01, 0.02]]
    found = of([known[0], [0.1, math.nan, 0.2], known[1], [0.3], []])
    assert [found[0], found[2]] == of(known)
    assert all(math.isnan(x) for place in (1, 3, 4) for x in found[place])
    assert of([]) == []


def test_equal_runs_stay_undecided_also_beside_others() -> None:
    low, high = of([[0.0, 0.0, 0.0], [0.1, 0.2, 0.1]])[0]
    assert low < 0 < high


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_no_more_is_decided_by_chance_than_said(seeds: int) -> None:
    """Twelve rows that do not differ, noisy to different degrees, all held against each other."""
    random = np.random.default_rng(0)
    first, second = np.triu_indices(12, 1)
    decided = asked = 0
    for _ in range(200):
        noise = random.uniform(0.5, 2.0, size=(12, 1))
        rows = noise * random.normal(size=(12, seeds)) + random.normal(size=(1, seeds))
        found = np.array(of(list(rows[second] - rows[first])))
        decided += int(((found[:, 0] > 0) | (found[:, 1] < 0)).sum())
        asked += len(found)
    assert 0.01 < decided / asked < 0.06


def test_that_too_much_worth_would_be_noticed() -> None:
    """The test above can fail: with a worth beyond all bounds, noisy rows are decided by chance."""
    random = np.random.default_rng(0)
    first, second = np.triu_indices(12, 1)
    decided = []
    for _ in range(200):
        rows = np.array([[0.3]] * 10 + [[3.0]] * 2) * random.normal(size=(12, 3))
        found = np.array(intervals(list(rows[second] - rows[first]), confidence=0.95, worth=1e9))
        decided.append(((found[:, 0] > 0) | (found[:, 1] < 0))[-1])
    assert np.mean(decided) > 0.15
