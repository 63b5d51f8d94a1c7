"""Means of scores as the product shows and judges them: ranges, clusters, gates, engines."""

import json
import math

import numpy as np
import pytest

from flipguard import Policy, Predictions, check, compare, statistics
from flipguard.counts import FlipCounts, StatisticsLayout, bin_name, unit
from flipguard.estimates import p_values_beyond
from flipguard.metric_kinds import MeanKind
from flipguard.metrics import METRICS
from flipguard.render.words import estimate_interval

LARGEST = {"logit_displacement": math.inf, "kl_divergence": -math.log(1e-12)}
MEANS = [name for name, metric in METRICS.items() if isinstance(metric.kind, MeanKind)]


def scores(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, classes)).astype(np.float32)


def verdict(result, **rule) -> object:
    return check(result, Policy.from_dict({"rule": [rule]})).rules[0].judgements[0]


@pytest.mark.parametrize("classes", [2, 10, 1_000])
def test_100_unchanged_rows_pass_no_small_limit(classes: int) -> None:
    logits = scores(100, classes)
    side = Predictions.from_arrays(logits=logits)
    result = compare(old=side, new=Predictions.from_arrays(logits=logits.copy()))
    found = result["surrogate_churn"]
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(classes / 2 * (1 - 0.025 ** (1 / 100)))
    assert verdict(result, metric="surrogate_churn", max=0.01).verdict == "inconclusive"
    assert verdict(result, metric="logit_displacement", max=0.01).verdict == "inconclusive"


def test_a_displacement_has_no_upper_end_and_the_gate_says_why() -> None:
    old, new = scores(200, 10), scores(200, 10, seed=1)
    result = compare(
        old=Predictions.from_arrays(logits=old), new=Predictions.from_arrays(logits=new)
    )
    found = result["logit_displacement"]
    assert found.high == math.inf
    assert 3.0 < found.low < found.value < 5.0
    assert estimate_interval("logit_displacement", found).endswith(" or more")
    assert json.loads(result.to_json())["metrics"]["logit_displacement"]["high"] is None
    judged = verdict(result, metric="logit_displacement", max=10.0)
    assert judged.verdict == "inconclusive"
    assert judged.reason == (
        "one more sample may have a logit_displacement of any size, so no number of samples shows "
        'that the mean is at most 10; judge = "point" judges the value alone'
    )
    assert verdict(result, metric="logit_displacement", max=10.0, judge="point").verdict == "pass"
    assert verdict(result, metric="logit_displacement", max=1.0).verdict == "fail"
    failed = check(result, Policy.from_dict({"rule": [{"metric": "logit_displacement", "max": 1}]}))
    assert json.loads(failed.to_json())["rules"][0]["high"] is None


def test_scores_move_by_at_most_half_the_number_of_classes() -> None:
    # Old has confidence 1 in a class that only it knows; new has score 1 for each of the others.
    names = ["a", "b", "c", "d"]
    old = Predictions.from_arrays(probabilities=np.array([[1.0, 0, 0, 0]]), class_names=names)
    new = Predictions.from_arrays(
        probabilities=np.array([[0.25, 0.25, 0.25, 0.25]]), class_names=[*names[1:], "e"]
    )
    result = compare(old=old, new=new)
    assert result["surrogate_churn"].value == 2.5
    shape = METRICS["surrogate_churn"].kind
    assert isinstance(shape, MeanKind)
    assert result.counts["classes"] == 5
    assert shape.reach(result.counts) == 2.5
    assert result["surrogate_churn"].high == pytest.approx(2.5)


@pytest.mark.parametrize("by", [None, "group"])
@pytest.mark.parametrize("cluster", [None, "user"])
def test_ends_are_inside_the_range_and_contain_the_value(
    by: str | None, cluster: str | None
) -> None:
    old, new = scores(120, 4), scores(120, 4, seed=1)
    new[:110] = old[:110]
    extra = {"group": np.arange(120) % 3, "user": np.arange(120) // 6}
    result = compare(
        old=Predictions.from_arrays(logits=old, slices=extra),
        new=Predictions.from_arrays(logits=new),
        by=by,
        cluster=cluster,
    )
    for group in [result.whole, *result.by.get("group", [])]:
        for name in MEANS:
            found = group[name]
            assert 0.0 <= found.low <= found.value <= found.high
            assert found.high <= LARGEST.get(name, 2.0)


def test_with_clusters_a_row_that_moves_further_never_lowers_the_upper_end() -> None:
    users = np.arange(60) // 6
    ends = []
    for moved in range(0, 60, 5):
        result = compare(
            old=Predictions.from_arrays(probabilities=certain(60), slices={"user": users}),
            new=Predictions.from_arrays(probabilities=certain(60, moved)),
            cluster="user",
        )
        ends.append(result["surrogate_churn"].high)
    assert np.all(np.diff(ends) >= -1e-12)
    # 10 clusters in which no row moved say little about an eleventh.
    assert ends[0] > 0.2


def certain(rows: int, moved: int = 0) -> np.ndarray:
    """Probabilities of three classes: sure of the first, and after `moved` rows undecided."""
    found = np.tile([1.0, 0.0, 0.0], (rows, 1))
    found[:moved] = 1 / 3
    return found


def test_the_sums_of_shards_give_the_interval_of_the_whole() -> None:
    old, new = scores(90, 5), scores(90, 5, seed=1)

    def counts(rows: slice) -> FlipCounts:
        a, b = (Predictions.from_arrays(logits=logits[rows]) for logits in (old, new))
        return compare(old=a, new=b).counts

    parts = counts(slice(0, 7)) + counts(slice(7, 90))
    assert parts == counts(slice(0, 90))
    assert parts["classes"] == 90 * 5


def test_an_always_sure_model_without_errors_so_far_is_not_shown_to_be_calibrated() -> None:
    targets = [0] * 100
    side = Predictions.from_arrays(probabilities=certain(100), targets=targets)
    result = compare(old=side, new=side)
    found = result["expected_calibration_error_new"]
    assert found.value == 0.0
    assert found.high > 1 - 0.025 ** (1 / 100)
    rule = {"metric": "expected_calibration_error_new", "max": 0.01}
    assert verdict(result, **rule).verdict == "inconclusive"


def sure_in_clusters(wrong: list[int], size: int = 20) -> dict[str, object]:
    """Probabilities of two classes, sure to 0.9, with this many wrong rows per cluster."""
    target = np.concatenate([np.arange(size) < k for k in wrong]).astype(int)
    return {
        "probabilities": np.tile([0.9, 0.1], (len(target), 1)),
        "targets": target,
        "slices": {"user": np.repeat(np.arange(len(wrong)), size)},
    }


def test_the_calibration_error_of_clusters_allows_for_one_more_cluster() -> None:
    wrong, size = [0, 0, 1, 6, 20, 0, 3, 0, 2, 18], 20
    side = Predictions.from_arrays(**sure_in_clusters(wrong, size))  # type: ignore[arg-type]
    name = "expected_calibration_error_new"
    rows, found = (compare(old=side, new=side, cluster=c)[name] for c in (None, "user"))
    # All rows are in one bin, in which the model is right too seldom.
    gaps = [0.9 * size - (size - k) for k in wrong]
    assert found.value == pytest.approx(sum(gaps) / (len(wrong) * size))
    one_more = [
        statistics.upper_end(
            [sign * gap for gap in gaps], [size] * 10, [size] * 10, [1] * 10, confidence=0.95
        )
        for sign in (1, -1)
    ]
    assert found.high == pytest.approx(max(rows.high, *one_more))
    assert found.low == pytest.approx(max(min(rows.low, -one_more[1]), 0.0))
    assert found.low < rows.low
    assert found.high > rows.high + 0.1


def test_an_error_of_clusters_near_0_may_have_the_other_sign() -> None:
    # Nine clusters are always right at a confidence of 0.9, and the tenth is always wrong but once.
    side = Predictions.from_arrays(**sure_in_clusters([0] * 9 + [19]))  # type: ignore[arg-type]
    found = compare(old=side, new=side, cluster="user")["expected_calibration_error_new"]
    gaps = np.array([20 * 0.1] * 9 + [1 - 20 * 0.9])
    seen, other = (
        statistics.upper_end(sign * gaps, [20] * 10, [20] * 10, [1] * 10, confidence=0.95)
        for sign in (1, -1)
    )
    assert found.value == pytest.approx(gaps.sum() / 200)
    # With one more cluster like the tenth the model would be right too seldom.
    assert found.high == pytest.approx(other)
    assert other > seen


@pytest.mark.parametrize("correlation", [0.2, 0.5])
def test_the_calibration_error_of_clusters_is_covered(correlation: float) -> None:
    rng = np.random.default_rng(3)
    metric, draws, clusters, size = METRICS["expected_calibration_error_new"], 400, 10, 100
    layout = StatisticsLayout(has_target=True, scored=frozenset({"new"}))
    scale = (1 - correlation) / correlation
    right = rng.binomial(size, rng.beta(0.75 * scale, 0.25 * scale, (draws, clusters)))
    tables = []
    for counts in right:
        values = np.zeros((clusters, len(layout.names)))
        for part, total in (
            ("n", np.full(clusters, size)),
            ("right", counts),
            ("confidence", np.full(clusters, 0.9 * size)),
            ("gap_squared", counts * 0.1**2 + (size - counts) * 0.9**2),
        ):
            column = bin_name("new", 13, part)
            values[:, layout.columns[column]] = np.rint(total / unit(column))
        tables.append(FlipCounts(layout, values))
    truth = 0.15
    for side in ("above", "below"):
        missed = p_values_beyond(metric, tables, truth, side) <= 0.05
        # 4 %, and two standard errors of 400 draws.
        assert missed.mean() <= 0.06
