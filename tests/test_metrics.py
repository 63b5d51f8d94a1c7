"""Every metric against its plain definition, and the properties that any comparison has."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flipguard
from flipguard import METRICS, Comparison, Estimate, FlipCounts, Predictions, compare
from flipguard.counts import CELLS, UNLABELLED
from tests import plain
from tests.cases import Example, counted, counts_of_groups, examples, measured, tables
from tests.effort import tries

# The names that users rely on.
NAMES = [
    "error_rate_old",
    "error_rate_new",
    "accuracy_gain",
    "negative_flip_rate",
    "positive_flip_rate",
    "flip_rate",
    "relative_negative_flip_rate",
    "negative_flip_impact",
    "churn",
    "churn_correct",
    "churn_incorrect",
    "wrong_to_wrong",
    "surrogate_churn",
    "kl_divergence",
    "backward_trust_compatibility",
    "backward_error_compatibility",
    "expected_calibration_error_old",
    "expected_calibration_error_new",
    "margin_old",
    "margin_new",
    "entropy_old",
    "entropy_new",
    "logit_displacement",
    "mcnemar_p",
    "churn_ratio",
    "negative_flip_ratio",
    "precision_old",
    "recall_old",
    "f1_old",
    "precision_new",
    "recall_new",
    "f1_new",
    "macro_f1_gain",
    "error_share_old",
    "error_share_new",
    "refused_share_old",
    "refused_share_new",
    "unparsed_share_old",
    "unparsed_share_new",
]

# Sums of distances are kept in units of 2^-24, everything else in units of 2^-32.
TOLERANCE = dict.fromkeys(NAMES, 1e-8) | {"logit_displacement": 1e-6}
CALIBRATION = {
    "expected_calibration_error_old": "old",
    "expected_calibration_error_new": "new",
}


def compared(example: Example, **options: Any) -> Comparison:
    old, new, controls = tables(example)
    return measured(old=old, new=new, controls=controls, exponent=example.case.exponent, **options)


def same(value: float, expected: float, tolerance: float) -> bool:
    if math.isnan(expected):
        return math.isnan(value)
    return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)


def assert_plain(estimates: object, case: plain.Case, *, loosen: float = 1.0) -> None:
    for name, definition in plain.METRICS.items():
        side = CALIBRATION.get(name)
        if side and plain.on_a_bin_edge(case, side):
            continue
        value, expected = estimates[name].value, definition(case)
        assert same(value, expected, TOLERANCE[name] * loosen), (name, value, expected)


def test_no_metric_is_forgotten():
    assert list(METRICS) == NAMES
    assert list(plain.METRICS) == NAMES
    assert all(metric.name == name for name, metric in METRICS.items())


@settings(max_examples=tries(300))
@given(examples())
def test_every_metric_is_its_plain_definition(example):
    assert_plain(compared(example), example.case)


@settings(max_examples=tries(120))
@given(examples(kinds=("logits", "probabilities"), most_controls=0))
def test_every_metric_of_scores_is_its_plain_definition(example):
    result = compared(example)
    assert_plain(result, example.case)
    reach = METRICS["surrogate_churn"].kind.reach(result.counts)
    assert reach == plain.largest_surrogate_churn(example.case)
    assert plain.surrogate_churn(example.case) <= reach + 1e-9


@settings(max_examples=tries(80))
@given(examples(kinds=("logits", "probabilities"), most_controls=0, far=True))
def test_logits_far_apart_neither_overflow_nor_vanish(example):
    assert_plain(compared(example), example.case)


@settings(max_examples=tries(80))
@given(
    st.booleans().flatmap(
        lambda far: examples(kinds=("logits", "probabilities"), most_controls=0, far=far)
    )
)
def test_single_precision_scores_are_close_to_the_definition(example):
    old, new, _ = tables(example, dtype=np.float32)
    result = measured(old=old, new=new, exponent=example.case.exponent)
    # A probability such as 1/5 may round across the edge of its bin.
    close = {name for name in NAMES if name not in CALIBRATION}
    for name in close:
        expected = plain.METRICS[name](example.case)
        assert same(result[name].value, expected, 2e-6), (name, result[name].value, expected)


@settings(max_examples=tries(120))
@given(examples())
def test_groups_are_comparisons_of_their_own_and_sum_to_the_whole(example):
    result = compared(example, by=["group", "target"])
    keys = {"group": lambda row: row.groups["group"], "target": lambda row: row.target}
    for column, key in keys.items():
        grouping = result.by[column]
        expected = {key(row) for row in example.case.rows}
        if column == "target":
            # A sample without a target is of no class.
            expected -= {None}
        names = {"(missing)" if value is None else value for value in expected}
        assert {group.name for group in grouping} == names
        for value in expected:
            name = "(missing)" if value is None else value
            part = example.case.where(lambda row, value=value, key=key: key(row) == value)
            assert grouping[name].n == len(part.rows)
            if column == "target":
                part = replace(part, of_class=value, all_rows=example.case.rows)
            assert_plain(grouping[name], part)
        if column != "target" or all(row.target is not None for row in example.case.rows):
            whole = _shared(result.counts)
            assert sum((_shared(g.counts) for g in grouping), _zero(whole)) == whole
    assert_plain(result, replace(example.case, grouped=True))


@settings(max_examples=tries(120))
@given(examples(), st.randoms(use_true_random=False))
def test_any_sharding_and_any_row_order_give_the_same_bits(example, random):
    rows = list(example.case.rows)
    whole = counted(example).whole.counts.total()
    random.shuffle(rows)
    cuts = sorted(random.choices(range(len(rows) + 1), k=random.randrange(4)))
    total = _zero(whole)
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if start < stop:
            shard = replace(example, case=replace(example.case, rows=rows[start:stop]))
            shard = replace(shard, orders=(tuple(range(stop - start)),) * len(example.orders))
            total = total + counted(shard).whole.counts.total()
    assert total == whole


def _shared(counts: FlipCounts) -> FlipCounts:
    """The counts that all samples and the groups of every column have."""
    layout = replace(counts.layout, is_class=False, has_classes=False)
    places = [counts.layout.columns[name] for name in layout.names]
    return FlipCounts(layout, counts.values[..., places])


def _zero(counts: FlipCounts) -> FlipCounts:
    return FlipCounts(counts.layout, np.zeros_like(counts.values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 3, 10, 37, 1000])
@pytest.mark.parametrize("far", [False, True])
def test_large_tables_give_the_same_bits_in_any_shards_and_order(dtype, classes, far):
    random = np.random.default_rng(classes)
    n = 3_001 if classes < 100 else 301
    old, new = random.normal(0, 3, (2, n, classes)).astype(dtype)
    if far:
        # Rows like this make an implementation choose another way of adding up the same numbers.
        old[5, 0], new[n // 2, 1] = 90.0, -90.0
        new[n - 2] += 75.0
    target = random.integers(0, classes, n)
    ids = np.arange(n)

    def counts(rows: np.ndarray, order: np.ndarray) -> FlipCounts:
        a = Predictions.from_arrays(ids=ids[rows], targets=target[rows], logits=old[rows])
        b = Predictions.from_arrays(ids=ids[order], logits=new[order])
        return compare(old=a, new=b).counts

    whole = counts(ids, ids)
    assert counts(ids, random.permutation(ids)) == whole
    shuffled = random.permutation(ids)
    assert counts(shuffled, shuffled) == whole
    edges = [0, 1, 2, 9, 26, 155, n]
    parts = [np.arange(a, b) for a, b in pairwise(edges)]
    total = _zero(whole)
    for part in parts:
        total = total + counts(part, part)
    assert total == whole


def test_many_classes_and_many_rows_do_not_overflow_the_sums():
    # Old is undecided among all classes; new is as undecided in half of the rows, and sure in the
    # other half: those move by half the number of the other classes.
    n, classes = 6_000, 2_000
    old = np.zeros((n, classes), dtype=np.float32)
    new = np.zeros((n, classes), dtype=np.float32)
    new[::2, 0] = 100.0
    result = compare(
        old=Predictions.from_arrays(logits=old), new=Predictions.from_arrays(logits=new)
    )
    _assert_half_and_half(result["surrogate_churn"], (classes - 1) / 2, n)


def test_masked_logits_do_not_overflow_the_sums():
    n = 80_000
    old, new = np.zeros((n, 3)), np.zeros((n, 3))
    new[::2, 2] = -65504.0
    result = compare(
        old=Predictions.from_arrays(logits=old), new=Predictions.from_arrays(logits=new)
    )
    _assert_half_and_half(result["logit_displacement"], 65504.0, n, end=math.inf)


def _assert_half_and_half(
    estimate: Estimate, distance: float, n: int, end: float | None = None
) -> None:
    """The mean of as many zeros as `distance`s, and its usual standard error."""
    assert estimate.value == pytest.approx(distance / 2)
    error = 1.96 * distance / 2 / math.sqrt(n)
    assert estimate.value - estimate.low == pytest.approx(error, rel=0.02)
    assert estimate.high == pytest.approx(distance / 2 + error if end is None else end, rel=2e-3)


@settings(max_examples=tries(80))
@given(examples(kinds=("logits", "probabilities"), most_controls=2))
def test_labels_of_scores_count_as_labels_do(example):
    scored = counted(example, by=["group"])
    bare = replace(
        example,
        old=replace(example.old, kind=None, own_label=True),
        new=replace(example.new, kind=None, own_label=True),
    )
    labels = counted(bare, by=["group"])
    of_scores, of_labels = scored.whole.counts.layout.names, labels.whole.counts.layout.names
    shared = [name for name in of_scores if name in of_labels]
    assert {*CELLS, *UNLABELLED} <= set(shared)
    for these, those in ((scored.whole, labels.whole), (scored.by["group"], labels.by["group"])):
        found, others = counts_of_groups(these), counts_of_groups(those)
        assert found.keys() == others.keys()
        for name, counts in found.items():
            assert np.array_equal(counts.columns(shared), others[name].columns(shared))


@settings(max_examples=tries(80))
@given(examples())
def test_joined_and_aligned_rows_give_the_same_bits(example):
    if example.ids == "none":
        example = replace(example, ids="text")
    n = len(example.case.rows)
    straight = replace(example, orders=(tuple(range(n)),) * len(example.orders))
    crooked = replace(
        example,
        orders=(tuple(range(n)),) + (tuple(reversed(range(n))),) * (len(example.orders) - 1),
    )
    one, other = counted(straight, by=["group"]), counted(crooked, by=["group"])
    assert counts_of_groups(one.whole) == counts_of_groups(other.whole)
    assert counts_of_groups(one.by["group"]) == counts_of_groups(other.by["group"])


@settings(max_examples=tries(120))
@given(examples(), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_what_holds_of_every_comparison(example, confidence):
    result = compared(example, confidence=confidence, by=["group"])
    for group in (result.whole, *result.by["group"]):
        value = {name: estimate.value for name, estimate in group.items()}
        for name, estimate in group.items():
            if math.isnan(estimate.value):
                assert math.isnan(estimate.low), name
                assert math.isnan(estimate.high), name
                continue
            if name == "mcnemar_p":
                assert math.isnan(estimate.low)
                assert 0 < estimate.value <= 1
                continue
            # The sums are rounded once a row, so a bound may lie a unit off its value.
            slack = 1e-6 if name == "logit_displacement" else 1e-8
            if not math.isnan(estimate.low):
                assert estimate.low <= estimate.value + slack, (name, estimate)
            if not math.isnan(estimate.high):
                assert estimate.value <= estimate.high + slack, (name, estimate)
            assert estimate.n > 0, name
        if math.isnan(value["error_rate_old"]):
            continue
        if not any(group.counts.columns(list(UNLABELLED))):
            assert value["churn"] <= value["error_rate_old"] + value["error_rate_new"] + 1e-12
        assert value["accuracy_gain"] == pytest.approx(
            value["positive_flip_rate"] - value["negative_flip_rate"], abs=1e-12
        )
        assert value["accuracy_gain"] == pytest.approx(
            value["error_rate_old"] - value["error_rate_new"], abs=1e-12
        )
        if not math.isnan(value["churn_correct"]):
            assert value["backward_trust_compatibility"] == pytest.approx(
                1 - value["churn_correct"], abs=1e-12
            )


SWAPS = {
    "negative_flip_rate": "positive_flip_rate",
    "error_rate_old": "error_rate_new",
    "expected_calibration_error_old": "expected_calibration_error_new",
    "margin_old": "margin_new",
    "entropy_old": "entropy_new",
    "error_share_old": "error_share_new",
}
SYMMETRIC = (
    "flip_rate",
    "churn",
    "wrong_to_wrong",
    "surrogate_churn",
    "logit_displacement",
    "mcnemar_p",
)


@settings(max_examples=tries(120))
@given(examples(most_controls=0))
def test_swapping_old_and_new_swaps_what_it_should(example):
    old, new, _ = tables(example)
    there = measured(old=old, new=new, exponent=example.case.exponent)
    back = measured(old=new, new=old, exponent=example.case.exponent)
    for name, other in (SWAPS | {b: a for a, b in SWAPS.items()}).items():
        assert same(there[name].value, back[other].value, 0.0), name
    for name in SYMMETRIC:
        assert same(there[name].value, back[name].value, TOLERANCE[name]), name
    gain, loss = there["accuracy_gain"], back["accuracy_gain"]
    assert same(gain.value, -loss.value, 0.0)
    assert same(gain.low, -loss.high, 1e-9)
    assert same(gain.high, -loss.low, 1e-9)


@settings(max_examples=tries(60))
@given(examples(kinds=("logits",), most_controls=0))
def test_surrogate_churn_tends_to_churn(example):
    untied = [
        row
        for row in example.case.rows
        if all(
            len(scores) == 1 or sorted(scores.values())[-1] > sorted(scores.values())[-2]
            for scores in (row.old_scores, row.new_scores)
        )
    ]
    if not untied or example.old.own_label or example.new.own_label:
        return
    case = replace(example.case, rows=untied, exponent=400.0)
    order = tuple(range(len(untied)))
    result = compared(replace(example, case=case, orders=(order, order)))
    assert result["surrogate_churn"].value == pytest.approx(result["churn"].value, abs=1e-8)


def test_the_first_of_equal_scores_is_the_label():
    scores = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 5.0]])
    old = Predictions.from_arrays(logits=scores, class_names=["c", "b", "a"])
    for label in (["b", "c", "a"], ["a", "c", "a"]):
        new = Predictions.from_arrays(labels=label)
        expected = sum(a != b for a, b in zip(label, ["b", "c", "a"], strict=True))
        assert compare(old=old, new=new).counts.different == expected


def test_a_confidence_on_the_edge_of_two_bins_is_in_the_upper_one():
    # 0.6 is the lower edge of the tenth bin and 1.0 belongs to the last: read from the definition,
    # |2 right - 1.3| + |0 right - 1.0| over three rows.
    probabilities = np.array([[0.6, 0.4], [0.65, 0.35], [1.0, 0.0]])
    old = Predictions.from_arrays(probabilities=probabilities, targets=[0, 0, 1])
    new = Predictions.from_arrays(labels=[0, 0, 0])
    value = compare(old=old, new=new)["expected_calibration_error_old"].value
    assert 0.6 * 15 == 9.0
    assert value == pytest.approx((abs(2 - 0.6 - 0.65) + 1.0) / 3)
    below = np.array([[0.6 - 1e-9, 0.4 + 1e-9], [0.65, 0.35], [1.0, 0.0]])
    targets = [0, 1, 1]
    apart = compare(old=Predictions.from_arrays(probabilities=below, targets=targets), new=new)
    together = compare(
        old=Predictions.from_arrays(probabilities=probabilities, targets=targets), new=new
    )
    value = apart["expected_calibration_error_old"].value
    assert value == pytest.approx((0.4 + 0.65 + 1.0) / 3)
    value = together["expected_calibration_error_old"].value
    assert value == pytest.approx((abs(1 - 0.6 - 0.65) + 1.0) / 3)


def test_a_label_of_its_own_counts_more_than_the_largest_score():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    old = Predictions.from_arrays(
        probabilities=probabilities, labels=["b", "b"], class_names=["a", "b"], name="old.npz"
    )
    new = Predictions.from_arrays(labels=["b", "b"], targets=["b", "b"])
    result = compare(old=old, new=new)
    assert result["churn"].value == 0.0
    assert result["error_rate_old"].value == 0.0
    assert (
        "old.npz: the label is not the class of the largest score in 1 rows; "
        "the label is what counts"
    ) in result.notes


@pytest.mark.parametrize("spellings", [("3", 3), (3.0, 3.0), ("3.0", 3.0), ("-0", 0)])
def test_one_class_has_one_name_however_it_is_spelled(spellings):
    first, second = spellings
    old = Predictions.from_arrays(labels=[first, first], targets=[second, second])
    new = Predictions.from_arrays(labels=[second, second])
    result = compare(old=old, new=new)
    assert result["churn"].value == 0.0
    assert result["error_rate_old"].value == 0.0


@pytest.mark.parametrize("names", [[0.0, 1.0], ["0.0", "1.0"], np.array([0, 1]), ["0", "1"]])
def test_class_names_are_spelled_as_labels_are(names):
    scores = np.array([[2.0, 1.0], [0.0, 1.0]])
    old = Predictions.from_arrays(logits=scores, class_names=names, targets=[0, 1])
    result = compare(old=old, new=Predictions.from_arrays(labels=[0, 1]))
    assert result["churn"].value == 0.0
    assert result["error_rate_old"].value == 0.0


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan])
def test_a_missing_target_is_no_class(missing):
    for targets in (
        ["a", missing],
        np.array(["a", missing], dtype=object),
        [1, missing] if missing is not None else [1.0, None],
    ):
        known = "a" if isinstance(targets[0], str) else 1
        labels = [known, known]
        old = Predictions.from_arrays(labels=labels, targets=targets)
        result = compare(old=old, new=Predictions.from_arrays(labels=labels))
        assert result["error_rate_old"].n == 1
        assert result.counts["both_right"] == 1
        assert result.counts["unlabelled_same"] == 1


def test_targets_told_by_a_control_alone_count():
    old = Predictions.from_arrays(labels=["a", "a"])
    new = Predictions.from_arrays(labels=["a", "b"])
    control = Predictions.from_arrays(labels=["b", "b"], targets=["a", "a"])
    result = compare(old=old, new=new, control=control)
    assert result["negative_flip_rate"].value == 0.5
    assert result["negative_flip_ratio"].value == 0.5


def test_a_control_of_scores_counts_by_its_labels():
    target = ["a", "b", "a", "b"]
    old = Predictions.from_arrays(labels=target, targets=target)
    new = Predictions.from_arrays(labels=["a", "b", "b", "b"])
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    control = Predictions.from_arrays(logits=logits, class_names=["a", "b"])
    result = compare(old=old, new=new, control=control)
    # The control says b, b, b and, of two equal scores, a: three negative flips.
    assert result["negative_flip_ratio"].value == pytest.approx(1 / 3)
    assert result["churn_ratio"].value == pytest.approx(1 / 3)


def test_counts_of_different_layouts_do_not_add():
    targets = Predictions.from_arrays(labels=[1], targets=[1])
    without = Predictions.from_arrays(labels=[1])
    first = compare(old=targets, new=without).counts
    second = compare(old=without, new=without).counts
    with pytest.raises(ValueError, match="Only counts of the same layout add"):
        first + second


def test_the_flips_are_the_rows_that_changed_worst_first():
    old = Predictions.from_arrays(
        ids=["p", "q", "r", "s", "t"],
        targets=["a", "a", "b", "a", None],
        probabilities=np.array([[0.6, 0.4], [0.9, 0.1], [0.7, 0.3], [0.8, 0.2], [0.8, 0.2]]),
        class_names=["a", "b"],
    )
    new = Predictions.from_arrays(ids=["p", "q", "r", "s", "t"], labels=["b", "c", "b", "a", "c"])
    flips = compare(old=old, new=new).flips()
    assert flips["id"].to_list() == ["q", "p", "r", "t"]
    assert flips["kind"].to_list() == ["negative", "negative", "positive", "changed"]
    assert flips["old_confidence"].to_list() == [0.9, 0.6, 0.7, 0.8]
    assert compare(old=old, new=new).flips("negative")["id"].to_list() == ["q", "p"]


@settings(max_examples=tries(80))
@given(examples(most_controls=0))
def test_the_flips_are_counted_as_the_counts_are(example):
    result = compared(example)
    flips = result.flips()
    kinds = {
        "negative": "negative_flip",
        "positive": "positive_flip",
        "wrong_to_wrong": "wrong_different",
        "changed": "unlabelled_different",
    }
    for kind, cell in kinds.items():
        assert flips.filter(flips["kind"] == kind).height == result.counts[cell]
    if example.ids != "none":
        changed = {row.id for row in example.case.rows if row.old != row.new}
        found = flips["id"].to_list()
        assert {str(i) for i in found} == {str(i) for i in changed}
        assert len(found) == len(changed)


def test_the_package_shows_the_table():
    assert flipguard.METRICS is METRICS


def test_no_value_lies_outside_its_range():
    for worst in (("negative_flip",), ("positive_flip",), ("both_right", "wrong_different")):
        labels = {"negative_flip": ("x", "y", "x"), "positive_flip": ("y", "x", "x")}
        labels |= {"both_right": ("x", "x", "x"), "wrong_different": ("y", "z", "x")}
        old, new, target = zip(*(labels[cell] for cell in worst), strict=True)
        result = measured(
            old=Predictions.from_arrays(labels=old, targets=target),
            new=Predictions.from_arrays(labels=new),
            by=["target"],
        )
        for group in (result.whole, *result.by["target"]):
            for name, metric in METRICS.items():
                low, high = metric.range
                assert low < high
                assert np.isnan(group[name].value) or low <= group[name].value <= high, name
    signed = [name for name, metric in METRICS.items() if metric.range[0] < 0]
    assert signed == ["accuracy_gain", "macro_f1_gain"]
