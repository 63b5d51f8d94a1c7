"""One definition of equality: docs/guides/equality.md, in every format and for arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from flipguard import (
    Comparison,
    InputError,
    Policy,
    Predictions,
    check,
    compare,
    matrix,
    read_predictions,
)

Columns = dict[str, list[Any]]
NAN = float("nan")
IDS = [f"s{i}" for i in range(4)]


# -- one table in every format ---------------------------------------------------------------------


def as_text(columns: Columns, separator: str) -> str:
    def cell(value: object) -> str:
        return "" if value is None or value != value else str(value)

    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns), *(separator.join(map(cell, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def as_json(columns: Columns) -> str:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    # What is missing is null in every second row, and an absent key in the others.
    kept = [
        {k: v for k, v in row.items() if v == v and (v is not None or i % 2)}
        for i, row in enumerate(rows)
    ]
    return "".join(json.dumps(row) + "\n" for row in kept)


def save(path: Path, columns: Columns) -> Path:
    """The table in the format of the file's name, by anything but flipguard."""
    if path.suffix in (".csv", ".tsv"):
        path.write_text(as_text(columns, "," if path.suffix == ".csv" else "\t"))
    elif path.suffix == ".jsonl":
        path.write_text(as_json(columns))
    elif path.suffix == ".npz":
        names = {"id": "ids", "target": "targets", "label": "labels"}
        arrays = {}
        for name, values in columns.items():
            kinds = {type(value) for value in values if value is not None}
            nothing = "" if kinds == {str} else NAN
            arrays[names.get(name, name)] = np.array([nothing if v is None else v for v in values])
        np.savez(path, **arrays)
    else:
        frame = pl.DataFrame(columns, strict=False)
        (frame.write_parquet if path.suffix == ".parquet" else frame.write_ipc)(path)
    return path


def arrays(columns: Columns) -> Predictions:
    roles = {"ids": "id", "targets": "target", "labels": "label"}
    slices = {name: values for name, values in columns.items() if name not in roles.values()}
    given = {role: columns[name] for role, name in roles.items() if name in columns}
    return Predictions.from_arrays(**given, slices=slices)


MAKERS: dict[str, Callable[[Path, Columns], Predictions]] = {
    **{
        suffix: lambda folder, columns, suffix=suffix: read_predictions(
            save(folder / f"t{suffix}", columns)
        )
        for suffix in (".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".npz")
    },
    "arrays": lambda _, columns: arrays(columns),
    "pandas": lambda _, columns: Predictions.from_frame(pd.DataFrame(columns)),
    "polars": lambda _, columns: Predictions.from_frame(pl.DataFrame(columns, strict=False)),
    "arrow table": lambda _, columns: Predictions.from_frame(
        pl.DataFrame(columns, strict=False).to_arrow()
    ),
}
GOOD: Columns = {"id": IDS, "target": [*"abab"], "label": [*"abba"]}
every_format = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def groups(result: Comparison, column: str) -> dict[str, int]:
    return {group.name: group.n for group in result.by[column]}


@every_format
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["x", "", "(missing)", None], {"x": 1, "(missing)": 2, '"(missing)"': 1}),
        ([1.0, 0.5, None, -0.0], {"1": 1, "0.5": 1, "(missing)": 1, "0": 1}),
        ([1.0, NAN, NAN, 2.0], {"1": 1, "2": 1, "(missing)": 2}),
        ([7, 0, -3, 7], {"7": 2, "0": 1, "-3": 1}),
        (["3.0", "cat", "007", "3"], {"3.0": 1, "cat": 1, "007": 1, "3": 1}),
        (['"(missing)"', "(missing)", "", "a"], None),
    ],
    ids=["text", "floats", "nan", "integers", "names", "quoted"],
)
def test_groups_are_the_same_in_every_format(make, values, expected, tmp_path):
    if expected is None:
        if make in (MAKERS[".csv"], MAKERS[".tsv"]):
            return  # A quotation mark is part of the format there.
        expected = {'""(missing)""': 1, '"(missing)"': 1, "(missing)": 1, "a": 1}
    columns = {**GOOD, "group": values}
    table = make(tmp_path, columns)
    assert groups(compare(old=table, new=table, by=["group"]), "group") == expected
    # Next to a file of another format the groups are the same, or the files would disagree.
    other = Predictions.from_frame(pl.DataFrame(columns, strict=False))
    assert groups(compare(old=table, new=other, by=["group"]), "group") == expected


@every_format
def test_groups_of_truth_values(make, tmp_path):
    table = make(tmp_path, {**GOOD, "group": [True, False, True, True]})
    other = arrays({**GOOD, "group": [True, False, True, True]})
    result = compare(old=table, new=other, by=["group"])
    assert groups(result, "group") == {"true": 3, "false": 1}


@every_format
@pytest.mark.parametrize(
    "values", [["u", "", "u", "v"], [1.0, None, 1.0, 2.0], [1.0, NAN, 1.0, 2.0]]
)
def test_a_row_without_a_cluster_is_refused_in_every_format(make, values, tmp_path):
    table = make(tmp_path, {**GOOD, "user": values})
    with pytest.raises(InputError, match=r"no value in column 'user', by which .* for id 's1'"):
        compare(old=table, new=table, cluster="user")


@every_format
def test_missing_targets_and_labels(make, tmp_path):
    table = make(tmp_path, {**GOOD, "target": ["a", "", "a", None]})
    counts = compare(old=table, new=arrays(GOOD | {"target": [*"a", None, *"a", None]})).counts
    assert (counts.labelled, counts.rows) == (2, 4)
    table = make(tmp_path, {**GOOD, "label": ["a", "", "a", "b"]})
    with pytest.raises(InputError, match="no predicted class in column 'label' for id 's1'"):
        compare(old=table, new=arrays(GOOD))


@every_format
def test_integers_that_were_written_as_floats(make, tmp_path):
    columns = {"id": [1.0, 2.0, 3.0], "target": [1.0, None, -0.0], "label": [1, 0, 0]}
    table = make(tmp_path, columns)
    plain = arrays({"id": ["3", "2", "1"], "target": ["0", "", "1"], "label": [0, 0, 1]})
    counts = compare(old=table, new=plain).counts
    assert (counts["both_right"], counts["unlabelled_same"]) == (2, 1)


@every_format
def test_truth_values_are_their_texts(make, tmp_path):
    columns = {"id": IDS, "target": [True, False] * 2, "label": [True, True, False, True]}
    found = make(tmp_path, columns)
    truth = arrays({"id": IDS, "label": [True, True, False, False]})
    counts = compare(old=found, new=truth).counts
    assert (counts["both_right"], counts.different) == (1, 1)
    text = arrays({"id": IDS, "label": ["True", "true", "False", "false"]})
    counts = compare(old=arrays(columns), new=text).counts
    assert (counts["both_right"], counts.different) == (1, 1)


def test_two_columns_of_text_are_compared_as_written():
    old = arrays({**GOOD, "target": ["True"] * 4, "label": ["True", "true"] * 2})
    new = arrays({"id": IDS, "label": ["True"] * 4})
    assert compare(old=old, new=new).counts["positive_flip"] == 2


def test_a_truth_value_is_no_integer():
    old = arrays({**GOOD, "target": [True, False] * 2, "label": [True] * 4})
    with pytest.raises(
        InputError, match=r"classes that new predicts \('0', '1'\) .*\('false', 'true'\)"
    ):
        compare(old=old, new=Predictions.from_arrays(ids=IDS, labels=[1, 0, 1, 0], name="new"))


# -- NaN in text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".npz"])
@pytest.mark.parametrize("spelling", ["nan", "NaN"])
def test_nan_in_text_is_missing_among_integers_as_among_floats(suffix, spelling, tmp_path):
    n = 2_000
    labels = ["1", "2"] * (n // 2)
    for one in ("1", "1.0"):
        # The last row decides: it lies behind the rows that are looked at first.
        targets = [one, "2"] * (n // 2 - 1) + [one, spelling]
        columns = {"id": list(range(n)), "target": targets, "label": labels, "g": targets}
        table = read_predictions(save(tmp_path / f"t{suffix}", columns))
        result = compare(old=table, new=table, by=["g"])
        assert (result.counts["both_right"], result.counts["unlabelled_same"]) == (n - 1, 1)
        assert groups(result, "g") == {"1": n // 2, "2": n // 2 - 1, "(missing)": 1}


def test_nan_among_names_is_a_name_and_noted():
    table = arrays(
        {"id": IDS, "target": ["NaN", "a", "NA", "NA"], "label": ["NaN", "a", "NA", "b"]}
    )
    result = compare(old=table, new=table, by=["target"])
    assert groups(result, "target") == {"NaN": 1, "a": 1, "NA": 2}
    told = "which counts as a class name; leave a missing target empty"
    assert [note for note in result.notes if "class name" in note] == [
        f"predictions: 2 targets are the text 'NA', {told}",
        f"predictions: 1 target is the text 'NaN', {told}",
    ]
    numbers = arrays({"id": IDS, "target": ["NaN", "1", "2", "2"], "label": [1, 1, 2, 2]})
    assert not any("class name" in note for note in compare(old=numbers, new=numbers).notes)


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("id", "has no id in column 'id' at row 2"),
        ("label", "has no predicted class in column 'label' for id '2'"),
        ("user", "has no value in column 'user', by which"),
    ],
)
def test_nan_in_text_is_no_id_label_or_cluster(role, told, tmp_path):
    path = tmp_path / "t.csv"
    columns = {"id": [1, 2, 3], "target": [1, 2, 1], "label": [1, 2, 1], "user": [1, 2, 1]}
    table = read_predictions(save(path, {**columns, role: [1, "NaN", 3]}))
    with pytest.raises(InputError, match=told):
        compare(old=table, new=table, cluster="user")


def test_integers_next_to_nan_in_text_are_no_floats():
    flags = arrays({"id": IDS, "label": ["1.0", "0.0"] * 2})
    for nothing in ("", "NaN"):
        old = arrays({"id": IDS, "target": ["1", "0", nothing, "1"], "label": [1, 0, 1, 0]})
        with pytest.raises(InputError, match="has floats in column"):
            compare(old=old, new=flags)
    nothing = arrays({"id": IDS, "target": ["NaN"] * 4, "label": ["1.0", "0.0"] * 2})
    assert compare(old=nothing, new=flags).counts["unlabelled_same"] == 4


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "what"), [("id", "ids"), ("target", "classes"), ("label", "classes")]
)
def test_numbers_that_a_double_does_not_tell_apart_are_neither_ids_nor_classes(
    role, what, tmp_path
):
    columns = {"id": ["1.0", "2.0"], "target": ["1.0", "2.0"], "label": ["1.0", "2.0"]}
    odd = {**columns, role: ["9007199254740993.0", "9007199254740992.0"]}
    table = read_predictions(save(tmp_path / "t.csv", odd))
    with pytest.raises(InputError, match=rf"number 9007199254740993\.0 in .* {what} are expected"):
        compare(old=table, new=table)
    exact = {**columns, role: ["9007199254740993", "9007199254740992"]}
    if role != "id":
        exact |= {"target": exact[role], "label": exact[role][::-1]}
    table = read_predictions(save(tmp_path / "t.csv", exact))
    assert compare(old=table, new=table).counts["both_right"] == (2 if role == "id" else 0)


def test_decimals_compare_as_numbers():
    values = [Decimal("1.00"), Decimal("10.00"), Decimal("0.00"), Decimal("-2.00")]
    frame = pl.DataFrame({"id": IDS, "label": values, "size": [Decimal("0.50")] * 4})
    old = Predictions.from_frame(frame)
    new = arrays({"id": IDS, "label": ["1", "10", "0", "-2"], "target": [1, 10, -0, -2]})
    result = compare(old=old, new=new, by=["size"])
    assert result.counts["both_right"] == 4
    assert groups(result, "size") == {"0.5": 4}
    odd = Predictions.from_frame(frame.with_columns(label=pl.col("size")), name="odd")
    with pytest.raises(InputError, match=r"odd has fractional numbers .*\(0.50\)"):
        compare(old=odd, new=new)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_floats_next_to_integers_are_no_classes(suffix, tmp_path):
    """The smallest case: a right/wrong flag in the place of the predicted classes."""
    right = {"id": [0, 1, 2], "target": [0, 1, 1], "label": [0, 1, 1]}
    new = read_predictions(save(tmp_path / f"new{suffix}", right))
    flags = save(tmp_path / f"old{suffix}", {**right, "label": [1.0, 0.0, 1.0]})
    with pytest.raises(InputError) as refused:
        compare(old=read_predictions(flags), new=new)
    shown = ", ".join(sorted({"0.0", "1.0"}))
    assert str(refused.value) == (
        f"{flags} has floats in column 'label' ({shown}), but column 'target' has "
        f"{'values' if suffix == '.csv' else 'integers'}; this looks like a score or a right/wrong "
        "flag, not like predicted classes. Name the column of classes with `label=`, or write its "
        "whole numbers as integers."
    )


def test_the_whole_column_decides_and_not_its_first_rows(tmp_path):
    n = 3_000
    ids = list(range(n))
    labels = ["0", "1"] * (n // 2)
    old = {"id": ids, "target": labels, "label": labels}
    for last, told in (("1.0", "has floats in column"), ("0.5", "has fractional numbers")):
        for order in (1, -1):
            odd = [*labels[:-1], last][::order]
            path = save(tmp_path / "new.csv", {"id": ids[::order], "label": odd})
            with pytest.raises(InputError, match=told):
                compare(
                    old=read_predictions(save(tmp_path / "old.csv", old)),
                    new=read_predictions(path),
                )
    # One name among them, and all are names: 1.0 is not 1 then.
    path = save(tmp_path / "new.csv", {"id": ids, "label": [*labels[:-2], "1.0", "cat"]})
    result = compare(
        old=read_predictions(save(tmp_path / "old.csv", old)), new=read_predictions(path)
    )
    assert result.counts["negative_flip"] == 2


@pytest.mark.parametrize("labels", [[0.5, 0.1, 0.9], ["0.5", "0.1", "0.9"], [1e300, 0.0, 1.0]])
def test_numbers_that_are_not_whole_are_no_classes(labels):
    old = Predictions.from_arrays(ids=[7, 8, 9], labels=labels, name="old")
    with pytest.raises(InputError, match=r"score or a regression output"):
        compare(old=old, new=old)


def test_columns_that_are_all_floats_are_integers():
    old = arrays({"id": IDS, "target": [0.0, 1.0] * 2, "label": [0.0, 1.0, 1.0, 1.0]})
    new = arrays({"id": IDS, "label": ["0.0", "1.00", "0", "1e0"]})
    counts = compare(old=old, new=new).counts
    assert (counts["both_right"], counts["positive_flip"]) == (3, 1)
    # A column without any value says nothing of its type.
    empty = Predictions.from_arrays(ids=IDS, labels=[0.0, 1.0] * 2, targets=[None] * 4)
    assert compare(old=empty, new=new).counts["unlabelled_different"] == 0


def test_a_control_of_floats_is_refused_too():
    old = arrays({"id": IDS, "target": [0, 1] * 2, "label": [0, 1] * 2})
    control = Predictions.from_arrays(ids=IDS, labels=[0.0, 1.0] * 2, name="control")
    with pytest.raises(InputError, match="control has floats in column"):
        compare(old=old, new=old, control=control)


def test_ids_of_floats_are_integers_and_names_stay(tmp_path):
    new = arrays({"id": [3, 1, 2], "label": [*"cax"]})
    for ids in ([1.0, 2.0, 3.0], ["1.0", "2", "3e0"], [Decimal("1.0"), Decimal(2), Decimal(3)]):
        frame = pl.DataFrame({"id": ids, "label": [*"abc"]})
        assert compare(old=Predictions.from_frame(frame), new=new).counts.different == 1
    names = arrays({"id": ["1.0", "2.0", "v3"], "label": [*"abc"]})
    with pytest.raises(InputError, match="No id is in every file"):
        compare(old=names, new=arrays({"id": [1, 2], "label": [*"ab"]}), on_missing="drop")


# -- classes that never meet -----------------------------------------------------------------------

RULE = {"rule": [{"metric": "churn", "max": 1.0, "judge": "point"}]}


@pytest.mark.parametrize("side", ["old", "new", "control"])
@pytest.mark.parametrize("with_targets", [True, False])
def test_classes_spelled_in_two_ways_are_refused(side, with_targets):
    spelling = {"old": "abab", "new": "abba", "control": "bbaa"} | {side: "ABAB"}
    tables = {
        name: Predictions.from_arrays(ids=IDS, labels=[*labels], name=name)
        for name, labels in spelling.items()
    }
    if with_targets:
        tables["old"] = Predictions.from_arrays(
            ids=IDS, labels=[*spelling["old"]], targets=[*"abab"], name="old"
        )
    # Without targets old and new are each other's only hold, and old is told first.
    told = side if with_targets or side == "control" else "old"
    with pytest.raises(InputError, match=rf"that {told} predicts .*\('A', 'B'\)"):
        compare(**tables)
    with pytest.raises(InputError, match=r"None of the classes .* predicts \('A', 'B'\)"):
        matrix(list(tables.values()))


def test_a_model_that_is_never_right_but_knows_the_classes_is_compared():
    old = arrays({**GOOD, "label": [*"baba"]})
    assert compare(old=old, new=arrays(GOOD)).counts.old_right == 0


def test_class_names_of_scores_that_never_meet():
    old = Predictions.from_arrays(logits=np.eye(2), class_names=["a", "b"], name="old")
    new = Predictions.from_arrays(logits=np.eye(2), class_names=["x", "y"], name="new")
    with pytest.raises(InputError, match=r"that old predicts \('a', 'b'\) .*\('x', 'y'\)"):
        compare(old=old, new=new)


# -- scores ----------------------------------------------------------------------------------------


def test_scores_of_one_class_are_no_classifier(tmp_path):
    column = np.array([[1.0], [-2.0], [0.5], [3.0]])
    with pytest.raises(InputError, match=r"m has scores of one class only \(logits of shape"):
        Predictions.from_arrays(logits=column, name="m")
    wide = save(tmp_path / "wide.csv", {"id": IDS, "target": [0, 1, 0, 1], "logit_1": [1.0] * 4})
    with pytest.raises(
        InputError, match=r"one class only \(column 'logit_1'\).*one score per class"
    ):
        read_predictions(wide)
    lists = Predictions.from_frame(pl.DataFrame({"id": IDS, "logits": column.tolist()}), name="m")
    with pytest.raises(InputError, match=r"m has scores of one class only \(column 'logits'\)"):
        compare(old=lists, new=arrays(GOOD))
    with pytest.raises(InputError, match=r"one class only"):
        compare(old=arrays(GOOD), new=arrays(GOOD), control=lists)


def test_one_score_next_to_labels_is_left_out_and_noted(tmp_path):
    path = save(tmp_path / "old.csv", {**GOOD, "logit_1": [1.0] * 4})
    old = read_predictions(path)
    notes = compare(old=old, new=arrays(GOOD)).notes
    assert any("not used: 'logit_1'" in note for note in notes)


@pytest.mark.parametrize("columns", [{"logit_": [1.0], "logit_a": [2.0]}])
def test_a_class_without_a_name_is_refused(columns):
    frame = pl.DataFrame({"id": [1], **columns})
    with pytest.raises(InputError, match="scores of a class without a name"):
        Predictions.from_frame(frame)
    with pytest.raises(InputError, match="scores of a class without a name"):
        Predictions.from_arrays(logits=np.eye(2), class_names=["a", ""])


@pytest.mark.parametrize("role", ["old", "new", "control"])
def test_a_probability_a_rounding_error_below_zero(role):
    sides = {name: np.array([[1.0, 0.0], [0.25, 0.75]]) for name in ("old", "new", "control")}
    sides[role] = np.array([[1.0 + 1e-9, -1e-9], [0.25, 0.75]])
    tables = {name: Predictions.from_arrays(probabilities=p) for name, p in sides.items()}
    assert compare(**tables).counts.different == 0
    sides[role] = np.array([[1.1, -0.1], [0.25, 0.75]])
    tables = {name: Predictions.from_arrays(probabilities=p) for name, p in sides.items()}
    with pytest.raises(InputError, match=r"a probability below 0 \(-0.1\)"):
        compare(**tables)


def test_float_targets_with_nan_are_indices_into_class_names(tmp_path):
    path = tmp_path / "o.npz"
    targets = np.array([0, 1, NAN])
    np.savez(path, ids=np.arange(3), targets=targets, logits=np.eye(3), class_names=[*"abc"])
    given = Predictions.from_arrays(targets=[0, 1, None], logits=np.eye(3), class_names=[*"abc"])
    for table in (read_predictions(path), given):
        counts = compare(old=table, new=table).counts
        assert (counts["both_right"], counts["unlabelled_same"]) == (2, 1)
    with pytest.raises(InputError, match="is no index into its 2 class names"):
        Predictions.from_arrays(targets=[2.0, None], logits=np.eye(2), class_names=["a", "b"])


def test_an_empty_text_next_to_truth_values_is_missing(tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text(
        '{"id": 1, "target": true, "label": "True"}\n'
        '{"id": 2, "target": "", "label": "False"}\n'
        '{"id": 3, "target": false, "label": "True"}\n'
    )
    table = read_predictions(path)
    counts = compare(old=table, new=table).counts
    assert (counts["both_right"], counts["wrong_same"], counts["unlabelled_same"]) == (1, 1, 1)


def test_class_names_of_a_controls_scores_are_truth_values_too():
    target = [True, False, True]
    said = Predictions.from_arrays(labels=target, targets=target, ids=[1, 2, 3])
    scores = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    control = Predictions.from_arrays(logits=scores, class_names=["False", "True"], ids=[1, 2, 3])
    result = compare(old=said, new=said, control=control)
    assert result.counts.control(0)["both_right"] == 3


def test_targets_that_only_a_control_has_decide_the_kind_of_each_flip(tmp_path):
    old = Predictions.from_arrays(ids=[1, 2, 3], labels=["a", "b", "a"])
    new = Predictions.from_arrays(ids=[1, 2, 3], labels=["a", "b", "b"])
    control = Predictions.from_arrays(
        ids=[1, 2, 3], labels=["a", "b", "a"], targets=["a", "b", "a"]
    )
    result = compare(old=old, new=new, control=control)
    assert result.counts["negative_flip"] == 1
    assert result.flips("negative")["id"].to_list() == [3]


def test_a_class_that_one_model_spells_in_another_way_is_noted():
    target = ["cat"] * 9 + ["fox"]
    old = Predictions.from_arrays(labels=["cat"] * 9 + ["Fox"], targets=target, name="old")
    new = Predictions.from_arrays(labels=["cat"] * 10, targets=target, name="new")
    told = [note for note in compare(old=old, new=new).notes if "two ways" in note]
    assert told == [
        "old predicts 'Fox', which is no target, and never predicts 'fox', which is; is a class "
        "spelled in two ways?"
    ]


def test_classes_that_are_counted_from_another_number_are_noted():
    target = [0, 1, 2, 0, 1, 2]
    old = Predictions.from_arrays(labels=[1, 2, 3, 1, 2, 3], targets=target, name="old")
    new = Predictions.from_arrays(labels=target, targets=target, name="new")
    notes = compare(old=old, new=new).notes
    assert any(
        note.startswith("the classes that old predicts are the targets +1") for note in notes
    )
    assert not any("new predicts are" in note for note in notes)


# -- types that are none ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [pl.Series([1, 2, 3, 4]).cast(pl.Duration("ms")), pl.Series([b"a", b"b", b"a", b"b"])],
    ids=["duration", "binary"],
)
@pytest.mark.parametrize("role", ["id", "target", "label", "group", "user"])
def test_durations_and_bytes_are_neither_classes_nor_groups(values, role):
    frame = pl.DataFrame({**GOOD, "group": [*"ppqq"], "user": [*"uvuv"], role: values})
    table = Predictions.from_frame(frame, name="old")
    by, cluster = ["group"] if role == "group" else [], "user" if role == "user" else None
    with pytest.raises(InputError, match=f"old has a column '{role}' of type "):
        compare(old=table, new=arrays(GOOD), by=by, cluster=cluster)


@pytest.mark.parametrize(
    "name", ["site|device", "*", "^.*$", "0|row", "__label", "0|cut|0", "__row"]
)
@pytest.mark.parametrize("scored", [True, False])
def test_a_column_may_have_any_name(name, scored):
    columns = {"id": IDS[::-1], name: [*"xyxx"], "target": [*"abab"]}
    scores = {"logit_a": [1.0, 0.0] * 2, "logit_b": [0.0, 1.0] * 2}
    labels = {"label": [*"abab"]}
    old = Predictions.from_frame(pl.DataFrame({**columns, **(scores if scored else labels)}))
    new = Predictions.from_frame(pl.DataFrame({"id": IDS, **scores, name: [*"xxyx"]}))
    result = compare(old=old, new=new, by=[name], cluster=name, control=new)
    assert groups(result, name) == {"x": 3, "y": 1}
    assert result.flips()[name].to_list() == [*"xxyx"]


# -- what Python gives -----------------------------------------------------------------------------


def test_masked_elements_are_missing():
    targets = np.ma.array([0, 1, 0], mask=[False, True, False])
    result = compare(
        old=Predictions.from_arrays(labels=[0, 1, 1], targets=targets),
        new=Predictions.from_arrays(labels=[0, 1, 0]),
    )
    assert result.counts.labelled == 2
    scores = np.ma.array(np.eye(2), mask=[[False, True], [False, False]])
    masked = Predictions.from_arrays(logits=scores, name="m")
    with pytest.raises(InputError, match="m has NaN or infinite logits for row 1"):
        compare(old=masked, new=masked)


def test_pandas_frames_of_mixed_values_and_of_doubled_columns():
    frame = pd.DataFrame({"id": [1, "a", 2], "label": [*"xyx"], "extra": [[1], {}, 2]})
    new = arrays({"id": ["a", 1, 2], "label": [*"yxx"]})
    old = Predictions.from_frame(frame, name="old")
    assert compare(old=old, new=new).counts.different == 0
    with pytest.raises(InputError, match=r"old has a column 'extra' of type Object"):
        compare(old=old, new=new, by=["extra"])
    twice = pd.DataFrame([[1, 2, 3]], columns=["id", "label", "label"])
    with pytest.raises(InputError, match="t has more than one column called 'label'"):
        Predictions.from_frame(twice, name="t")
    table = pa.table([[1], [2], [3]], names=["id", "label", "label"])
    with pytest.raises(InputError, match="t has more than one column called 'label'"):
        Predictions.from_frame(table, name="t")


def test_mixed_values_are_names_as_a_csv_file_has_them():
    old = Predictions.from_arrays(labels=[True, 2, 1], targets=[1, 2, 1])
    counts = compare(old=old, new=old).counts
    assert (counts["both_right"], counts["wrong_same"]) == (2, 1)
    values = [1.0, "a", 2, True]
    told = ["1.0", "a", "2", "true"]
    table = Predictions.from_arrays(labels=values)
    assert table.frame.collect()["label"].to_list() == told
    table = Predictions.from_frame(pd.DataFrame({"id": IDS, "label": values}))
    assert table.frame.collect()["label"].to_list() == told


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(InputError, match=r"m has 'targets?' with bytes that are no UTF-8 text"):
        Predictions.from_arrays(labels=[1, 2], targets=np.array([b"\xff", b"\xfe"]), name="m")
    with pytest.raises(InputError, match=r"class name b'\\xff' is no UTF-8 text"):
        Predictions.from_arrays(logits=np.eye(2), class_names=[b"\xff", b"\xfe"])
    table = Predictions.from_arrays(labels=np.array(["é".encode(), b"a"]))
    assert table.frame.collect()["label"].to_list() == ["é", "a"]


def test_tensors_with_gradients_and_of_half_precision():
    torch = pytest.importorskip("torch")
    logits = torch.eye(3, requires_grad=True)
    old = Predictions.from_arrays(logits=logits, targets=torch.arange(3))
    new = Predictions.from_arrays(logits=torch.eye(3, dtype=torch.bfloat16))
    assert compare(old=old, new=new).counts["both_right"] == 3


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"labels": ["\ud800", "a"]}, "half of a surrogate pair"),
        ({"labels": [2**200, 1]}, "more than 128 bits"),
        ({"labels": [[1], [2, 3]]}, "cannot be read as an array"),
        ({"labels": 5}, "of shape ()"),
        ({"logits": [[1.0], [1.0, 2.0]]}, "cannot be read as an array"),
        ({"labels": [object()]}, "of object values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_hold_no_classes(arrays, told):
    with pytest.raises(InputError) as refused:
        Predictions.from_arrays(**arrays, name="m")
    assert told in str(refused.value)
    assert str(refused.value).startswith("m has ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"confidence": "0.95"}, "Expected `confidence` to be a number, but got '0.95'."),
        ({"confidence": None}, "Expected `confidence` to be a number, but got None."),
        ({"exponent": "1"}, "Expected `exponent` to be a number, but got '1'."),
        (
            {"control": 5},
            "Expected `control` to be predictions, the path of a prediction file or a run, a "
            "table, labels or scores, but got int; read a file with flipguard.read_predictions, "
            "or give labels as an array.",
        ),
        (
            {"by": 5},
            "Expected `by` to be the name of a column or a list of names, but got int; name "
            "columns that the sides have.",
        ),
    ],
    ids=str,
)
def test_options_of_another_type(options, told):
    table = arrays(GOOD)
    with pytest.raises(InputError) as refused:
        compare(old=table, new=table, **options)
    assert str(refused.value) == told


def test_no_control_and_no_column():
    table = arrays(GOOD)
    result = compare(old=table, new=table, control=None, by=None)
    assert (result.controls, result.by) == ((), {})


# -- columns that nobody named ---------------------------------------------------------------------


def test_a_column_that_is_only_suggested(tmp_path):
    path = save(tmp_path / "t.csv", {"key": IDS, "truth": [*"abab"], "says": [*"abba"]})
    with pytest.raises(InputError) as refused:
        read_predictions(path)
    assert str(refused.value) == (
        f"{path} has no column 'id' to join on and neither predicted labels nor class scores "
        "(columns: 'key', 'truth', 'says'); try: `target='truth'`, and name the column of "
        "predicted classes with `label=`, or of grades with `correct=`, or add logits or "
        "probabilities, and name the ids with `id=`, or use `id='row'` if all sides have the same "
        "rows in the same order."
    )
    found = read_predictions(path, id="key", target="truth", label="says")
    assert compare(old=found, new=found)["error_rate_old"].value == 0.5


def test_scores_of_another_name_are_told(tmp_path):
    path = save(tmp_path / "t.csv", {"id": IDS, "p_cat": [0.5] * 4, "p_dog": [0.5] * 4})
    with pytest.raises(InputError, match="rename 'p_cat', 'p_dog' to probability_<class>"):
        read_predictions(path)
    old = arrays({**GOOD, "p_a": [0.5] * 4, "p_b": [0.5] * 4, "p_value": [0.1] * 4})
    notes = compare(old=old, new=arrays(GOOD)).notes
    assert [note for note in notes if "class scores" in note] == [
        "predictions has columns named like class scores that were not used: 'p_a', "
        "'p_b', 'p_value'; to use them, give at least two columns, named logit_<class> or "
        "probability_<class>"
    ]


def test_a_target_that_nobody_named_is_noted():
    columns = {"id": IDS, "label": [*"abba"], "truth": [*"abab"]}
    old, new = arrays(columns), arrays({"id": IDS, "label": [*"abab"]})
    result = compare(old=old, new=new)
    assert (
        "there is no target column, so only churn is measured; predictions has a column "
        "'truth': try `target='truth'`"
    ) in result.notes
    policy = Policy.from_dict({"rule": [{"metric": "negative_flip_rate", "max": 0.5}]})
    with pytest.raises(Exception, match=r"remove the rule; .*`target='truth'`"):
        check(result, policy)
    with_target = arrays({**columns, "target": [*"abab"]})
    assert not any("truth" in note for note in compare(old=with_target, new=new).notes)


def test_the_command_line_names_flags_and_python_names_arguments(tmp_path):
    columns = {"key": IDS, "truth": [*"abab"], "label": [*"abba"]}
    path = save(tmp_path / "t.csv", columns)

    def typed(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flipguard", "compare", str(path), str(path), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = typed()
    assert refused.returncode == 2
    told = (
        "; try: --target truth, and name the ids with --id, or use --id row if all sides have the "
        "same rows in the same order.\n"
    )
    assert refused.stderr.endswith(told)
    noted = typed("--id", "key", "--json", "-")
    assert any(note.endswith("try --target truth") for note in json.loads(noted.stdout)["notes"])
