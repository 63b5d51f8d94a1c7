"""The two ratios, against brute-force likelihood, peers and what must hold."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from statsmodels.stats.proportion import confint_proportions_2indep

from flipguard.statistics import (
    log_paired_ratio_variance,
    log_relative_negative_flip_rate_variance,
    paired_ratio,
    relative_negative_flip_rate,
)
from flipguard.statistics.ratios import PSEUDO_FLAGS

Z = scipy.stats.norm.ppf(0.975)


def relative(negative: float, old_right: float, new_wrong: float, n: float) -> float:
    return negative / n / ((old_right / n) * (new_wrong / n))


def test_relative_agrees_with_the_delta_method_on_many_samples() -> None:
    counts = (20_000, 900_000, 80_000, 1_000_000)
    half = Z * math.sqrt(log_relative_negative_flip_rate_variance(*counts))
    value = relative(*counts)
    low, high = relative_negative_flip_rate(*counts, confidence=0.95)
    np.testing.assert_allclose(
        [low, high], [value * math.exp(-half), value * math.exp(half)], rtol=1e-3
    )


def test_relative_is_the_risk_ratio_where_the_share_that_old_got_right_is_sure() -> None:
    # Old is hardly ever wrong and often enough: the share is 0.99 almost exactly.
    n, old_right, negative, wrong = 10**6, 990_000, 900, 60
    ends = confint_proportions_2indep(
        negative, old_right, wrong, n - old_right, compare="ratio", method="score"
    )
    expected = [1 / (0.99 + 0.01 / rho) for rho in ends]
    low, high = relative_negative_flip_rate(
        negative, old_right, negative + wrong, n, confidence=0.95
    )
    # The exact limits of both rates reach a few percent farther than the score's.
    width = expected[1] - expected[0]
    assert expected[0] - 0.05 * width <= low <= expected[0]
    assert expected[1] <= high <= expected[1] + 0.05 * width


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.9995])
@pytest.mark.parametrize(
    ("error_old", "error_new", "truth"), [(0.01, 0.07, 1.0), (0.05, 0.04, 0.8), (0.2, 0.18, 0.3)]
)
def test_relative_errs_seldom_on_either_side(
    error_old: float, error_new: float, truth: float, confidence: float
) -> None:
    negative = truth * (1 - error_old) * error_new
    both = error_new - negative
    chances = [1 - error_old - negative, negative, error_old - both, both]
    draws = np.random.default_rng(0).multinomial(100, chances, size=20_000)
    tables, times = np.unique(draws, axis=0, return_counts=True)
    right, flips, _, wrong = tables.T
    low, high = relative_negative_flip_rate(
        flips, right + flips, flips + wrong, 100, confidence=confidence
    )
    allowed = (1 - confidence) / 2
    leeway = 3 * math.sqrt(allowed / 20_000)
    for missed in (low > truth, high < truth):
        assert times[missed].sum() / 20_000 <= 1.3 * allowed + leeway


@pytest.mark.parametrize(
    ("n", "error_old", "error_new", "truth"),
    [(30, 0.1, 0.08, 0.05), (50, 0.05, 0.025, 0.05), (200, 0.02, 0.016, 0.1)],
)
def test_relative_of_a_thousand_groups_in_which_old_was_seldom_wrong(
    n: int, error_old: float, error_new: float, truth: float
) -> None:
    """Over all tables: no more than 5 % of the families of 1,000 groups have a false alarm."""
    negative = truth * (1 - error_old) * error_new
    both = error_new - negative
    lost, kept = negative / (1 - error_old), both / error_old
    old_right, broken, wrong = np.meshgrid(
        np.arange(n - 25, n + 1), np.arange(12), np.arange(25), indexing="ij"
    )
    chance = (
        scipy.stats.binom.pmf(old_right, n, 1 - error_old)
        * scipy.stats.binom.pmf(broken, old_right, lost)
        * scipy.stats.binom.pmf(wrong, n - old_right, kept)
    )
    likely = chance > 1e-10
    old_right, broken, wrong, chance = (x[likely] for x in (old_right, broken, wrong, chance))
    low, _ = relative_negative_flip_rate(
        broken, old_right, broken + wrong, n, confidence=1 - 0.05 / 1000
    )
    assert 1000 * chance[low > truth].sum() <= 0.05


def test_relative_from_one_error_of_old_says_little_at_a_high_confidence() -> None:
    low, high = relative_negative_flip_rate(7, 99, 7, 100, confidence=0.9995)
    assert low < 0.45
    assert 1.0 < high < 1.2


def test_relative_edges() -> None:
    low, high = relative_negative_flip_rate(
        [0, 0, 0, 3, 5], [900, 0, 900, 900, 1000], [50, 50, 0, 3, 5], 1000, confidence=0.95
    )
    # No flip: from 0 up to something. Nothing right before, or nothing wrong now: undefined.
    assert low[0] == 0 < high[0] < 1
    assert np.isnan(low[1:3]).all()
    assert np.isnan(high[1:3]).all()
    # All of new's errors are flips; old was never wrong.
    assert low[3] < relative(3, 900, 3, 1000) <= high[3] < math.inf
    assert low[4] <= 1 <= high[4] < math.inf


@settings(deadline=None, max_examples=150)
@given(st.tuples(*[st.integers(0, 400)] * 4), st.sampled_from([0.8, 0.95, 0.99]))
def test_relative_properties(cells: tuple[int, int, int, int], confidence: float) -> None:
    right, negative, _positive, wrong = cells
    n, old_right, new_wrong = sum(cells), right + negative, negative + wrong
    low, high = relative_negative_flip_rate(
        negative, old_right, new_wrong, n, confidence=confidence
    )
    if old_right == 0 or new_wrong == 0:
        assert math.isnan(low)
        assert math.isnan(high)
        return
    assert 0 <= low <= relative(negative, old_right, new_wrong, n) * (1 + 1e-12)
    assert high >= relative(negative, old_right, new_wrong, n) * (1 - 1e-12)
    doubled = [2 * x for x in (negative, old_right, new_wrong, n)]
    halved = relative_negative_flip_rate(*doubled, confidence=confidence, design_effect=2.0)
    np.testing.assert_allclose(halved, (low, high), rtol=1e-9, atol=1e-12)
    twice_low, twice_high = relative_negative_flip_rate(*doubled, confidence=confidence)
    assert twice_high - twice_low <= high - low + 1e-12


def test_relative_variance_is_that_of_a_large_simulation() -> None:
    rng = np.random.default_rng(0)
    draws = rng.multinomial(20_000, [0.85, 0.03, 0.05, 0.07], size=20_000)
    right, negative, _, wrong = draws.T
    values = np.log(relative(negative, right + negative, negative + wrong, 20_000))
    found = log_relative_negative_flip_rate_variance(600, 17_600, 2000, 20_000)
    assert found == pytest.approx(values.var(), rel=0.04)


# ------------------------------------------------------------------ ratio to the controls


def ratio_of(joint: np.ndarray) -> float:
    new = joint[1].sum()
    controls = (joint.sum(axis=0) * np.linspace(0, 1, joint.shape[1])).sum()
    return float(new / controls)


def squared_score(joint: np.ndarray, ratio: float) -> float:
    """Tang's score: the likeliest table with this ratio, found by a general optimiser."""
    k = joint.shape[1] - 1
    contrast = (np.array([[0.0], [1.0]]) - ratio * np.linspace(0, 1, k + 1)).ravel()
    pseudo = np.concatenate(
        [[0], np.full(k, PSEUDO_FLAGS / k), np.full(k + 1, PSEUDO_FLAGS / (k + 1))]
    )
    counts = joint.ravel() + pseudo
    counts = counts / counts.sum()
    start = np.log(counts)
    found = minimize(
        lambda x: -(counts * x).sum(),
        start,
        jac=lambda x: -counts,
        method="SLSQP",
        constraints=[
            {"type": "eq", "fun": lambda x: np.exp(x).sum() - 1, "jac": lambda x: np.exp(x)},
            {
                "type": "eq",
                "fun": lambda x: (np.exp(x) * contrast).sum(),
                "jac": lambda x: np.exp(x) * contrast,
            },
        ],
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    assert found.success
    n = joint.sum()
    seen = (joint.ravel() * contrast).sum() / n
    return float(seen**2 / ((np.exp(found.x) * contrast**2).sum() / n))


@pytest.mark.parametrize(
    "joint",
    [
        [[900, 50], [20, 30]],
        [[180, 8], [9, 3]],
        [[150, 20, 8, 2], [6, 5, 4, 5]],
        [[400, 10, 0, 4], [12, 3, 2, 1]],
    ],
)
def test_ratio_limits_solve_the_score_equation(joint: list[list[int]]) -> None:
    for limit in paired_ratio(joint, confidence=0.95):
        assert squared_score(np.array(joint, dtype=float), float(limit)) == pytest.approx(
            Z**2, rel=1e-3
        )


def test_ratio_agrees_with_the_delta_method_on_many_samples() -> None:
    joint = np.array([[880, 40, 15, 5], [20, 10, 15, 15]]) * 10_000
    half = Z * math.sqrt(log_paired_ratio_variance(joint))
    value = ratio_of(joint)
    np.testing.assert_allclose(
        paired_ratio(joint, confidence=0.95),
        [value * math.exp(-half), value * math.exp(half)],
        rtol=1e-3,
    )


def test_ratio_edges() -> None:
    joint = [[[90, 10], [0, 0]], [[90, 0], [10, 0]], [[0, 0], [0, 0]], [[50, 0], [0, 50]]]
    low, high = paired_ratio(joint, confidence=0.95)
    assert low[0] == 0 < high[0] < 1  # new is never flagged
    assert np.isnan(low[1:3]).all()
    assert np.isnan(high[1:3]).all()
    assert 0.9 < low[3] < 1 < high[3] < 1.1  # the same flags


def test_no_groups_give_no_intervals() -> None:
    assert paired_ratio(np.zeros((0, 2, 3)), confidence=0.95)[0].shape == (0,)
    assert relative_negative_flip_rate([], [], [], [], confidence=0.95)[1].shape == (0,)


def test_a_table_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected `joint` to be \(\.\.\., 2, k \+ 1\)"):
        paired_ratio([1, 2, 3], confidence=0.95)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 4).flatmap(
        lambda k: st.lists(st.integers(0, 60), min_size=2 * k + 2, max_size=2 * k + 2)
    ),
    st.integers(0, 2000),
)
def test_ratio_properties(cells: list[int], rest: int) -> None:
    joint = np.array(cells, dtype=float).reshape(2, -1)
    joint[0, 0] += rest
    low, high = paired_ratio(joint, confidence=0.95)
    if joint[:, 1:].sum() == 0:
        assert math.isnan(low)
        assert math.isnan(high)
        return
    assert 0 <= low <= ratio_of(joint) <= high < math.inf
    halved = paired_ratio(2 * joint, confidence=0.95, design_effect=2.0)
    np.testing.assert_allclose(halved, (low, high), rtol=1e-9, atol=1e-12)
    twice_low, twice_high = paired_ratio(2 * joint, confidence=0.95)
    assert twice_high - twice_low < high - low


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 80), min_size=4, max_size=4))
def test_one_control_and_new_may_change_places(cells: list[int]) -> None:
    joint = np.array(cells).reshape(2, 2)
    # The pseudo-flags lean towards the new side by their share of the corner; hence the tolerance.
    low, high = paired_ratio(joint, confidence=0.95)
    other_low, other_high = paired_ratio(joint.T, confidence=0.95)
    np.testing.assert_allclose([1 / other_high, 1 / other_low], [low, high], rtol=0.05)


def test_groups_are_independent_of_each_other() -> None:
    joint = np.array([[[900, 50], [20, 30]], [[100, 3], [8, 1]]])
    low, high = paired_ratio(joint, confidence=0.9, design_effect=[1.0, 3.0], degrees=[np.inf, 12])
    for i, (effect, degrees) in enumerate([(1.0, math.inf), (3.0, 12)]):
        alone = paired_ratio(joint[i], confidence=0.9, design_effect=effect, degrees=degrees)
        np.testing.assert_allclose((low[i], high[i]), alone, rtol=1e-12)


def test_ratio_variance_is_that_of_a_large_simulation() -> None:
    rng = np.random.default_rng(1)
    chances = np.array([0.88, 0.04, 0.02, 0.02, 0.02, 0.02])
    draws = rng.multinomial(20_000, chances, size=20_000).reshape(-1, 2, 3)
    values = np.log([ratio_of(joint) for joint in draws])
    found = log_paired_ratio_variance((chances * 20_000).reshape(2, 3))
    assert found == pytest.approx(values.var(), rel=0.04)
