"""Precision, recall, F1 of each class and the gain of the mean F1: peers, counts, rules, intervals.

Their definitions in plain Python are tested with those of all metrics.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard import Comparison, Policy, Predictions, check, compare
from flipguard.errors import PolicyError
from flipguard.metrics import METRICS
from tests.cases import measured
from tests.commands import flipguard
from tests.conftest import Saver
from tests.effort import tries

CLASSES = ("a", "b", "c", "d")
LABELS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "b", "c", None]), *[st.sampled_from(CLASSES)] * 2),
    min_size=1,
    max_size=25,
)


def sides(rows: list[tuple[str | None, str, str]], **more: Any) -> dict[str, Predictions]:
    target, old, new = zip(*rows, strict=True)
    return {
        name: Predictions.from_arrays(
            ids=list(range(len(rows))), targets=list(target), labels=list(labels), **more
        )
        for name, labels in (("old", old), ("new", new))
    }


def by_target(rows: list[tuple[str | None, str, str]]) -> Comparison:
    return measured(**sides(rows), by=["target"])


def drawn(n: int = 600, seed: int = 0) -> list[tuple[str | None, str, str]]:
    rng = np.random.default_rng(seed)
    target = rng.choice(list("abc"), n, p=[0.7, 0.25, 0.05])
    old, new = (
        np.where(rng.random(n) < error, rng.choice(list(CLASSES), n), target)
        for error in (0.3, 0.2)
    )
    return list(zip(target.tolist(), old.tolist(), new.tolist(), strict=True))


def test_the_numbers_of_scikit_learn() -> None:
    from sklearn import metrics

    rows = drawn()
    target, *labels = zip(*rows, strict=True)
    result, means = by_target(rows), []
    for side, predicted in zip(("old", "new"), labels, strict=True):
        names = ["a", "b", "c"]
        given = metrics.precision_recall_fscore_support(target, predicted, labels=names)
        for name, values in zip(("precision", "recall", "f1"), given, strict=False):
            found = [result.by["target"][c][f"{name}_{side}"].value for c in names]
            assert found == pytest.approx(values)
        means.append(metrics.f1_score(target, predicted, labels=names, average="macro"))
    assert result["macro_f1_gain"].value == pytest.approx(means[1] - means[0], abs=1e-9)


def test_a_class_that_is_never_predicted_has_no_precision() -> None:
    result = by_target([("a", "a", "a"), ("b", "a", "b")])
    group = result.by["target"]["b"]
    assert math.isnan(group["precision_old"].value)
    assert group["precision_old"].n == 0
    assert group.as_json()["metrics"]["precision_old"]["value"] is None
    assert group["f1_old"].value == group["recall_old"].value == 0
    assert result["macro_f1_gain"].value == pytest.approx((1 - 2 / 3 + 1) / 2)


def test_only_groups_by_target_have_classes() -> None:
    rows = drawn(50)
    side = sides(rows, slices={"site": ["x", "y"] * 25})
    result = compare(**side, by=["site", "target"])
    assert result["macro_f1_gain"].is_defined
    assert not result["recall_new"].is_defined
    assert not result.by["site"]["x"]["recall_new"].is_defined
    assert not result.by["site"]["x"]["macro_f1_gain"].is_defined
    assert not result.by["target"]["a"]["macro_f1_gain"].is_defined
    assert not compare(**side)["macro_f1_gain"].is_defined
    # A class that is predicted and never a target is no group.
    assert {group.name for group in result.by["target"]} == {"a", "b", "c"}


def test_the_target_by_another_name_and_beside_a_cluster_of_the_same_column() -> None:
    rows = drawn(60)
    target, old, new = map(list, zip(*rows, strict=True))
    import polars as pl

    tables = [pl.DataFrame({"id": range(60), "gold": target, "label": y}) for y in (old, new)]
    result = compare(old=tables[0], new=tables[1], target="gold", by="gold")
    expected = by_target(rows)
    assert result["macro_f1_gain"] == expected["macro_f1_gain"]
    again = compare(old=tables[0], new=tables[1], target="gold", by="gold", cluster="gold")
    assert not again["macro_f1_gain"].is_defined


# -- counts that add -----------------------------------------------------------------------------


@settings(max_examples=tries(40))
@given(LABELS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows: list[Any], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = by_target(rows), by_target(shuffled)
    assert one.counts == other.counts
    for group in one.by["target"]:
        assert group.counts == other.by["target"][group.name].counts


@settings(max_examples=tries(40))
@given(LABELS, LABELS)
def test_false_labels_of_parts_add_to_those_of_the_whole(first: Any, second: Any) -> None:
    whole, parts = by_target([*first, *second]), [by_target(first), by_target(second)]
    for group in whole.by["target"]:
        found = [g.counts for part in parts for g in part.by["target"] if g.name == group.name]
        if len(found) == 2:
            assert found[0] + found[1] == group.counts


def test_sums_over_classes_do_not_add() -> None:
    counts = by_target(drawn(30)).counts
    with pytest.raises(ValueError, match="their own comparison"):
        counts + counts


@settings(max_examples=tries(30))
@given(LABELS)
def test_the_variance_is_that_of_the_linear_change_with_each_row(rows: list[Any]) -> None:
    kept = [row for row in rows if row[0] is not None]
    if len(kept) < 2:
        return
    result, n = by_target(rows), len(kept)

    def gain(weights: list[float]) -> float:
        return weighted_gain(kept, weights)

    base = gain([1.0] * n)
    assert result["macro_f1_gain"].value == pytest.approx(base, abs=1e-8)
    step = 1e-6
    moves = []
    for i in range(n):
        up, down = ([1.0 + sign * step * (j == i) for j in range(n)] for sign in (1, -1))
        moves.append((gain(up) - gain(down)) / (2 * step))
    variance = METRICS["macro_f1_gain"].kind.variance(result.counts)
    assert float(variance) * (n - 1) / n == pytest.approx(sum(m * m for m in moves), abs=1e-7)


def weighted_gain(rows: list[Any], weights: list[float]) -> float:
    gains = []
    for name in {target for target, _, _ in rows}:
        f1 = []
        for side in (1, 2):
            hits = sum(w for r, w in zip(rows, weights, strict=True) if r[0] == r[side] == name)
            said = sum(w for r, w in zip(rows, weights, strict=True) if r[side] == name)
            real = sum(w for r, w in zip(rows, weights, strict=True) if r[0] == name)
            f1.append(2 * hits / (said + real))
        gains.append(f1[1] - f1[0])
    return sum(gains) / len(gains)


# -- intervals -----------------------------------------------------------------------------------


def test_models_that_agree_have_an_interval_with_a_width() -> None:
    result = by_target([("a", "a", "a")] * 50 + [("b", "b", "b")] * 50)
    gain = result["macro_f1_gain"]
    assert gain.value == 0
    # As wide as the score interval of a rate of 0 in 100 samples, to both sides.
    assert (gain.low, gain.high) == pytest.approx((-0.0384, 0.0384), abs=1e-4)


def test_f1_has_the_ends_of_the_share_that_it_follows_from() -> None:
    result = by_target(drawn())
    for group in result.by["target"]:
        counts = group.counts
        false = float(counts["false_both"] + counts["false_new"])
        hits, whole = float(counts.new_right), float(counts.labelled) + false
        from flipguard.statistics import wilson

        low, high = (2 * j / (1 + j) for j in wilson(hits, whole, confidence=0.95))
        estimate = group["f1_new"]
        assert (estimate.low, estimate.high) == pytest.approx((low, high))
        assert estimate.low < estimate.value < estimate.high
        assert estimate.n == whole


def test_clusters_widen_the_intervals() -> None:
    rows = [row for row in drawn(60) for _ in range(10)]
    alone = by_target(rows)
    side = sides(rows, slices={"user": np.repeat(np.arange(60), 10)})
    together = compare(**side, by="target", cluster="user")
    pairs = [(alone.whole, together.whole, "macro_f1_gain")]
    for name in ("precision_new", "recall_new", "f1_new"):
        pairs.append((alone.by["target"]["a"], together.by["target"]["a"], name))
    for one, other, name in pairs:
        assert one[name].value == pytest.approx(other[name].value)
        width, wider = (e[name].high - e[name].low for e in (one, other))
        assert wider > 1.3 * width, name


def test_a_cluster_without_the_class_may_still_predict_it() -> None:
    rows = [("a", "a", "a"), ("b", "a", "b"), ("b", "b", "a")]
    side = sides(rows, slices={"user": [1, 2, 3]})
    group = compare(**side, by="target", cluster="user").by["target"]["a"]
    assert group["precision_old"].value == group["precision_new"].value == 1 / 2
    assert group["precision_new"].n == 2
    assert group.n == 1


# -- rules ---------------------------------------------------------------------------------------


def rule(**given: Any) -> Policy:
    return Policy.from_dict({"rule": [given]})


def test_rules_on_classes() -> None:
    rows = drawn(3_000)
    result = compare(**sides(rows))
    found = check(result, rule(metric="macro_f1_gain", min=-0.01))
    assert found.verdict == "pass"
    assert found.comparison["macro_f1_gain"].is_defined
    assert check(result, rule(metric="macro_f1_gain", min=0.5)).verdict == "fail"
    recall = {"metric": "recall_new", "by": "target", "only": ["a"]}
    assert check(result, rule(**recall, min=0.7)).verdict == "pass"
    assert check(result, rule(**recall, min=0.95)).verdict == "fail"
    precision = {"metric": "precision_new", "by": "target", "correction": "holm"}
    assert check(result, rule(**precision, min=0.9)).verdict == "fail"


@pytest.mark.parametrize("metric", ["precision_new", "f1_new", "recall_new"])
def test_an_inconclusive_rule_says_how_many_samples_decide(metric: str) -> None:
    result = by_target(drawn(400))
    value = result.by["target"]["b"][metric].value
    policy = rule(metric=metric, by="target", only=["b"], min=value - 0.01)
    (judged,) = check(result, policy).rules[0].judgements
    assert judged.verdict == "inconclusive"
    assert judged.samples_needed_even is not None
    assert 0 < judged.samples_needed_even < judged.samples_needed_90


@pytest.mark.parametrize("cluster", [None, "user"])
def test_an_inconclusive_gain_says_how_many_samples_decide(cluster: str | None) -> None:
    side = sides(drawn(400), slices={"user": np.arange(400) // 2})
    result = compare(**side, by="target", cluster=cluster)
    policy = rule(metric="macro_f1_gain", min=result["macro_f1_gain"].value - 0.01)
    (judged,) = check(result, policy).rules[0].judgements
    assert judged.verdict == "inconclusive"
    assert judged.samples_needed_even is not None
    # The interval of that many samples is about as narrow as the distance to the limit.
    more = judged.samples_needed_even / 400 + 1
    low, _ = result.whole.sample.interval(METRICS["macro_f1_gain"], 0.95, scale=more)
    assert low == pytest.approx(result["macro_f1_gain"].value - 0.01, abs=0.001)


REFUSED = [
    ({"metric": "recall_new", "min": 0.5}, "per class and not per sample; group the rule by the"),
    ({"metric": "recall_new", "by": "site", "min": 0.5}, "per class and not per group of 'site'"),
    (
        {"metric": "macro_f1_gain", "by": "site", "min": 0.5},
        "per comparison and not per group of 'site'; remove `by`",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED)
def test_rules_that_cannot_be_judged(given: dict[str, Any], sentence: str) -> None:
    side = sides(drawn(50), slices={"site": ["x", "y"] * 25})
    with pytest.raises(PolicyError, match=sentence.replace("(", r"\(")):
        check(compare(**side, by=["site", "target"]), rule(**given))


def test_graded_rows_have_no_classes() -> None:
    graded = Predictions.from_arrays(correct=[1, 0, 1], labels=["a", "b", "a"])
    with pytest.raises(PolicyError, match="macro_f1_gain"):
        check(compare(old=graded, new=graded), rule(metric="macro_f1_gain", min=0.0))


def test_the_commands(save: Saver, tmp_path: Path) -> None:
    side = sides(drawn(500))
    files = [save(f"{name}.csv", one.frame.collect().to_dict()) for name, one in side.items()]
    ran = flipguard("compare", *files, "--by", "target", "--all")
    assert "Each class: old → new" in ran.out
    assert "macro_f1_gain" in ran.out
    found = json.loads(flipguard("compare", *files, "--by", "target", "--json", "-").out)
    assert 0 < found["by"]["target"]["b"]["metrics"]["precision_new"]["value"] < 1
    policy = tmp_path / "gate.toml"
    policy.write_text('[[rule]]\nmetric = "macro_f1_gain"\nmin = -0.1\n')
    ran = flipguard("gate", *files, "--policy", policy)
    assert ran.code == 0, ran.out
    assert "macro_f1_gain" in ran.out
