"""What a careful reader would doubt: samples left out, classes spelled twice, unusual groupings."""

from __future__ import annotations

import cProfile
import json
import tracemalloc

import numpy as np
import polars as pl
import pytest

from flipguard import InputError, Policy, PolicyError, Predictions, check, compare, matrix
from flipguard.formatting import json_text

TEN = [f"s{i}" for i in range(10)]
RULE = {"rule": [{"metric": "negative_flip_rate", "max": 0.5}]}


def labels(values, *, ids=None, **more):
    ids = TEN[: len(values)] if ids is None else ids
    return Predictions.from_arrays(ids=ids, labels=values, **more)


# -- samples that a control lacks ------------------------------------------------------------------


def dropped():
    """Ten samples that all flip, of which the control knows the first five."""
    old = labels(["a", "b"] * 5, targets=["a", "b"] * 5, name="old")
    new = labels(["b", "a"] * 5, name="new")
    control = labels(["a", "b", "a", "b", "a"], ids=TEN[:5], name="control")
    return compare(old=old, new=new, control=control, on_missing="drop")


def test_samples_that_a_control_lacks_are_counted_as_left_out():
    result = dropped()
    assert result.n == 5
    assert result.rows.not_in_control == 5
    assert result.as_dict()["rows"]["not_in_control"] == 5


def test_flips_are_of_the_samples_that_were_compared():
    assert sorted(dropped().flips()["id"]) == TEN[:5]


def test_a_pinned_sample_that_was_left_out_was_not_compared(tmp_path):
    (tmp_path / "pins.txt").write_text("s7\n", encoding="utf-8")
    policy = Policy.from_dict({**RULE, "pinned": {"ids": "pins.txt"}}, folder=tmp_path)
    with pytest.raises(
        PolicyError, match=r"pins id 's7', which the comparison .* does not contain"
    ):
        check(dropped(), policy)


def test_the_matrix_tells_what_was_left_out():
    found = matrix(
        [labels(["a"] * 10, targets=["a"] * 10), labels(["a"] * 8, ids=TEN[2:])],
        on_missing="drop",
    )
    assert found.left_out == (2, 0)
    assert found.as_dict()["left_out"] == [2, 0]


def test_pinned_float_ids_meet_the_table_s(tmp_path):
    ids = np.arange(10.0)
    old = labels(["a", "b"] * 5, ids=ids, targets=["a", "b"] * 5)
    new = labels(["b", "a"] * 5, ids=ids)
    pl.DataFrame({"id": ids[:3]}).write_parquet(tmp_path / "pins.parquet")
    policy = Policy.from_dict({**RULE, "pinned": {"ids": "pins.parquet"}}, folder=tmp_path)
    verdict = check(compare(old=old, new=new), policy)
    assert verdict.pinned is not None
    assert verdict.pinned.flipped == ("0", "1", "2")


# -- classes that never meet -----------------------------------------------------------------------


def test_a_model_that_is_never_right_is_told():
    old = labels(["b"] * 10, targets=["a"] * 10, name="old.csv")
    notes = compare(old=old, new=labels([*"ab"] * 5, name="new.csv")).notes
    assert any("old.csv: no prediction equals its target" in note for note in notes)
    assert not any("new.csv: no prediction" in note for note in notes)


@pytest.mark.parametrize("culprit", ["old.csv", "control.csv"])
def test_a_yardstick_that_is_never_right_cannot_be_passed(culprit):
    label = {"old.csv": "a", "control.csv": "a"} | {culprit: "b"}
    old = labels([label["old.csv"]] * 10, targets=["a"] * 10, name="old.csv")
    control = labels([label["control.csv"]] * 10, name="control.csv")
    new = labels([*"ab"] * 5, name="new.csv")
    with pytest.raises(PolicyError, match=f"no prediction of {culprit} equals its target"):
        check(compare(old=old, new=new, control=control), Policy.from_dict(RULE))


def test_classes_that_one_model_lacks_are_told():
    old = Predictions.from_arrays(logits=np.eye(2), class_names=["a", "b"], targets=["a", "b"])
    new = Predictions.from_arrays(logits=np.eye(2, 3), class_names=["a", "b", "c"], name="new")
    notes = compare(old=old, new=new).notes
    assert any("does not know class 'c'" in note for note in notes)


def test_a_class_whose_samples_are_left_out_is_not_called_wrong():
    ids, targets = ["1", "2", "3"], ["a", "b", "c"]
    old = Predictions.from_arrays(
        logits=np.eye(3), class_names=targets, targets=targets, ids=ids, name="old"
    )
    new = Predictions.from_arrays(
        logits=np.eye(2), class_names=["a", "b"], targets=["a", "b"], ids=ids[:2], name="new"
    )
    result = compare(old=old, new=new, on_missing="drop")
    assert result.n == 2
    assert "new does not know class 'c', so no samples of it are compared" in result.notes
    assert not any("is wrong on all" in note for note in result.notes)


def test_a_class_that_only_the_labels_know_is_told_as_a_missing_score():
    old = Predictions.from_arrays(
        logits=np.eye(3), class_names=["a", "b", "c"], targets=["a", "b", "c"], name="old"
    )
    new = Predictions.from_arrays(
        labels=["a", "b", "c"], logits=np.eye(3, 2), class_names=["a", "b"], name="new"
    )
    notes = compare(old=old, new=new).notes
    assert not any("does not know" in note for note in notes)
    assert any(
        "new predicts class 'c' in its labels, but its scores have no column" in n for n in notes
    )


def test_models_without_a_common_class_have_no_distance():
    old = Predictions.from_arrays(logits=np.eye(2), class_names=["a", "b"])
    new = Predictions.from_arrays(logits=np.eye(2), class_names=["x", "y"], labels=["a", "b"])
    assert not compare(old=old, new=new)["logit_displacement"].is_defined


def test_rows_matched_by_position_are_told():
    old = Predictions.from_arrays(labels=[0, 1])
    assert "rows were matched by their position" in compare(old=old, new=old).notes[0]


def test_rows_without_a_target_are_told_and_are_of_no_class():
    old = labels(["a", "b", "a"], targets=["a", "b", None])
    result = compare(old=old, new=labels(["a", "a", "b"]), by=["target"])
    assert any("1 of 3 rows have no target" in note for note in result.notes)
    assert {group.name for group in result.by["target"]} == {"a", "b"}


# -- clusters and groups ---------------------------------------------------------------------------


def clustered(**more):
    rng = np.random.default_rng(0)
    n = 600
    target = rng.integers(0, 3, n)
    old = np.where(rng.random(n) < 0.8, target, (target + 1) % 3)
    new = np.where(rng.random(n) < 0.85, target, (target + 1) % 3)
    users = [f"u{i // 6}" for i in range(n)]
    return compare(
        old=Predictions.from_arrays(labels=old, targets=target, slices={"user": users}),
        new=Predictions.from_arrays(labels=new),
        cluster="user",
        **more,
    )


def test_an_interval_does_not_depend_on_what_else_is_counted():
    control = Predictions.from_arrays(labels=np.random.default_rng(1).integers(0, 3, 600))
    alone, compared = clustered(), clustered(control=control)
    for metric in ("negative_flip_rate", "accuracy_gain", "relative_negative_flip_rate"):
        assert alone[metric] == compared[metric]


def test_mcnemar_presumes_independent_rows():
    assert not clustered()["mcnemar_p"].is_defined


def test_a_row_without_a_cluster_is_refused():
    old = labels(["a", "b"], targets=["a", "b"], slices={"user": ["u", None]}, name="old")
    with pytest.raises(InputError, match="no value in column 'user', by which rows are clustered"):
        compare(old=old, new=labels(["a", "b"]), cluster="user")


def test_a_slice_called_id_is_no_id():
    old = Predictions.from_arrays(labels=[0, 1], targets=[0, 1], slices={"user|id": [1, 1]})
    result = compare(old=old, new=Predictions.from_arrays(labels=[0, 0]), by=["user|id"])
    assert result.by["user|id"]["1"].n == 2


def test_a_column_of_lists_cannot_group():
    frame = pl.DataFrame({"id": [1, 2], "label": ["a", "b"], "tags": [["x"], ["y"]]})
    old = Predictions.from_frame(frame, name="old")
    with pytest.raises(InputError, match=r"old has a column 'tags' of type .* cannot group by"):
        compare(old=old, new=old, by=["tags"])


def test_small_groups_are_small_in_what_the_metric_counts():
    """A thousand rows of which three have a target are three samples."""
    n = 1_000
    target = ["a", "a", "a"] + [None] * (n - 3)
    old = labels(["a"] * n, ids=range(n), targets=target, slices={"site": ["x"] * n})
    rule = {"metric": "negative_flip_rate", "by": "site", "max": 0.5, "min_n": 50, "judge": "point"}
    result = compare(old=old, new=labels(["a"] * n, ids=range(n)), by=["site"])
    assert check(result, Policy.from_dict({"rule": [rule]})).verdict == "inconclusive"


def test_a_result_is_a_line_and_not_a_flood():
    result = clustered(by=["user"])
    assert len(repr(result)) < 300
    assert len(repr(result.by["user"])) < 300
    assert len(repr(result.by["user"].groups[0])) < 300


def test_many_groups_and_rules_take_no_more_work_each_than_few():
    """Counts function calls, not seconds: ten times the groups may take ten times the calls."""

    def calls(many):
        ids = range(many)
        old = labels(["a"] * many, ids=ids, targets=["a"] * many, slices={"g": ids})
        limits = [0.5 + i / 1_000 for i in ids]
        rules = [{"metric": "negative_flip_rate", "max": limit} for limit in limits]
        with cProfile.Profile() as profile:
            check(compare(old=old, new=old, by=["g"]), Policy.from_dict({"rule": rules})).to_json()
        return sum(row.callcount for row in profile.getstats())

    calls(1)  # so that all is imported
    assert calls(200) < 12 * calls(20)


def test_a_large_document_is_not_held_in_pieces():
    """Peak memory relative to the length of the text; a list of its pieces takes seven times it."""
    document = {"by": [{"group": str(i), "n": i, "low": None} for i in range(20_000)]}
    tracemalloc.start()
    try:
        text = json_text(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(text)
    assert json.loads(text) == document


def test_clusters_of_very_different_sizes_are_said() -> None:
    def note(sizes: list[int]) -> list[str]:
        users = [user for user, size in enumerate(sizes) for _ in range(size)]
        right = Predictions.from_arrays(
            labels=[0] * len(users), targets=[0] * len(users), slices={"user": users}
        )
        return [n for n in compare(old=right, new=right, cluster="user").notes if "cluster" in n]

    assert note([50]) == ["all samples belong to one cluster, so there are no intervals"]
    assert note([100, *[1] * 99]) == [
        "the largest of 100 clusters holds 50 % of the rows; intervals assume that large clusters "
        "flip as often as small ones"
    ]
    assert note([10] * 20) == []
    assert note([20, 10, 5, 5]) == []
