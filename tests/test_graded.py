"""Graded rows: what is right is told by a column, with or without answers to compare."""

from __future__ import annotations

import json
import math
import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from flipguard import (
    Policy,
    Predictions,
    check,
    compare,
    ensemble,
    read_predictions,
    write_predictions,
    write_report,
)
from flipguard.counts import FlipCounts
from flipguard.errors import InputError, PolicyError
from flipguard.gate import Judgement, Verdict
from flipguard.matrices import matrix
from flipguard.statistics import wilson
from tests import plain
from tests.commands import flipguard
from tests.effort import tries

GRADES = ("right", "wrong", "error", "refused", "unparsed")
SPELLINGS = {
    "right": ["1", "true", "True", "pass", "PASS", "C", "c", "1.0"],
    "wrong": ["0", "false", "FALSE", "fail", "Fail", "I", "i", "0.0"],
    **{reason: [reason, reason.upper()] for reason in GRADES[2:]},
}
CHURN = ("churn", "churn_correct", "churn_incorrect", "wrong_to_wrong", "churn_ratio")
LABELS_ALONE = [name for name in plain.METRICS if name not in CHURN]

Sample = tuple[tuple[str, ...], tuple[str, ...], str]
SAMPLES = st.lists(
    st.tuples(
        st.tuples(*[st.sampled_from(GRADES)] * 4),
        st.tuples(*[st.sampled_from(["x", "y", "3.5", ""])] * 4),
        st.sampled_from(["p", "q"]),
    ),
    min_size=1,
    max_size=15,
)


def sides(samples: list[Sample], answers: bool, controls: int = 2) -> list[Predictions]:
    return [
        Predictions.from_arrays(
            ids=list(range(len(samples))),
            correct=[{"right": "C", "wrong": "I"}.get(g[i], g[i]) for g, _, _ in samples],
            labels=[f"a{texts[i]}" for _, texts, _ in samples] if answers else None,
            slices={"group": [group for _, _, group in samples]},
            name=f"model{i}",
        )
        for i in range(2 + controls)
    ]


def as_labelled(samples: list[Sample]) -> plain.Case:
    """Rows of labels with the same right and wrong answers."""
    return plain.Case(
        rows=[
            plain.Row(
                id=i,
                target="right",
                old=_label(grades[0]),
                new=_label(grades[1]),
                controls=tuple(_label(grade) for grade in grades[2:]),
                groups={"group": group},
                old_grade=grades[0],
                new_grade=grades[1],
            )
            for i, (grades, _, group) in enumerate(samples)
        ]
    )


def _label(grade: str) -> str:
    return "right" if grade == "right" else "wrong"


def churns(samples: list[Sample]) -> dict[str, float]:
    """The metrics that compare answers, read from their definitions."""
    right = [grades[0] == "right" for grades, _, _ in samples]
    differs = [texts[0] != texts[1] for _, texts, _ in samples]
    both_wrong = [grades[0] != "right" and grades[1] != "right" for grades, _, _ in samples]
    n = len(samples)
    theirs = sum(texts[0] != text for _, texts, _ in samples for text in texts[2:]) / 2
    ratio = math.inf if theirs == 0 and any(differs) else plain.ratio(sum(differs), theirs)
    return {
        "churn": sum(differs) / n,
        "churn_correct": plain.ratio(
            sum(d for d, r in zip(differs, right, strict=True) if r), sum(right)
        ),
        "churn_incorrect": plain.ratio(
            sum(d for d, r in zip(differs, right, strict=True) if not r), n - sum(right)
        ),
        "wrong_to_wrong": sum(d and b for d, b in zip(differs, both_wrong, strict=True)) / n,
        "churn_ratio": ratio,
    }


def same(value: float, expected: float) -> bool:
    return math.isnan(value) if math.isnan(expected) else value == pytest.approx(expected)


@settings(max_examples=tries(80))
@given(SAMPLES, st.booleans())
def test_every_metric_is_its_plain_definition(samples: list[Sample], answers: bool) -> None:
    old, new, *controls = sides(samples, answers)
    result = compare(old=old, new=new, control=controls, by="group")
    groups = [(samples, result.whole)]
    groups += [([s for s in samples if s[2] == group.name], group) for group in result.by["group"]]
    if len(result.controls) == 2:
        for some, found in groups:
            case = as_labelled(some)
            for name in LABELS_ALONE:
                assert same(found[name].value, plain.METRICS[name](case)), name
            for name, value in churns(some).items():
                assert same(found[name].value, value if answers else math.nan), name


@settings(max_examples=tries(40))
@given(SAMPLES, SAMPLES, st.booleans())
def test_the_counts_of_parts_add_to_those_of_the_whole(
    first: list[Sample], second: list[Sample], answers: bool
) -> None:
    def counts(samples: list[Sample]) -> FlipCounts:
        old, new = sides(samples, answers, controls=0)
        return compare(old=old, new=new).counts

    assert counts(first) + counts(second) == counts([*first, *second])


@settings(max_examples=tries(40))
@given(SAMPLES, st.booleans(), st.randoms(use_true_random=False))
def test_flips_are_the_rows_of_their_cells(samples: list[Sample], answers: bool, random) -> None:
    old, new = sides(samples, answers, controls=0)
    order = list(range(len(samples)))
    random.shuffle(order)
    shuffled = Predictions.from_frame(
        new.frame.collect()[order], correct="correct", label="label" if answers else None
    )
    result = compare(old=old, new=shuffled)
    assert result.counts == compare(old=old, new=new).counts
    flips = result.flips()
    expected = {
        i: "negative" if a == "right" else "positive" if b == "right" else "wrong_to_wrong"
        for i, ((a, b, *_), texts, _) in enumerate(samples)
        if (a == "right") != (b == "right")
        or (answers and "right" not in (a, b) and texts[0] != texts[1])
    }
    assert dict(zip(flips["id"], flips["kind"], strict=True)) == expected
    if not answers:
        shown = dict(zip(flips["id"], flips["new"], strict=True))
        assert shown == {i: samples[i][0][1] for i in expected}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_all_spellings_of_a_grade(tmp_path: Path, suffix: str) -> None:
    pairs = [(grade, text) for grade, texts in SPELLINGS.items() for text in texts]
    frame = pl.DataFrame({"id": range(len(pairs)), "ok": [text for _, text in pairs]})
    path = tmp_path / f"old.{suffix}"
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[suffix](
        path
    )
    side = read_predictions(path, correct="ok")
    result = compare(old=side, new=side)
    n = len(pairs)
    assert result.counts["both_right"] == len(SPELLINGS["right"])
    for reason in GRADES[2:]:
        assert result[f"{reason}_share_new"].value == pytest.approx(2 / n)


@pytest.mark.parametrize(
    "values",
    [[1, 0, 1], [1.0, 0.0, 1.0], [True, False, True], np.array([1, 0, 1], dtype=np.uint8)],
)
def test_numbers_and_truth_values_are_grades(values: object) -> None:
    old = Predictions.from_arrays(correct=values)
    new = Predictions.from_arrays(correct=["C", "I", "I"])
    result = compare(old=old, new=new)
    assert [int(result.counts[cell]) for cell in ("both_right", "negative_flip")] == [1, 1]


def test_without_answers_the_json_says_so() -> None:
    old = Predictions.from_arrays(correct=[1, 1, 0, 0])
    new = Predictions.from_arrays(correct=[1, 0, 0, "error"])
    result = compare(old=old, new=new)
    document = json.loads(result.to_json())
    assert document["counts"] == {
        "both_right": 1,
        "negative_flip": 1,
        "positive_flip": 0,
        "both_wrong": 2,
        "wrong_same": None,
        "wrong_different": None,
    }
    assert document["metrics"]["churn"]["value"] is None
    assert document["metrics"]["error_share_new"]["value"] == 0.25
    shown = result.summary()
    assert "error_share_new" in shown
    assert "refused_share_new" not in shown
    assert "another wrong" not in shown


def test_grades_decide_although_a_target_is_there() -> None:
    frame = pl.DataFrame(
        {"id": [1, 2], "target": ["a", "b"], "label": ["a", "A"], "correct": [1, 1]}
    )
    labelled = Predictions.from_frame(frame)
    assert compare(old=labelled, new=labelled)["error_rate_old"].value == 0.5
    graded = Predictions.from_frame(frame, correct="correct")
    result = compare(old=graded, new=graded, by="target")
    assert result["error_rate_old"].value == 0.0
    assert {group.name for group in result.by["target"]} == {"a", "b"}


def test_a_missing_answer_is_an_answer() -> None:
    ids = [1, 2, 3, 4]
    old = Predictions.from_arrays(ids=ids, correct=[1, 1, "error", 0], labels=["a", "b", None, "c"])
    new = Predictions.from_arrays(
        ids=ids, correct=[1, "refused", "error", 0], labels=["a", None, None, "d"]
    )
    result = compare(old=old, new=new)
    assert result["churn"].value == 2 / 4
    assert result["wrong_to_wrong"].value == 1 / 4
    assert dict(zip(*result.flips()[["id", "kind"]], strict=True)) == {
        2: "negative",
        4: "wrong_to_wrong",
    }


def test_a_column_of_grades_in_other_letters_is_suggested() -> None:
    frame = pl.DataFrame({"id": [1], "Passed": [1], "target": ["a"]})
    with pytest.raises(InputError, match=r"; try: `correct='Passed'`\.$"):
        Predictions.from_frame(frame)


# -- grades that are found by name -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["correct", "acc", "is_correct", "passed"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize("extra", [(), ("target",), ("label",)], ids=str)
def test_each_name_is_taken_and_told(
    name: str, suffix: str, extra: tuple[str, ...], tmp_path: Path
) -> None:
    frames = [
        pl.DataFrame({"id": [1, 2, 3], **dict.fromkeys(extra, "x"), name: grades})
        for grades in ([1, 1, 0], [1, 0, 0])
    ]
    path = tmp_path / f"old.{suffix}"
    if suffix != "frame":
        method = {"csv": "write_csv", "jsonl": "write_ndjson", "parquet": "write_parquet"}[suffix]
        getattr(frames[0], method)(path)
    old = frames[0] if suffix == "frame" else path
    new = Predictions.from_frame(frames[1], correct=name)
    result = compare(old=old, new=new)
    assert result["negative_flip_rate"].value == pytest.approx(1 / 3)
    assert result["churn"].is_defined == ("label" in extra)
    shown = "old" if suffix == "frame" else path
    assert [n for n in result.notes if "took" in n] == [f"{shown}: took column {name!r} as correct"]


def test_a_target_and_a_prediction_come_first(tmp_path: Path) -> None:
    columns = {"id": [1, 2], "target": ["a", "b"], "acc": [1, 1], "passed": [0, 0]}
    labelled = {**columns, "label": ["a", "x"]}
    scored = {**columns, "logit_a": [1.0, 1.0], "logit_b": [0.0, 0.0]}
    for each in (labelled, scored):
        side = Predictions.from_frame(pl.DataFrame(each))
        assert side.correct is None
        assert compare(old=side, new=side)["error_rate_old"].value == 0.5
    with pytest.raises(InputError) as caught:
        Predictions.from_frame(pl.DataFrame(columns), name="old")
    assert str(caught.value) == (
        "old has 2 columns that may be the grade ('acc', 'passed'); name the right one: "
        "`correct='acc'` or `correct='passed'`."
    )


def test_found_grades_yield_to_the_target_of_another_file(tmp_path: Path) -> None:
    ids = {"id": [1, 2, 3]}
    old = pl.DataFrame({**ids, "target": ["a", "b", "c"], "label": ["a", "b", "x"]})
    new = pl.DataFrame({**ids, "label": ["a", "x", "c"], "correct": [0, 0, 0]})
    result = compare(old=old, new=new)
    assert result["negative_flip_rate"].value == pytest.approx(1 / 3)
    assert not any("took" in note for note in result.notes)
    assert matrix([old, new]).negative_flip_rate[0, 1] == pytest.approx(1 / 3)
    # But not where the other file has nothing to compare with.
    with pytest.raises(InputError, match="new has grades in column 'correct', but old has none"):
        compare(old=old, new=new.drop("label"))


def test_a_found_column_without_grades_says_what_to_do() -> None:
    frame = pl.DataFrame({"id": [1], "label": ["a"], "acc": [0.75]})
    with pytest.raises(InputError, match="unparsed, or rename the column if it holds no grades"):
        compare(old=frame, new=frame)


def test_no_table_is_written_that_would_be_graded_when_read(tmp_path: Path) -> None:
    side = Predictions.from_arrays(ids=[1], labels=["a"], slices={"passed": [1]}, name="m")
    with pytest.raises(InputError, match="m has a further column 'passed', a name that"):
        write_predictions(side, tmp_path / "m.csv")
    known = Predictions.from_arrays(ids=[1], labels=["a"], targets=["a"], slices={"passed": [1]})
    write_predictions(known, tmp_path / "m.csv")
    assert read_predictions(tmp_path / "m.csv").correct is None


def test_columns_of_two_models_in_one_file_have_no_grades(tmp_path: Path) -> None:
    (tmp_path / "both.csv").write_text("id,v1,v2,correct\n1,a,a,1\n2,a,b,0\n")
    labels = ("--label-old", "v1", "--label-new", "v2", "--json", "-")
    done = flipguard("compare", "both.csv", *labels, folder=tmp_path)
    assert json.loads(done.out)["metrics"]["churn"]["value"] == 0.5
    assert json.loads(done.out)["metrics"]["negative_flip_rate"]["value"] is None


def test_right_and_wrong_in_the_column_of_labels() -> None:
    for flags in ([0, 1, 1, 1], ["0", "1", "1", "1"]):
        targets = [str(t) for t in range(4)] if isinstance(flags[0], str) else range(4)
        side = Predictions.from_arrays(labels=flags, targets=targets, name="old")
        other = Predictions.from_arrays(labels=list(targets), name="new")
        shown = ", ".join(map(repr, sorted(set(flags))))
        assert compare(old=side, new=other).notes == (
            "rows were matched by their position, not by an id",
            f"old predicts no class but {shown}, and there are 4 target classes; if the column "
            "says right or wrong, name it with `correct=`",
        )
    # With two classes these are what models predict.
    side = Predictions.from_arrays(labels=[1, 0, 1], targets=[0, 1, 1], ids=[1, 2, 3])
    other = Predictions.from_arrays(labels=[1, 1, 1], ids=[1, 2, 3])
    assert compare(old=side, new=other).notes == ()


def test_grades_that_are_not_used_are_noted(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"id": [1, 2], "target": ["a", "b"], "label": ["a", "a"], "is_correct": [1, 1]}
    )
    other = frame.with_columns(pl.Series("label", ["b", "b"]))
    note = (
        "a column 'is_correct' that was not used, because rows are right where the label is the "
        "target; if it holds the grades to use, give "
    )
    old, new = Predictions.from_frame(frame, name="old"), Predictions.from_frame(other, name="new")
    assert compare(old=old, new=new).notes == (f"old, new have {note}`correct='is_correct'`",)
    bare = Predictions.from_frame(other.drop("is_correct"), name="new")
    assert compare(old=old, new=bare).notes == (f"old has {note}`correct='is_correct'`",)
    # What is used is not noted.
    assert compare(old=old, new=bare, by="is_correct").notes == ()
    used = [Predictions.from_frame(frame, correct="is_correct") for _ in range(2)]
    assert not any("not used" in text for text in compare(old=used[0], new=used[1]).notes)
    for name, table in (("old", frame), ("new", other)):
        table.write_csv(tmp_path / f"{name}.csv")
    done = flipguard("compare", "old.csv", "new.csv", folder=tmp_path)
    assert "give --correct is_correct" in " ".join(done.out.split())
    done = flipguard("report", "new.csv", "--old", "old.csv", "--out", "r.html", folder=tmp_path)
    assert done.code == 0, done.err
    assert "where the label is the target.<" in (tmp_path / "r.html").read_text()


# -- many models -----------------------------------------------------------------------------------


@settings(max_examples=tries(25))
@given(SAMPLES, st.booleans())
def test_a_matrix_holds_what_each_comparison_does(samples: list[Sample], answers: bool) -> None:
    models = sides(samples, answers)
    found = matrix(models)
    for i, old in enumerate(models):
        for j, new in enumerate(models):
            if i == j:
                continue
            result = compare(old=old, new=new)
            for metric in ("negative_flip_rate", "churn", "accuracy_gain"):
                assert same(getattr(found, metric)[i, j], result[metric].value), metric
            assert same(found.error_rate[i], result["error_rate_old"].value)


def test_a_matrix_of_grades_on_the_command_line(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    done = flipguard("matrix", old, new, "--correct", "ok", "--plot", tmp_path / "m.svg")
    assert done.code == 0, done.err
    assert "negative_flip_rate" in done.out
    assert "churn" not in done.out
    for name in ("a", "b"):
        frame = pl.read_csv(old).rename({"ok": "passed"})
        frame.write_csv(tmp_path / f"{name}.csv")
    done = flipguard("matrix", "a.csv", "b.csv", "--json", "-", folder=tmp_path)
    assert json.loads(done.out)["notes"] == ["a.csv, b.csv: took column 'passed' as correct"]
    assert (
        flipguard("report", "b.csv", "--old", "a.csv", "--out", "r.html", folder=tmp_path).code == 0
    )
    assert "took column" in (tmp_path / "r.html").read_text()


def test_grades_are_written_and_read(tmp_path: Path) -> None:
    side = Predictions.from_arrays(ids=[1, 2], correct=[1, "error"], targets=["a", "b"])
    write_predictions(side, tmp_path / "old.jsonl")
    again = read_predictions(tmp_path / "old.jsonl", correct="correct")
    result = compare(old=side, new=again, by="target")
    assert result.counts["both_right"] == 1
    assert result["error_share_old"].value == result["error_share_new"].value == 1 / 2
    with pytest.raises(InputError, match="has grades, which an NPZ file"):
        write_predictions(side, tmp_path / "old.npz")


def test_scores_of_graded_rows() -> None:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    old = Predictions.from_arrays(probabilities=probabilities, correct=[1, 0, 1])
    new = Predictions.from_arrays(probabilities=probabilities[::-1].copy(), correct=[1, 1, 0])
    result = compare(old=old, new=new)
    assert result["churn"].value == 0.0
    gaps = [abs(1 - 0.9), abs(0 - 0.8), abs(1 - 0.6)]
    assert result["expected_calibration_error_old"].value == pytest.approx(sum(gaps) / 3)
    assert result.counts["negative_flip"] == 1


# -- refusals --------------------------------------------------------------------------------------


def refused(old: Predictions, new: Predictions) -> str:
    with pytest.raises(InputError) as caught:
        compare(old=old, new=new)
    return str(caught.value)


@pytest.mark.parametrize("value", ["maybe", None, "0.5", ""])
def test_what_is_no_grade_is_refused(value: object) -> None:
    old = Predictions.from_arrays(ids=[7, 8], correct=["1", value], name="old")
    new = Predictions.from_arrays(ids=[8, 7], correct=["1", "0"], name="new")
    for first, second in ((old, new), (new, old)):
        text = refused(first, second)
        assert text.startswith("old has no grade in column 'correct' for id 8")
        assert text.endswith("pass or fail, C or I, or one of error, refused and unparsed.")


def test_a_score_is_no_grade() -> None:
    old = Predictions.from_arrays(correct=[0.5, 1.0], name="old")
    assert "for row 1 ('0.5')" in refused(old, old)


def test_grades_in_one_file_only_are_refused() -> None:
    old = Predictions.from_arrays(correct=[1], name="old")
    new = Predictions.from_arrays(labels=["a"], name="new")
    assert refused(old, new) == (
        "old has grades in column 'correct', but new has none; name the column of grades in every "
        "file with `correct=`, or in no file."
    )


def test_a_file_without_predictions_is_told_of_grades(tmp_path: Path) -> None:
    pl.DataFrame({"id": [1], "fine": [1]}).write_csv(tmp_path / "new.csv")
    pl.DataFrame({"id": [1], "correct": [1]}).write_csv(tmp_path / "old.csv")
    done = flipguard("compare", "old.csv", "new.csv", folder=tmp_path)
    assert done.code == 2
    ways = "name the column of predicted classes with --label, or of grades with --correct, or add"
    assert ways in " ".join(done.err.split())
    # Ensembles and reports have no such flag.
    done = flipguard("ensemble", "new.csv", "new.csv", "--out", "e.csv", folder=tmp_path)
    assert done.code == 2
    assert "with --label, or add" in " ".join(done.err.split())
    done = flipguard("report", "new.csv", "--old", "old.csv", "--out", "r.html", folder=tmp_path)
    assert done.code == 2
    ways = "call the column of predicted classes 'label', or that of grades 'correct', or add"
    assert ways in " ".join(done.err.split())


def test_a_column_that_holds_no_grades_at_all_is_refused() -> None:
    frame = pl.DataFrame({"id": [1], "ok": [[1]]})
    side = Predictions.from_frame(frame, correct="ok", name="old")
    assert "column 'ok' of type List(Int64), which `correct=` cannot read" in refused(side, side)
    with pytest.raises(InputError, match="has no column 'fine', which `correct=` asks for"):
        Predictions.from_frame(frame, correct="fine")


def test_an_ensemble_of_grades_is_refused() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    bare = Predictions.from_arrays(correct=[1, 0], name="old")
    named = Predictions.from_arrays(correct=[1, 0], probabilities=scores, name="old")
    for side in (bare, named):
        with pytest.raises(InputError) as caught:
            ensemble([side, side])
        assert str(caught.value) == (
            "old has grades in column 'correct', and grades cannot be averaged; give logits or "
            "probabilities of every member, without grades."
        )
    # Grades that were found by their name are left out.
    frame = pl.DataFrame({"id": [1], "acc": [1], "logit_a": [0.0], "logit_b": [1.0]})
    side = Predictions.from_frame(frame)
    assert side.correct == "acc"
    assert ensemble([side, side]).correct is None


def test_an_npz_file_has_no_grades(tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", labels=np.array([1]))
    with pytest.raises(InputError, match="in an NPZ file, which has no column of grades"):
        read_predictions(tmp_path / "old.npz", correct="ok")


# -- gate, report and command line -----------------------------------------------------------------


def files(folder: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(4)
    old = rng.choice(["1", "0"], 300, p=[0.8, 0.2])
    new = np.where(rng.random(300) < 0.9, old, rng.choice(["0", "error", "refused"], 300))
    paths = folder / "old.csv", folder / "new.csv"
    for path, grades in zip(paths, (old, new), strict=True):
        table = {"id": range(300), "ok": grades, "task": [f"t{i % 2}" for i in range(300)]}
        pl.DataFrame(table).write_csv(path)
    return paths


def test_a_rule_limits_missing_answers() -> None:
    old = Predictions.from_arrays(correct=[1] * 200)
    new = Predictions.from_arrays(correct=[1] * 150 + ["unparsed"] * 50)
    result = compare(old=old, new=new)

    def judged(metric: str) -> str:
        return check(result, Policy.from_dict({"rule": [{"metric": metric, "max": 0.05}]})).verdict

    assert judged("unparsed_share_new") == "fail"
    assert judged("refused_share_new") == "pass"
    with pytest.raises(PolicyError, match="limits churn, which needs predicted labels"):
        judged("churn")
    labelled = compare(
        old=Predictions.from_arrays(labels=[1], targets=[1]),
        new=Predictions.from_arrays(labels=[1]),
    )
    rule = Policy.from_dict({"rule": [{"metric": "error_share_new", "max": 0.05}]})
    with pytest.raises(PolicyError, match=r"which needs grades \(`correct=`\)"):
        check(labelled, rule)


@pytest.mark.parametrize("reason", ["error", "refused", "unparsed"])
@pytest.mark.parametrize("by", [None, "half"])
def test_further_missing_answers_occur_by_chance(reason: str, by: str | None) -> None:
    def judged(metric: str, grade: str) -> list[tuple[int | None, int | None]]:
        halves = {"half": ["a", "b"] * 250}
        old = Predictions.from_arrays(correct=["1"] * 500, slices=halves)
        new = Predictions.from_arrays(correct=[grade] * 14 + ["1"] * 486)
        rule = {"metric": metric, "max": 0.02} | ({} if by is None else {"by": by})
        verdict = check(compare(old=old, new=new), Policy.from_dict({"rule": [rule]}))
        assert all(" chance to fail" in str(j.reason or " chance to fail") for j in found(verdict))
        return [(j.samples_needed_even, j.samples_needed_90) for j in found(verdict)]

    def found(verdict: Verdict) -> tuple[Judgement, ...]:
        return verdict.rules[0].judgements

    needed = judged(f"{reason}_share_new", reason)
    # A share of the rows is decided as the rate of as many flips is.
    assert needed == judged("negative_flip_rate", "0")
    assert by is not None or needed == [(847, 3114)]


def test_the_samples_that_decide_missing_answers_do_so_with_their_chance() -> None:
    new = Predictions.from_arrays(correct=["error"] * 14 + ["1"] * 486)
    old = Predictions.from_arrays(correct=["1"] * 500)
    rule = {"metric": "error_share_new", "max": 0.02}
    verdict = check(compare(old=old, new=new), Policy.from_dict({"rule": [rule]}))
    judgement = verdict.rules[0].judgements[0]
    for more, chance in (
        (judgement.samples_needed_even, 0.5),
        (judgement.samples_needed_90, 0.9),
    ):
        assert more is not None
        least = next(
            k for k in range(more) if wilson(14 + k, 500 + more, confidence=0.95)[0] > 0.02
        )
        assert binom.sf(least - 1, more, 14 / 500) == pytest.approx(chance, abs=0.04)


def test_grades_that_cannot_show_refusals_are_noted(tmp_path: Path) -> None:
    old = Predictions.from_arrays(correct=["C", "error"] * 300, name="before")
    new = Predictions.from_arrays(correct=["C", "I"] * 300, name="after")
    result = compare(old=old, new=new)
    note = (
        "after holds only right and wrong grades, so refusals, errors and unreadable answers "
        "cannot be seen in it"
    )

    def judged(*metrics: str) -> Verdict:
        rules = [{"metric": metric, "max": 0.9} for metric in metrics]
        return check(result, Policy.from_dict({"rule": rules}))

    verdict = judged("refused_share_new", "error_share_new", "error_share_old")
    assert verdict.comparison.notes.count(note) == 1
    assert verdict.as_dict()["comparison"]["notes"][-1] == note
    for text in (verdict.summary(), verdict.to_markdown(), verdict._repr_html_()):
        assert note in " ".join(text.split())
    again = check(verdict.comparison, verdict.policy)
    assert again.comparison.notes == verdict.comparison.notes
    for unlimited in ("refused_share_old", "negative_flip_rate"):
        assert judged(unlimited).comparison.notes == result.notes
    write_report(result, tmp_path / "report.html", verdict=verdict)
    assert note in (tmp_path / "report.html").read_text()


def test_the_command_line_notes_grades_that_cannot_show_refusals(tmp_path: Path) -> None:
    old, _ = files(tmp_path)
    policy = tmp_path / "gate.toml"
    policy.write_text('[[rule]]\nmetric = "refused_share_new"\nmax = 0.05\n')
    outputs = ("--html", "page.html", "--markdown", "note.md")
    given = (old, old, "--policy", policy, "--correct", "ok", *outputs)
    done = flipguard("gate", *given, folder=tmp_path)
    assert done.code == 0, done.err
    shown = done.out, (tmp_path / "page.html").read_text(), (tmp_path / "note.md").read_text()
    for text in shown:
        assert "holds only right and wrong grades" in " ".join(text.split())


def test_an_old_model_that_is_never_right_cannot_be_judged() -> None:
    old = Predictions.from_arrays(correct=[0] * 20, name="old")
    result = compare(old=old, new=Predictions.from_arrays(correct=[1] * 20))
    assert "old: no sample is graded as right; check the column of grades" in result.notes
    policy = Policy.from_dict({"rule": [{"metric": "negative_flip_rate", "max": 0.5}]})
    with pytest.raises(PolicyError, match="no sample of old is graded as right"):
        check(result, policy)


@pytest.mark.parametrize("answers", [False, True])
def test_every_output_shows_graded_rows(tmp_path: Path, answers: bool) -> None:
    texts = ["x", "y", "3.5", ""]
    samples = [
        ((a, b, a, b), (texts[i % 4], texts[i % 3], "x", "y"), "pq"[i % 2])
        for i, (a, b) in enumerate(product(GRADES, GRADES))
    ]
    old, new, *controls = sides(samples, answers)
    result = compare(old=old, new=new, control=controls, by="group")
    policy = Policy.from_dict({"rule": [{"metric": "negative_flip_rate", "max": 0.5}]})
    verdict = check(result, policy)
    write_report(result, tmp_path / "report.html", verdict=verdict)
    page = (tmp_path / "report.html").read_text()
    assert ("with another wrong answer" in page) == answers
    assert "error_share_new" in result.to_markdown()
    assert result._repr_html_()
    assert str(verdict)


def test_the_command_line(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    out = tmp_path / "out.json"
    done = flipguard("compare", old, new, "--correct", "ok", "--by", "task", "--json", out)
    assert done.code == 0, done.err
    document = json.loads(out.read_text())
    expected = compare(
        old=read_predictions(old, correct="ok"), new=read_predictions(new, correct="ok"), by="task"
    )
    assert document["metrics"] == json.loads(expected.to_json())["metrics"]
    done = flipguard("compare", old, new, "--correct", "task")
    assert done.code == 2
    assert "has no grade in column 'task'" in done.err


# -- starter policies ------------------------------------------------------------------------------


def suggested(text: str) -> list[str]:
    return [line.split('"')[1] for line in text.splitlines() if line.startswith("# metric")]


@pytest.mark.parametrize("kind", ["retrain", "classes"])
@pytest.mark.parametrize("target", [False, True])
def test_a_starter_policy_of_graded_files_can_be_judged(
    tmp_path: Path, kind: str, target: bool
) -> None:
    old, new = files(tmp_path)
    if target:
        for path in (old, new):
            frame = pl.read_csv(path).with_columns(pl.col("task").alias("target"))
            frame.write_csv(path)
    flags = ("--old", old, "--control", new, "--correct", "ok")
    done = flipguard("init", kind, *flags, folder=tmp_path)
    assert done.code == 0, done.err
    policy = Policy.read(tmp_path / "gate.toml")
    assert ("target" in policy.by) == target
    ran = flipguard("gate", old, new, "--correct", "ok", "--policy", tmp_path / "gate.toml")
    assert ran.code == 0, ran.out + ran.err
    text = (tmp_path / "gate.toml").read_text()
    assert {"refused_share_new", "error_share_new"} <= set(suggested(text))
    # What is suggested is valid.
    commented = [line.removeprefix("# ") for line in text.splitlines()]
    keys = ("[[", "metric =", "min", "max", "by =", "level", "require", "correction")
    rules = tomllib.loads("\n".join(line for line in commented if line.startswith(keys)))
    assert len(Policy.from_dict(rules).rules) > len(policy.rules)


def test_a_starter_policy_of_labels_suggests_nothing_about_grades(tmp_path: Path) -> None:
    done = flipguard("init", "--out", "-", folder=tmp_path)
    assert "refused_share_new" not in done.out
