"""P values, against SciPy and statsmodels."""

from unittest import mock

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as peer_mcnemar
from statsmodels.stats.multitest import multipletests

from flipguard.statistics import (
    benjamini_hochberg,
    holm,
    mcnemar,
    p_value_by_inversion,
    paired_difference,
    wilson,
)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_that_of_scipy_and_statsmodels(negative: int, positive: int) -> None:
    found = mcnemar(negative, positive)
    if negative + positive == 0:
        assert found == 1.0
        return
    exact = scipy.stats.binomtest(negative, negative + positive, 0.5).pvalue
    peer = peer_mcnemar([[0, negative], [positive, 0]], exact=True).pvalue
    assert found == pytest.approx(exact, rel=1e-9)
    assert found == pytest.approx(peer, rel=1e-9)
    assert found == mcnemar(positive, negative)


def test_mcnemar_of_huge_counts() -> None:
    negative, positive = 10**9, 10**9 + 100_000
    # By the normal approximation with continuity correction, which is exact enough out there.
    z = (positive - negative - 1) / np.sqrt(positive + negative)
    assert mcnemar(negative, positive) == pytest.approx(2 * scipy.stats.norm.sf(z), rel=1e-5)
    assert mcnemar(10**9, 10**9) == 1.0
    assert mcnemar(0, 10**9) == 0.0


def test_mcnemar_of_arrays_and_nan() -> None:
    found = mcnemar([0, 2, np.nan], [0, 10, 1])
    np.testing.assert_allclose(found, [1.0, scipy.stats.binomtest(2, 12).pvalue, np.nan])


p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@pytest.mark.parametrize(("ours", "name"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
@settings(deadline=None, max_examples=50)
@given(p_values=p_lists, data=st.data())
def test_corrections_are_those_of_statsmodels(ours, name, p_values, data) -> None:  # type: ignore[no-untyped-def]
    # It clears up after every call, for longer than all else here takes.
    with mock.patch("gc.collect"):
        expected = multipletests(p_values, method=name)[1]
    np.testing.assert_allclose(ours(p_values), expected, atol=1e-300)
    # A group that could not be judged passes through and does not count.
    at = data.draw(st.integers(0, len(p_values)))
    found = ours(np.insert(p_values, at, np.nan))
    assert np.isnan(found[at])
    np.testing.assert_allclose(np.delete(found, at), expected, atol=1e-300)
    order = data.draw(st.permutations(range(len(p_values))))
    np.testing.assert_allclose(ours(np.array(p_values)[order]), expected[order], atol=1e-300)


def test_corrections_of_nothing() -> None:
    assert holm([]).shape == (0,)
    assert np.isnan(benjamini_hochberg([np.nan])).all()


def test_inversion_of_a_rate_is_the_larger_of_the_score_test_and_the_exact_one() -> None:
    successes = np.array([600, 540, 520])
    found = p_value_by_inversion(
        lambda c: wilson(successes, 1000, confidence=c), limit=0.5, side="above"
    )
    z = (successes / 1000 - 0.5) / np.sqrt(0.25 / 1000)
    exact = 2 * scipy.stats.binom.sf(successes - 1, 1000, 0.5)
    np.testing.assert_allclose(found, np.maximum(2 * scipy.stats.norm.sf(z), exact), rtol=1e-4)


def test_inversion_below_mirrors_above() -> None:
    above = p_value_by_inversion(
        lambda c: paired_difference(30, 12, 500, confidence=c), limit=0.01, side="above"
    )
    below = p_value_by_inversion(
        lambda c: paired_difference(12, 30, 500, confidence=c), limit=-0.01, side="below"
    )
    assert 0 < above < 1
    assert above == pytest.approx(below, rel=1e-9)


def test_inversion_at_the_ends() -> None:
    def at(successes: int):  # type: ignore[no-untyped-def]
        return lambda c: wilson(successes, 100, confidence=c)

    assert p_value_by_inversion(at(40), limit=0.5, side="above") == 1.0
    assert p_value_by_inversion(at(50), limit=0.5, side="above") == 1.0
    assert p_value_by_inversion(at(100), limit=0.01, side="above") == 1e-12
    assert np.isnan(
        p_value_by_inversion(lambda c: wilson(0, 0, confidence=c), limit=0.5, side="below")
    )
    with pytest.raises(
        ValueError, match="Expected `side` to be 'above' or 'below', but got 'over'"
    ):
        p_value_by_inversion(at(40), limit=0.5, side="over")  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [lambda c: c > 0.5, lambda c: c < 0.5])
def test_an_interval_that_is_undefined_at_some_levels_has_no_p_value(known) -> None:  # type: ignore[no-untyped-def]
    def interval(confidence):  # type: ignore[no-untyped-def]
        low, high = wilson(60, 100, confidence=confidence)
        return np.where(known(confidence), low, np.nan), np.where(known(confidence), high, np.nan)

    assert np.isnan(p_value_by_inversion(interval, limit=0.5, side="above"))


def test_p_values_of_a_table_keep_its_shape() -> None:
    table = np.array([[0.01, np.nan, 0.04], [0.03, 0.9, 0.005]])
    expected = multipletests([0.01, 0.04, 0.03, 0.9, 0.005], method="holm")[1]
    found = holm(table)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found[~np.isnan(table)], expected)
    assert np.isnan(found[0, 1])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 200), st.floats(0.01, 0.99), st.floats(0.001, 0.5))
def test_interval_excludes_the_limit_exactly_when_p_is_below_alpha(
    successes: int, limit: float, alpha: float
) -> None:
    p = p_value_by_inversion(
        lambda c: wilson(successes, 200, confidence=c), limit=limit, side="below"
    )
    if abs(p - alpha) < 1e-6:
        return
    assert (p < alpha) == (wilson(successes, 200, confidence=1 - alpha)[1] < limit)
