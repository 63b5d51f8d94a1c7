"""`law` against covariances, eigenvalues and norms that numpy computes from the logits."""

from __future__ import annotations

import numpy as np
import pytest

from flipguard.analysis import MemberScores
from flipguard.analysis.displacement_law import (
    GroupSplit,
    all_inner_products,
    gaps,
    law_of,
    squared_distances,
)
from flipguard.analysis.law import law
from flipguard.errors import InputError
from flipguard.statistics.generalized_chi2 import generalized_chi2_cdf
from tests.analysis.made_up import made_up, members


@pytest.mark.parametrize("classes", [4, 30])
@pytest.mark.parametrize("central", [False, True])
def test_the_law_is_that_of_the_members_mean_and_covariance(classes: int, central: bool) -> None:
    """With fewer classes than models, and with more."""
    groups, targets = made_up(models=8, classes=classes, samples=5)
    given = {"old": np.concatenate(list(groups.values()))} if central else groups
    analyzed = MemberScores.from_arrays(given, targets=targets)
    split = GroupSplit.of(analyzed)
    products = all_inner_products(analyzed)
    found = law_of(products, split)
    distances = squared_distances(products, split.pairs())
    for row in range(5):
        old, new = (one[:, row].astype(float) for one in groups.values())
        expected = ((old - new) ** 2).sum(axis=1)
        assert distances[row] == pytest.approx(expected, rel=1e-5)
        if central:
            covariance, mean = 2 * np.cov(np.concatenate([old, new]).T), np.zeros(classes)
        else:
            covariance, mean = np.cov(old.T) + np.cov(new.T), new.mean(0) - old.mean(0)
        values, vectors = np.linalg.eigh(covariance)
        kept = values > 1e-6 * values.max()
        along = vectors.T @ mean
        assert found.spread[row] == pytest.approx(np.trace(covariance), rel=1e-5)
        assert found.squared_shift[row] == pytest.approx(mean @ mean, rel=1e-5)
        # The part of the mean that no deviation reaches is a constant.
        rest = (along[~kept] ** 2).sum()
        assert found.rest[row] == pytest.approx(rest, rel=1e-3, abs=1e-5)
        direct = generalized_chi2_cdf(
            expected - rest, values[kept], along[kept] / np.sqrt(values[kept])
        )
        assert found.cdf(distances)[row] == pytest.approx(direct, abs=1e-3)


def test_the_law_of_drawn_ensembles_allows_for_common_draws() -> None:
    analyzed = members(models=8, samples=3)
    split, products = GroupSplit.of(analyzed), all_inner_products(analyzed)
    one = law_of(products, split).spread
    assert law_of(products, split, 4).spread == pytest.approx(one / 4)
    assert law_of(products, split, 4, drawn=True).spread == pytest.approx(one * (1 / 4 - 1 / 8))


def test_gaps_are_those_of_kolmogorov_and_smirnov() -> None:
    from scipy.stats import kstest

    levels = np.random.default_rng(0).random((20, 9))
    expected = [kstest(row, "uniform").statistic for row in levels]
    assert gaps(levels) == pytest.approx(expected)


def test_normal_members_fit_and_others_do_not() -> None:
    normal = law(members(models=8, samples=60, seed=1))
    assert normal.data.fit.p_value > 0.05
    assert normal.data.fit.gap == pytest.approx(normal.data.fit.expected, abs=0.03)
    other = law(members(models=16, samples=40, heavy=True, seed=1))
    assert other.data.fit.p_value < 0.05
    assert other.data.fit.gap > other.data.fit.expected + 0.05
    assert (other.claims[0].holds, "differs from" in other.sentence) == (False, True)


def test_a_test_of_the_fit_is_rarely_wrong() -> None:
    """Of normal members, about one in twenty is rejected at p < 0.05."""
    found = [law(members(models=5, samples=6, seed=s)).data.fit.p_value for s in range(24)]
    assert sum(p < 0.05 for p in found) <= 4
    assert 0.25 < np.mean(found) < 0.75


def test_the_covariance_falls_as_one_over_m() -> None:
    found = law(members(models=12, samples=100, apart=1.0))
    trace = found.data.trace
    assert trace.slope == pytest.approx(-1.0, abs=0.05)
    assert trace.slope_low <= trace.slope <= trace.slope_high
    assert trace.slope_squared_displacement > -0.9  # the shift stays
    assert found.claims[1].holds is True


@pytest.mark.parametrize(("apart", "differ"), [(0.0, None), (1.5, True)])
def test_a_shift_between_groups_is_found(apart: float, differ: bool | None) -> None:
    found = law(members(models=8, samples=100, apart=apart))
    assert found.claims[2].holds is differ
    # Per sample and class the shift has the variance `apart`.
    assert found.data.shift.squared == pytest.approx(4 * apart**2, abs=1.2)


def test_the_shift_is_without_bias() -> None:
    shares = [law(members(models=4, samples=10, apart=0.0, seed=s)).data.shift for s in range(12)]
    each = np.array([one.share for one in shares])
    assert abs(each.mean()) < 3 * each.std(ddof=1) / np.sqrt(len(each))


def test_the_shown_sample_is_drawn_and_has_a_density() -> None:
    found = law(members(models=16, samples=8), draws=400, sample="7").data.sample
    assert (found.id, found.sizes) == (7, (1, 2, 4, 8))
    assert [sum(counts) for counts in found.counts] == [400] * 4
    areas = np.trapezoid(np.array(found.density), found.at, axis=1)
    assert areas == pytest.approx(1.0, abs=0.05)
    middle = (np.array(found.edges[:-1]) + found.edges[1:]) / 2
    for counts, density in zip(found.counts, found.density, strict=True):
        drawn = (np.array(counts) * middle).sum() / 400
        by_law = np.trapezoid(np.array(density) * found.at, found.at)
        assert drawn == pytest.approx(by_law, rel=0.1)


def test_one_group_is_halved() -> None:
    groups, targets = made_up(models=9)
    found = law(MemberScores.from_arrays({"old": groups["old"]}, targets=targets)).data
    assert (found.central, found.fit.pairs, found.trace.sizes) == (True, 4, (1, 2, 3, 4))


def test_what_has_no_law_is_refused() -> None:
    groups, targets = made_up(models=2)
    with pytest.raises(InputError, match="at least 3 models of each group"):
        law(MemberScores.from_arrays(groups, targets=targets))
    groups, targets = made_up(models=4)
    shares = MemberScores.from_arrays(groups, targets=targets, kind="probabilities")
    with pytest.raises(InputError, match="Expected logits"):
        law(shares)
    with pytest.raises(InputError, match="there is no 'x'; ids are such as 0, 1"):
        law(MemberScores.from_arrays(groups, targets=targets), sample="x")
