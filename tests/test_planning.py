"""Plans for further samples against draws of further samples: rows, clusters and means."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flipguard import METRICS, Comparison, Policy, Predictions, check, compare
from flipguard.counts import FlipCounts
from flipguard.estimates import intervals, widened
from flipguard.gate import Judgement
from flipguard.planning import Question, _further, samples_needed
from tests.designed import Flips, judged

DRAWS = 200
NFR_2 = {"metric": "negative_flip_rate", "max": 0.02}


def of_clusters(clusters: int, rows: int, *, spread: float) -> Comparison:
    """Clusters whose rates of negative flips differ; old is right on all, in two classes."""
    rng = np.random.default_rng(4)
    rate = rng.gamma(1 / spread, spread, clusters) * 0.05
    flips = rng.random((clusters, rows)) < np.minimum(rate, 0.9)[:, np.newaxis]
    wrong = rng.random((clusters, rows)) < 0.1
    target = np.arange(clusters * rows) % 2
    slices = {"user": np.repeat(np.arange(clusters), rows)}
    right = ~wrong.ravel()
    old = Predictions.from_arrays(
        labels=np.where(right, target, 1 - target), targets=target, slices=slices
    )
    new = Predictions.from_arrays(
        labels=np.where(right & ~flips.ravel(), target, 1 - target), targets=target, slices=slices
    )
    return compare(old=old, new=new, cluster="user")


def question(result: Comparison, name: str, **limits: float) -> Question:
    sample = result.whole.sample
    return Question(
        sample=sample,
        value=result[name].value,
        lowest=limits.get("lowest", -math.inf),
        highest=limits.get("highest", math.inf),
        passing=0.95,
        failing=limits.get("failing", 0.95),
    )


def is_decided(ends: Any, asked: Question) -> Any:
    low, high = ends
    return (
        ((asked.lowest <= low) & (high <= asked.highest))
        | (low > asked.highest)
        | (high < asked.lowest)
    )


@pytest.mark.parametrize(("side", "at"), [("highest", 0.6), ("lowest", 0.6), ("highest", -0.6)])
def test_further_clusters_decide_with_their_chance(side: str, at: float) -> None:
    result = of_clusters(60, 20, spread=0.5)
    metric, estimate = METRICS["negative_flip_rate"], result["negative_flip_rate"]
    end = estimate.high if (at > 0) == (side == "highest") else estimate.low
    limit = estimate.value + abs(at) * (end - estimate.value)
    asked = question(result, "negative_flip_rate", **{side: limit})
    ((even, most),) = samples_needed(metric, [asked])
    assert even is not None
    assert most is not None
    table = asked.sample.clusters
    assert table is not None
    rng = np.random.default_rng(7)
    for further, chance in ((even, 0.5), (most, 0.9)):
        more = round(further / 20)
        times = 1.0 + rng.multinomial(more, np.full(60, 1 / 60), size=DRAWS)
        values = FlipCounts(table.layout, times @ table.values)
        rows = intervals(metric, values, 0.95)
        ends = widened(metric, rows, [table] * DRAWS, 0.95, times=list(times))
        assert is_decided(ends, asked).mean() == pytest.approx(chance, abs=0.1)


def test_the_samples_that_a_reason_names_do_decide() -> None:
    rule = {"metric": "negative_flip_rate", "max": 0.02}
    (few,) = judged(Flips(both_right=60, wrong_same=40), rule).rules[0].judgements
    assert few.reason is not None
    assert few.samples_needed_even is not None
    (named,) = re.findall(r"about ([\d,]+) more samples to pass", few.reason)
    count = 100 + int(named.replace(",", ""))
    assert count == 100 + few.samples_needed_even
    assert judged(Flips(both_right=count), rule).verdict == "pass"
    assert judged(Flips(both_right=count - 1), rule).verdict == "inconclusive"


def test_the_clusters_that_a_reason_names_do_decide() -> None:
    def of(clusters: int) -> Comparison:
        target = np.zeros(20 * clusters, dtype=int)
        slices = {"user": np.repeat(np.arange(clusters), 20)}
        one = Predictions.from_arrays(labels=target, targets=target, slices=slices)
        return compare(old=one, new=one, cluster="user")

    rule = {"metric": "negative_flip_rate", "max": 0.1}
    (few,) = check(of(10), Policy.from_dict({"rule": [rule]})).rules[0].judgements
    assert few.reason is not None
    assert few.reason.startswith("10 clusters are too few for a limit of 10 %")
    (named,) = re.findall(r"about ([\d,]+) more clusters to pass", few.reason)
    count = 10 + int(named)
    assert check(of(count), Policy.from_dict({"rule": [rule]})).verdict == "pass"
    assert check(of(count - 1), Policy.from_dict({"rule": [rule]})).verdict == "inconclusive"


def with_positive_flips(sizes: Sequence[int], positive: Sequence[int], **rule: Any) -> Judgement:
    """A judgement where each cluster has this many rows, and this many positive flips."""
    user = np.repeat(np.arange(len(sizes)), sizes)
    rank = np.concatenate([np.arange(size) for size in sizes])
    wrong = rank < np.asarray(positive)[user]
    target = np.zeros(len(user), dtype=int)
    old = Predictions.from_arrays(labels=wrong.astype(int), targets=target, slices={"user": user})
    result = compare(old=old, new=Predictions.from_arrays(labels=target), cluster="user")
    (found,) = check(result, Policy.from_dict({"rule": [rule]})).rules[0].judgements
    return found


def test_where_rows_have_clusters_the_reason_counts_clusters() -> None:
    found = with_positive_flips([30] * 20, [1] * 20, metric="accuracy_gain", min=-0.01)
    named = re.fullmatch(
        r"about (\d+) more clusters to pass, if they are like those seen", str(found.reason)
    )
    assert named is not None
    assert found.samples_needed_even is not None
    assert int(named[1]) == math.ceil(found.samples_needed_even / 30)


def test_large_clusters_that_differ_from_small_ones_are_named_as_the_reason() -> None:
    # The small clusters gain nothing, and together outweigh the large one.
    found = with_positive_flips(
        [1000] + [1] * 100, [100] + [0] * 100, metric="accuracy_gain", min=0.05
    )
    assert found.value > 0.05
    assert found.samples_needed_even is None
    assert str(found.reason).startswith("no number of clusters like those seen decides: large")


@pytest.mark.parametrize("metric", ["logit_displacement", "expected_calibration_error_new"])
def test_further_clusters_add_degrees_of_freedom(metric: str) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((2, 60, 3))
    user = {"user": np.repeat(np.arange(3), 20)}
    target = rng.integers(0, 3, 60)
    old, new = (Predictions.from_arrays(logits=z, targets=target, slices=user) for z in logits)
    result = compare(old=old, new=new, cluster="user", confidence=0.999)
    limit = result[metric].value / 2
    asked = question(result, metric, highest=limit, failing=0.999)
    ((even, most),) = samples_needed(METRICS[metric], [asked])
    assert even is not None
    assert most is not None
    # With Student's t at the two degrees of three clusters it would take a hundred times as many.
    assert 0 < even <= most < 3000


def test_further_rows_of_a_mean_decide_with_their_chance() -> None:
    rng = np.random.default_rng(2)
    n = 300
    target = np.zeros(n, dtype=int)
    scores = rng.dirichlet([8, 1, 1], size=(2, n))
    rows = {"row": np.arange(n)}
    old, new = (
        Predictions.from_arrays(probabilities=s, targets=target, slices=rows) for s in scores
    )
    result = compare(old=old, new=new)
    table = compare(old=old, new=new, cluster="row").whole.sample.clusters
    assert table is not None
    metric, estimate = METRICS["margin_new"], result["margin_new"]
    for side, end in (("highest", estimate.high), ("lowest", estimate.low)):
        limit = estimate.value + 0.5 * (end - estimate.value)
        asked = question(result, "margin_new", **{side: limit})
        ((even, most),) = samples_needed(metric, [asked])
        assert even is not None
        assert most is not None
        for further, chance in ((even, 0.5), (most, 0.9)):
            times = 1.0 + rng.multinomial(further, np.full(n, 1 / n), size=DRAWS)
            ends = intervals(metric, FlipCounts(table.layout, times @ table.values), 0.95)
            assert is_decided(ends, asked).mean() == pytest.approx(chance, abs=0.1)


def test_a_mean_over_clusters_varies_as_its_clusters_do() -> None:
    """Each sample four times: the spread of the mean of further ones is twice as large."""
    rng = np.random.default_rng(5)
    n = 200
    logits = np.repeat(rng.normal(size=(2, n, 3)), 4, axis=1)
    target = np.zeros(4 * n, dtype=int)
    slices = {"user": np.repeat(np.arange(n), 4)}
    old, new = (
        Predictions.from_arrays(logits=side, targets=target, slices=slices) for side in logits
    )
    spreads = []
    for cluster in ("user", None):
        result = compare(old=old, new=new, cluster=cluster)
        ends = [
            _further(METRICS["logit_displacement"], [result.whole.sample]).end(
                "low", np.array([0]), np.array([1000.0]), np.array([miss]), np.array([0.95])
            )
            for miss in (0.1, 0.5)
        ]
        spreads.append(float((ends[1] - ends[0])[0]))
    lengths = np.linalg.norm(logits[1] - logits[0], axis=-1)
    total = 4 * n + 1000
    assert spreads[1] == pytest.approx(
        1.2815515655 * lengths.std() * math.sqrt(1000) / total, rel=0.01
    )
    assert spreads[0] == pytest.approx(2 * spreads[1], rel=0.1)


def test_a_value_on_its_limit_without_an_upper_end() -> None:
    rng = np.random.default_rng(5)
    old, new = (Predictions.from_arrays(logits=rng.normal(size=(50, 3))) for _ in range(2))
    result = compare(old=old, new=new)
    value = result["logit_displacement"].value
    for limit in (value, 2 * value):
        rule = {"metric": "logit_displacement", "max": limit}
        (found,) = check(result, Policy.from_dict({"rule": [rule]})).rules[0].judgements
        assert found.verdict == "inconclusive"
        assert str(found.reason).startswith("one more sample may have a")


def test_too_few_samples_with_the_value_on_the_limit() -> None:
    rule = {"metric": "negative_flip_rate", "max": 0.02}
    (found,) = judged(Flips(both_right=49, negative=1), rule).rules[0].judgements
    assert (found.samples_needed_even, found.samples_needed_90) == (None, None)
    assert str(found.reason).startswith("50 samples are too few for a limit of 2 %: even without")


def test_an_even_chance_is_told_from_a_good_one_where_they_differ() -> None:
    rule = {"metric": "negative_flip_rate", "max": 0.05}
    (found,) = judged(Flips(both_right=49, negative=1), rule).rules[0].judgements
    assert found.samples_needed_even is not None
    assert found.samples_needed_90 is not None
    named = re.search(r"about ([\d,]+) more samples .*, ([\d,]+) for 90 %", str(found.reason))
    assert named is not None
    even, most = (int(text.replace(",", "")) for text in named.groups())
    assert even == pytest.approx(found.samples_needed_even, rel=0.01)
    assert most == pytest.approx(found.samples_needed_90, rel=0.01)


@pytest.mark.parametrize("rule", [{"metric": "accuracy_gain", "min": -0.02}, NFR_2])
def test_without_any_flip_chance_plays_no_part(rule: dict[str, Any]) -> None:
    (found,) = judged(Flips(both_right=100), rule).rules[0].judgements
    assert found.samples_needed_even == found.samples_needed_90
    assert found.samples_needed_even is not None
    needed = 100 + found.samples_needed_even
    assert judged(Flips(both_right=needed), rule).verdict == "pass"
    assert judged(Flips(both_right=needed - 1), rule).verdict == "inconclusive"
