"""`sizes` against ensembles that are averaged and counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flipguard.analysis import MemberScores
from flipguard.analysis.members import IntArray
from flipguard.analysis.sizes import sizes
from flipguard.analysis.subsets import (
    lead_of,
    orders_of,
    packed,
    weights_of_sizes,
    winners,
)
from flipguard.errors import InputError
from tests.analysis.made_up import made_up, members


def predicted(logits: np.ndarray, models: IntArray) -> np.ndarray:
    """The classes of an ensemble, by the definition."""
    return logits[models].astype(np.float64).mean(axis=0).argmax(axis=1)


@pytest.mark.parametrize("least", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_every_subset_predicts_what_its_mean_does(seed: int, least: int) -> None:
    """Classes that are left out, because they cannot win, never do."""
    logits = made_up(models=5, classes=6, seed=seed)[0]["old"]
    every = [s for size in range(least, 6) for s in itertools.combinations(range(5), size)]
    weights = np.array([[(m in subset) / len(subset) for subset in every] for m in range(5)])
    keep = lead_of(logits).can_win(least)
    assert keep.mean() < (0.95, 0.9, 0.9, 0.7, 0.7)[least - 1]
    found = winners(packed(logits.transpose(1, 2, 0), keep), weights, logits.shape[1])
    for column, subset in enumerate(every):
        assert np.array_equal(found[:, column], predicted(logits, np.array(subset)))


def test_equal_scores_go_to_the_first_class() -> None:
    logits = np.zeros((3, 4, 5))
    logits[:, 1, 2:4] = 1.0
    found = winners(
        packed(logits.transpose(1, 2, 0), lead_of(logits).can_win(1)), np.full((3, 1), 1 / 3), 4
    )
    assert found[:, 0].tolist() == [0, 2, 0, 0]


def test_rates_equal_those_of_ensembles_counted_one_by_one() -> None:
    groups, targets = made_up()
    found = sizes(MemberScores.from_arrays(groups, targets=targets), draws=7, seed=3).data
    random = np.random.default_rng(3)
    orders = [orders_of(6, 7, random) for _ in range(2)]
    for size in range(1, 7):
        counted = []
        for old_order, new_order in zip(*orders, strict=True):
            old = predicted(groups["old"], old_order[:size])
            new = predicted(groups["new"], new_order[:size])
            error = (new != targets).mean()
            flips = ((old == targets) & (new != targets)).mean()
            counted.append((error, flips, (old != new).mean()))
        mean = np.mean(counted, axis=0)
        for expected, curve in zip(
            mean, (found.error_rate_new, found.negative_flip_rate, found.churn), strict=True
        ):
            assert curve.mean[size - 1] == pytest.approx(expected)
        spread = np.quantile([one[1] for one in counted], (0.025, 0.975))
        ends = found.negative_flip_rate.draw_low[size - 1], found.negative_flip_rate.draw_high
        assert (ends[0], ends[1][size - 1]) == pytest.approx(tuple(spread))


def test_many_draws_approach_the_mean_over_all_subsets() -> None:
    groups, targets = made_up(models=4)
    found = sizes(MemberScores.from_arrays(groups, targets=targets), draws=2_000).data
    for size in range(1, 5):
        subsets = [np.array(s) for s in itertools.combinations(range(4), size)]
        right = [
            np.array([predicted(groups[role], s) == targets for s in subsets])
            for role in ("old", "new")
        ]
        # Old and new are drawn independently of each other.
        expected = (right[0].mean(axis=0) * (1 - right[1].mean(axis=0))).mean()
        assert found.negative_flip_rate.mean[size - 1] == pytest.approx(expected, abs=0.003)


def test_two_ensembles_of_one_group_have_no_member_in_common() -> None:
    orders = orders_of(9, 50, np.random.default_rng(0))
    every = np.arange(1, 5)
    old, new = weights_of_sizes(orders, every), weights_of_sizes(orders[:, ::-1], every)
    assert not ((old > 0) & (new > 0)).any()
    assert np.allclose(old.sum(axis=0), 1)
    groups, targets = made_up(models=9)
    found = sizes(MemberScores.from_arrays({"old": groups["old"]}, targets=targets)).data
    assert (found.sizes, found.new) == ((1, 2, 3, 4), ())


@pytest.mark.parametrize("one_group", [False, True])
def test_the_normal_law_predicts_normal_members(one_group: bool) -> None:
    groups, targets = made_up(models=16, samples=1_500, apart=0.8)
    given = {"old": groups["old"]} if one_group else groups
    found = sizes(MemberScores.from_arrays(given, targets=targets)).data
    drawn = dict(zip(found.sizes, found.negative_flip_rate.mean, strict=True))
    for size, rate in zip(found.law.sizes, found.law.negative_flip_rate, strict=True):
        assert rate == pytest.approx(drawn[size], rel=0.2)


def test_a_class_that_the_law_leaves_out_is_far_away() -> None:
    logits = np.random.default_rng(0).normal(size=(8, 50, 6))
    logits[:, :, 2] += 30
    assert lead_of(logits).can_win_by_law(1).sum(axis=1).tolist() == [1] * 50


def test_extrapolation_holds_the_rate_of_larger_ensembles() -> None:
    """From 12 members per group to 48, and to the groups' true means."""
    hits = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        targets = random.integers(0, 4, 1_500)
        mean = random.normal(size=(2, 1_500, 4))
        mean[1] = 0.8 * mean[0] + 0.6 * mean[1]
        mean[:, np.arange(1_500), targets] += 1.5
        logits = mean[:, None] + random.normal(size=(2, 12, 1_500, 4))
        given = {"old": logits[0], "new": logits[1]}
        found = sizes(MemberScores.from_arrays(given, targets=targets), draws=40).data.extrapolated
        assert found.sizes == (24, 48, None)
        old, new = mean.argmax(axis=2)
        truth = ((old == targets) & (new != targets)).mean()
        hits += found.low[-1] <= truth <= found.high[-1]
    assert hits >= 8


def test_claims_hold_where_they_are_true() -> None:
    found = sizes(members(models=16, samples=3_000, classes=6, apart=0.2))
    _, falls, faster, _, _ = found.claims
    assert (falls.holds, faster.holds) == (True, True)
    assert found.sentence.startswith("From single models to ensembles of 16, NFR goes from ")


def test_equal_models_have_flat_curves() -> None:
    groups, targets = made_up()
    same = {role: logits[:1].repeat(4, axis=0) for role, logits in groups.items()}
    found = sizes(MemberScores.from_arrays(same, targets=targets)).data
    assert len(set(found.negative_flip_rate.mean)) == 1
    assert found.law.negative_flip_rate[0] == pytest.approx(found.negative_flip_rate.mean[0])


def test_too_few_models_are_refused() -> None:
    groups, targets = made_up(models=3)
    with pytest.raises(InputError, match="at least 2 models of each group"):
        sizes(MemberScores.from_arrays({"old": groups["old"]}, targets=targets))
    with pytest.raises(InputError, match="Expected `draws=` to be 1 or more, but got 0"):
        sizes(MemberScores.from_arrays(groups, targets=targets), draws=0)
