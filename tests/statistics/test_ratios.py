"""The two ratios, against brute-force likelihood, peers and what must hold."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import confint_proportions_2indep

from flipguard.statistics import (
    log_paired_ratio_variance,
    log_relative_negative_flip_rate_variance,
    paired_ratio,
    relative_negative_flip_rate,
)
from flipguard.statistics.seeds import retraining_variance

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


def share_limits(hits: int, n: int, reach: float) -> tuple[float, float]:
    """Clopper and Pearson's limits of a share, from the binomial distribution."""
    if n == 0:
        return 0.0, 1.0
    tail = scipy.stats.norm.sf(reach)
    low = 0.0 if hits == 0 else scipy.stats.beta.ppf(tail, hits, n - hits + 1)
    high = 1.0 if hits == n else scipy.stats.beta.isf(tail, hits + 1, n - hits)
    return float(low), float(high)


@pytest.mark.parametrize(
    "cells", [(900, 50, 20, 30), (180, 8, 9, 3), (970, 10, 0, 20), (90, 4, 6, 0), (95, 0, 5, 0)]
)
def test_ratio_ends_are_extremes_over_two_independent_shares(cells: tuple[int, ...]) -> None:
    rest, control, new, both = cells
    found = []
    for angle in np.linspace(0, np.pi / 2, 7):
        for side in share_limits(new, new + control, Z * np.cos(angle)):
            for one in share_limits(new + control, new + control + both, Z * np.sin(angle)):
                top, bottom = 1 - one * (1 - side), 1 - one * side
                found.append(top / bottom if bottom > 0 else math.inf)
    ends = paired_ratio([[rest, control], [new, both]], confidence=0.95)
    np.testing.assert_allclose(ends, (min(found), max(found)), rtol=1e-6)


def test_ratio_of_flips_that_never_coincide_has_at_least_the_exact_limits_of_their_odds() -> None:
    low, high = paired_ratio([[9000, 40], [25, 0]], confidence=0.95)
    exact = scipy.stats.binomtest(25, 65).proportion_ci(0.95)
    odds = exact.low / (1 - exact.low), exact.high / (1 - exact.high)
    assert low == pytest.approx(odds[0], rel=1e-6)
    assert high == pytest.approx(odds[1], rel=1e-6)


@pytest.mark.parametrize(
    ("confidence", "cells", "n"),
    [
        # A few flips of new against few of the control, at a level corrected for 100 groups.
        (0.9995, (0.004, 0.018, 0.002), 1000),
        (0.8, (0.005, 0.005, 0.0), 200),
        (0.95, (0.001, 0.001, 0.049), 1000),
        (0.95, (0.03, 0.05, 0.0), 200),
    ],
)
def test_ratio_errs_seldom_on_either_side(
    confidence: float, cells: tuple[float, float, float], n: int
) -> None:
    new, control, both = cells
    draws = np.random.default_rng(0).multinomial(
        n, [1 - sum(cells), control, new, both], size=200_000
    )
    tables, times = np.unique(draws, axis=0, return_counts=True)
    low, high = paired_ratio(tables.reshape(-1, 2, 2), confidence=confidence)
    truth = (new + both) / (control + both)
    allowed = (1 - confidence) / 2
    for missed in (low > truth, high < truth):
        assert times[missed].sum() / 200_000 <= allowed + 3 * math.sqrt(allowed / 200_000)


@pytest.mark.parametrize("confidence", [0.8, 0.9995])
def test_ratio_to_three_controls_errs_seldom_on_either_side(confidence: float) -> None:
    # 0.3 times as many flips as the controls, which never flip the same sample.
    draws = np.random.default_rng(1).multinomial(200, [0.934, 0.06, 0, 0, 0.006], size=100_000)
    tables, times = np.unique(draws, axis=0, return_counts=True)
    joint = np.zeros((len(tables), 2, 4))
    joint.reshape(len(tables), 8)[:, :5] = tables
    low, high = paired_ratio(joint, confidence=confidence)
    allowed = (1 - confidence) / 2
    for missed in (low > 0.3, high < 0.3):
        assert times[missed].sum() / 100_000 <= allowed + 3 * math.sqrt(allowed / 100_000)


def test_ratio_of_copies_of_one_control_is_that_to_the_control() -> None:
    one = paired_ratio([[900, 50], [20, 30]], confidence=0.95)
    three = paired_ratio([[900, 0, 0, 50], [20, 0, 0, 30]], controls=[80] * 3, confidence=0.95)
    np.testing.assert_allclose(three, one, rtol=1e-9)
    low, high = paired_ratio([[900, 0, 0, 0], [0, 0, 0, 90]], confidence=0.95)
    assert 0.9 < low < 1 < high < 1.1


def test_ratio_to_controls_without_any_flip_is_infinite_and_not_undefined() -> None:
    low, high = paired_ratio([[9000, 0], [1000, 0]], confidence=0.95)
    assert 100 < low < 1000
    assert high == math.inf
    low, high = paired_ratio([[9000, 0, 0], [1000, 0, 0]], controls=[0, 0], confidence=0.95)
    assert 10 < low < 1000
    assert high == math.inf


def test_ratio_to_several_controls_allows_for_their_spread() -> None:
    joint = np.array([[9300, 150, 50], [350, 100, 50]])
    alone = paired_ratio(joint, confidence=0.95)
    alike = paired_ratio(joint, controls=[200, 200], confidence=0.95)
    apart = paired_ratio(joint, controls=[150, 250], confidence=0.95)
    assert alike == alone
    assert apart[0] < 0.5 * alone[0]
    assert apart[1] > 2 * alone[1]
    # With one control nothing is known of the spread.
    table = [[900, 50], [20, 30]]
    assert paired_ratio(table, controls=[80], confidence=0.9) == paired_ratio(table, confidence=0.9)


@pytest.mark.parametrize(("k", "truth"), [(2, 1.0), (3, 1.0), (3, 0.5), (5, 1.0)])
def test_ratio_of_recipes_is_covered_though_seeds_differ(k: int, truth: float) -> None:
    rng = np.random.default_rng(k)
    draws, n, variation = 1000, 20_000, 0.1
    rates = 0.05 * np.exp(variation * rng.standard_normal((draws, k + 1)))
    rates[:, 0] *= truth
    patterns = np.array(np.unravel_index(np.arange(2 ** (k + 1)), (2,) * (k + 1))).T
    law = np.prod(np.where(patterns, rates[:, None], 1 - rates[:, None]), axis=-1)
    seen = rng.multinomial(n, law / law.sum(axis=-1, keepdims=True))
    joint = np.zeros((draws, 2, k + 1))
    for i, pattern in enumerate(patterns):
        joint[:, pattern[0], pattern[1:].sum()] += seen[:, i]
    controls = seen @ patterns[:, 1:]

    def covered(low: np.ndarray, high: np.ndarray) -> float:
        return float(np.mean((low <= truth) & (truth <= high)))

    assert covered(*paired_ratio(joint, controls=controls, confidence=0.95)) > 0.93
    assert covered(*paired_ratio(joint, confidence=0.95)) < 0.75


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
    joint = [[[90, 10], [0, 0]], [[90, 0], [0, 0]], [[0, 0], [0, 0]], [[50, 0], [0, 50]]]
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
        assert math.isnan(low) if joint[1].sum() == 0 else 0 < low < high == math.inf
        return
    assert 0 <= low <= ratio_of(joint) * (1 + 1e-12)
    assert high >= ratio_of(joint) * (1 - 1e-12)
    halved = paired_ratio(2 * joint, confidence=0.95, design_effect=2.0)
    np.testing.assert_allclose(halved, (low, high), rtol=1e-9, atol=1e-12)
    twice_low, twice_high = paired_ratio(2 * joint, confidence=0.95)
    assert twice_low >= low * (1 - 1e-9)
    assert twice_high <= high * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 80), min_size=4, max_size=4))
def test_one_control_and_new_may_change_places(cells: list[int]) -> None:
    joint = np.array(cells).reshape(2, 2)
    ends = np.array(paired_ratio(joint, confidence=0.95))
    other_low, other_high = paired_ratio(joint.T, confidence=0.95)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(np.divide(1.0, [other_high, other_low]), ends, rtol=1e-9)


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


# Of three controls how many flag a sample, without and with new; and how often each control does.
OF_RECIPES = ([[9000, 160, 70, 20], [40, 30, 30, 50]], [400, 150, 210])


def test_a_ratio_of_recipes_adds_one_variance_to_both_reaches() -> None:
    table, controls = OF_RECIPES
    value = 150 * 3 / (160 + 30 + 2 * (70 + 30) + 3 * (20 + 50))
    models = np.log(np.array(paired_ratio(table, confidence=0.95)) / value)
    recipes = np.log(np.array(paired_ratio(table, confidence=0.95, controls=controls)) / value)
    more = recipes**2 - models**2
    assert more[0] == pytest.approx(more[1], rel=1e-9)
    assert more[0] > 0.01
    # Controls that vary no more than samples do add nothing, and neither does a single control.
    alike = paired_ratio(table, confidence=0.95, controls=[254, 253, 253])
    np.testing.assert_allclose(alike, paired_ratio(table, confidence=0.95))
    single = [[900, 50], [20, 30]]
    np.testing.assert_allclose(
        paired_ratio(single, confidence=0.95, controls=[80]), paired_ratio(single, confidence=0.95)
    )


def test_a_ratio_of_recipes_without_a_flag_of_new() -> None:
    table = [[9000, 160, 70, 20], [0, 0, 0, 0]]
    low, high = paired_ratio(table, confidence=0.95, controls=[300, 20, 40])
    assert low == 0.0
    assert paired_ratio(table, confidence=0.95)[1] < high < 10


def test_a_ratio_of_recipes_adds_what_the_seeds_add() -> None:
    table, controls = OF_RECIPES
    # Of three controls, two of which are drawn: one of three differs in two pairs of three.
    apart = (190 * 2 + 100 * 2) / 3
    more = retraining_variance(controls, apart, confidence=0.95)
    value = 150 * 3 / (190 + 2 * 100 + 3 * 70)
    high = [paired_ratio(table, confidence=0.95, controls=c)[1] for c in (None, controls)]
    reaches = np.log(np.array(high) / value)
    assert reaches[1] ** 2 - reaches[0] ** 2 == pytest.approx(more, rel=1e-9)
