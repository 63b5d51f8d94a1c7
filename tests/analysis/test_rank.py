"""`rank` and `uncertainty` against definitions in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flipguard.analysis import MemberScores
from flipguard.analysis.rank import MOST_RANKS, flip_ranks, rank, shares_at
from flipguard.analysis.uncertainty import uncertainty, uncertainty_measures
from flipguard.errors import InputError
from tests.analysis.made_up import made_up, members


def plain_rank(old: list[float], new: list[float], target: int) -> int:
    if old.index(max(old)) != target or new.index(max(new)) == target:
        return 0
    wrong = new.index(max(new))
    return sorted(old, reverse=True).index(old[wrong]) + 1


def test_ranks_are_places_in_the_sorted_scores() -> None:
    groups, targets = made_up(samples=300, classes=6)
    for old, new in zip(*groups.values(), strict=True):
        expected = [
            plain_rank(a, b, t)
            for a, b, t in zip(old.tolist(), new.tolist(), targets.tolist(), strict=True)
        ]
        assert flip_ranks(old, new, targets).tolist() == expected
        assert any(expected)


def test_ranks_of_pairs_and_of_ensembles_are_counted() -> None:
    groups, targets = made_up(samples=300, classes=6)
    found = rank(MemberScores.from_arrays(groups, targets=targets), top=3).data
    ranks = [flip_ranks(a, b, targets) for a, b in zip(*groups.values(), strict=True)]
    flat = np.concatenate([one[one > 0] for one in ranks])
    assert (found.models.pairs, found.models.flips) == (6, len(flat))
    assert found.models.counts[:6] == tuple(np.bincount(flat, minlength=7)[1:])
    assert (found.models.counts[0], len(found.models.counts)) == (0, MOST_RANKS)
    assert found.models.mean == pytest.approx(flat.mean())
    assert found.models.second == pytest.approx((flat == 2).mean())
    assert found.models.in_top == pytest.approx((flat <= 3).mean())
    old, new = (one.astype(float).mean(axis=0) for one in groups.values())
    together = flip_ranks(old, new, targets)
    assert found.ensembles is not None
    assert found.ensembles.flips == (together > 0).sum()
    assert found.chance == 4.0


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_the_displacement_in_the_top_classes_is_equation_5(exponent: float) -> None:
    groups, targets = made_up(samples=40, classes=6)
    data = rank(MemberScores.from_arrays(groups, targets=targets), exponent=exponent).data
    old, new = (one.astype(float).mean(axis=0) for one in groups.values())
    for flipped, shares in (
        (False, data.displacement.all_samples),
        (True, data.displacement.flipped),
    ):
        kept = [
            row
            for row in range(40)
            if not flipped or (flip_ranks(old, new, targets)[row] if flipped else True)
        ]
        for size, share in zip(data.displacement.classes, shares, strict=True):
            inside = total = 0.0
            for row in kept:
                top = sorted(range(6), key=lambda k: -old[row, k])[:size]
                inside += sum(abs(new[row, k] - old[row, k]) ** exponent for k in top)
                total += sum(abs(new[row, k] - old[row, k]) ** exponent for k in range(6))
            assert share == pytest.approx(inside / total)


def test_numbers_of_classes_that_are_shown() -> None:
    assert shares_at(4, 2) == (1, 2, 3, 4)
    assert shares_at(1_000, 10) == (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000)


def test_models_without_flips_have_no_ranks() -> None:
    groups, targets = made_up(models=1)
    same = {"old": groups["old"], "new": groups["old"]}
    found = rank(MemberScores.from_arrays(same, targets=targets))
    assert found.data.ensembles is None
    assert found.sentence.startswith("There are no negative flips")
    assert math.isnan(found.claims[0].value)
    assert found.claims[0].holds is None
    assert "null" in found.to_json()


def test_refusals() -> None:
    groups, targets = made_up()
    one = MemberScores.from_arrays({"old": groups["old"]}, targets=targets)
    for analysis in (rank, uncertainty):
        with pytest.raises(InputError, match="there are no new ones; add `new=`"):
            analysis(one)
    both = MemberScores.from_arrays(groups, targets=targets)
    with pytest.raises(InputError, match="Expected `top=` to be between 1 and 4 classes"):
        rank(both, top=5)
    with pytest.raises(InputError, match="Expected `exponent=` to be above 0, but got 0"):
        rank(both, exponent=0.0)


# -- uncertainty ---------------------------------------------------------------------------------


def plain_softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(one - max(logits)) for one in logits]
    return [one / sum(weights) for one in weights]


def test_measures_of_uncertainty() -> None:
    groups, targets = made_up(samples=25)
    analyzed = MemberScores.from_arrays(groups, targets=targets)
    found = uncertainty_measures(analyzed, groups["old"])
    for row in range(25):
        shares = np.array([plain_softmax(one) for one in groups["old"][:, row].tolist()])
        mean = shares.mean(axis=0)
        assert found["entropy"][row] == pytest.approx(-sum(p * math.log(p) for p in mean))
        first, second = sorted(mean)[::-1][:2]
        assert found["margin"][row] == pytest.approx(1 - (first - second))
        assert found["disagreement"][row] == pytest.approx(shares[:, mean.argmax()].std())


def test_a_probability_of_zero_has_no_entropy() -> None:
    shares = np.array([[[1.0, 0.0], [0.5, 0.5]]])
    sure = MemberScores.from_arrays({"old": shares}, targets=[0, 0], kind="probabilities")
    found = uncertainty_measures(sure, shares)
    assert found["entropy"].tolist() == pytest.approx([0.0, math.log(2)])
    assert "disagreement" not in found


def test_flips_before_and_after_a_treatment() -> None:
    groups, targets = made_up(samples=400, models=3)
    old, new = (one.astype(float).mean(axis=0) for one in groups.values())
    given = {**groups, "treated": (0.6 * groups["old"] + 0.4 * groups["new"])}
    found = uncertainty(MemberScores.from_arrays(given, targets=targets))
    right = old.argmax(1) == targets
    before = right & (new.argmax(1) != targets)
    after = right & ((0.6 * old + 0.4 * new).argmax(1) != targets)
    entropy = found.data.measures[0]
    assert entropy.treated is not None
    assert (entropy.untreated.flips, entropy.treated.flips) == (before.sum(), after.sum())
    assert sum(entropy.others) + sum(entropy.untreated.counts) == 400
    assert sum(entropy.treated.counts) == after.sum()
    values = uncertainty_measures(MemberScores.from_arrays(given, targets=targets), groups["old"])[
        "entropy"
    ]
    pairs = values[before][:, None] > values[~before]
    assert entropy.untreated.auc == pytest.approx(pairs.mean())
    unsure = values > np.median(values)
    assert entropy.untreated.rate_unsure == pytest.approx(before[unsure].mean())
    left = [after[half].sum() / before[half].sum() for half in (unsure, ~unsure)]
    assert found.claims[2].value == pytest.approx(left[0] - left[1])
    assert found.sentence.endswith(f"{after.sum()} samples flip, without it {before.sum()}.")


def test_a_judge_measures_in_place_of_the_old_models() -> None:
    groups, targets = made_up(samples=50)
    given = {"old": groups["old"][:1], "new": groups["new"][:1], "judge": groups["old"]}
    found = uncertainty(MemberScores.from_arrays(given, targets=targets)).data
    assert [one.name for one in found.measures] == ["entropy", "margin", "disagreement"]
    assert len(found.judge) == 6
    alone = uncertainty(members(models=1, samples=50)).data
    assert [one.name for one in alone.measures] == ["entropy", "margin"]
