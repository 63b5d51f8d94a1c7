"""Corrections for many rules and groups, worked out by hand and mirrored."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flipguard import METRICS, Policy, compare
from flipguard.corrections import failing_alphas, rule_alphas
from tests.designed import Flips, judged, update

NAN = math.nan


@pytest.mark.parametrize(
    ("adjusted", "shares"),
    [
        ([[0.01], [0.5], [0.9]], [1 / 3, 1 / 2, 1 / 2]),
        ([[0.02], [0.031], [0.9]], [1 / 3, 1 / 2, 1 / 2]),
        ([[0.02], [0.03], [0.9]], [1 / 3, 1 / 2, 1]),
        ([[0.021], [0.03], [0.9]], [1 / 3, 1 / 3, 1 / 3]),
        ([[0.001], [0.001]], [1 / 2, 1]),
        ([[0.001, NAN], [NAN], [0.9]], [1 / 2, 1, 1]),
        # A rule one of whose groups holds keeps its share.
        ([[0.001, 0.5], [0.01], [0.02, 0.02]], [1 / 1, 1 / 3, 1 / 2]),
        ([[], [0.5]], [1, 1]),
        ([[NAN], []], [1, 1]),
    ],
)
def test_holm_over_rules_by_hand(adjusted: list[list[float]], shares: list[float]) -> None:
    found = rule_alphas([np.array(p) for p in adjusted], "holm", 0.06)
    assert found == pytest.approx([0.06 * share for share in shares])


@pytest.mark.parametrize(
    ("adjusted", "share"),
    [
        ([[0.03], [0.2], [0.5]], 1 / 3),
        ([[0.01], [0.04], [0.5]], 2 / 3),
        ([[0.01], [0.041], [0.5]], 1 / 3),
        ([[0.5, 0.06], [0.06], [0.05]], 1),
        ([[0.9], [0.8]], 1 / 2),
        ([[NAN], [0.9], [0.8, 0.01], []], 1 / 2),
        ([[NAN], [0.05], [0.8, 0.01], []], 1),
    ],
)
def test_benjamini_and_hochberg_over_rules_by_hand(
    adjusted: list[list[float]], share: float
) -> None:
    found = rule_alphas([np.array(p) for p in adjusted], "benjamini-hochberg", 0.06)
    assert found == pytest.approx([0.06 * share] * len(adjusted))


PAIRS = [(0, 0), (5, 30), (12, 0), (25, 1), (30, 2), (33, 2), (36, 1), (60, 10)]


def of_pairs(*, mirrored: bool) -> dict[str, Flips]:
    """Groups of 400; mirrored, what was fixed is broken."""
    return {
        f"{broken}-{fixed}": Flips(
            both_right=200,
            negative=fixed if mirrored else broken,
            positive=broken if mirrored else fixed,
            wrong_same=200 - broken - fixed,
        )
        for broken, fixed in PAIRS
    }


@pytest.mark.parametrize("correction", ["none", "holm", "benjamini-hochberg"])
def test_a_minimum_is_corrected_as_a_maximum_mirrored(correction: str) -> None:
    rule = {"metric": "accuracy_gain", "by": "group", "correction": correction}
    least = judged(of_pairs(mirrored=False), {**rule, "min": -0.03}).rules[0].judgements
    most = judged(of_pairs(mirrored=True), {**rule, "min": -1, "max": 0.03}).rules[0].judgements
    assert [j.group for j in least] == [j.group for j in most]
    assert [j.verdict for j in least] == [j.verdict for j in most]
    assert {j.verdict for j in least} == {"pass", "fail", "inconclusive"}
    for one, two in zip(least, most, strict=True):
        assert (one.low, one.high) == pytest.approx((-two.high, -two.low), abs=1e-9)


@pytest.mark.parametrize(
    "limits", [{"min": -0.03}, {"min": -1, "max": 0.03}, {"min": -0.03, "max": 0.02}]
)
def test_groups_share_alpha_as_their_p_values_say(limits: dict[str, float]) -> None:
    rule = {"metric": "accuracy_gain", "by": "group", "correction": "holm", **limits}
    policy = Policy.from_dict({"rule": [rule], "confidence": 0.9})
    groups = of_pairs(mirrored="max" in limits)
    old, new = update(groups)
    listed = list(compare(old=old, new=new, by=["group"]).by["group"])
    (alphas,) = failing_alphas(policy, [listed])
    metric = METRICS["accuracy_gain"]
    p_values = []
    for group in listed:
        value = group["accuracy_gain"].value
        p = 1.0
        if value > limits.get("max", math.inf):
            p = group.sample.p_value(metric, limits["max"], "above")
        if value < limits.get("min", -math.inf):
            p = group.sample.p_value(metric, limits["min"], "below")
        p_values.append(p)
    order = np.argsort(p_values, kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = len(order) - np.arange(len(order))
    running = dict(
        zip(order, np.maximum.accumulate(np.array(p_values)[order] * ranks[order]), strict=True)
    )
    for i, (p, alpha) in enumerate(zip(p_values, alphas, strict=True)):
        share = p / running[i] if running[i] < 1 else 1 / len(listed)
        assert alpha == pytest.approx(0.1 * share)
    assert sum(p < 1 for p in p_values) >= 4


def test_a_value_that_is_judged_alone_needs_no_correction() -> None:
    rules = [
        {"metric": "negative_flip_rate", "max": 0.02, "judge": "point"},
        {"metric": "negative_flip_rate", "max": 0.02},
    ]
    policy = Policy.from_dict({"rule": rules, "correction": "holm", "confidence": 0.9})
    old, new = update(Flips(both_right=100, negative=30, wrong_same=100))
    whole = compare(old=old, new=new).whole
    assert failing_alphas(policy, [[whole], [whole]]) == [
        pytest.approx([0.1]),
        pytest.approx([0.1]),
    ]
    assert failing_alphas(policy, [[whole], []]) == [pytest.approx([0.1]), []]
