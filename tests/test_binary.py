"""Rows with one score and a threshold: positive from the threshold on, against plain Python."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard import (
    Comparison,
    Predictions,
    compare,
    compare_models,
    matrix,
    read_predictions,
    write_predictions,
)
from flipguard.counts import FlipCounts
from flipguard.errors import InputError
from flipguard.render.threshold_words import threshold_sentence
from flipguard.report.score_charts import highest_drawn, threshold_chart
from tests import plain
from tests.commands import flipguard
from tests.effort import tries

SCORES = st.one_of(
    st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]), st.floats(-2.0, 2.0, allow_nan=False)
)


@dataclass(frozen=True)
class Sample:
    """A sample: the scores of old, new and a control, its target, and its group."""

    scores: tuple[float, float, float]
    target: bool | None
    group: str


SAMPLES = st.lists(
    st.builds(
        Sample,
        st.tuples(SCORES, SCORES, SCORES),
        st.sampled_from([True, False, False, None]),
        st.sampled_from(["p", "q"]),
    ),
    min_size=1,
    max_size=20,
)
THRESHOLDS = st.sampled_from([0.0, 0.3, 0.5, 0.61])
# The names of both classes, negative first, as targets of a column and as `positive=`.
NAMES: list[tuple[list[Any], object]] = [
    ([0, 1], None),
    ([False, True], None),
    (["0", "1"], None),
    (["fair", "fraud"], "fraud"),
    (["a", "b"], "a"),
    ([0, 1], 0),
]


def by_hand(score: float, threshold: float, names: tuple[str, str]) -> str:
    """The class of a score, named negative first."""
    return names[1] if score >= threshold else names[0]


def sides(
    samples: list[Sample], thresholds: tuple[float, float], classes: list[Any], positive: object
) -> list[Predictions]:
    target = [None if s.target is None else classes[s.target] for s in samples]
    return [
        Predictions.from_arrays(
            ids=list(range(len(samples))),
            targets=pl.Series(target, dtype=pl.Series(classes).dtype),
            positive_scores=[s.scores[i] for s in samples],
            threshold=threshold,
            positive=positive,
            slices={"group": [s.group for s in samples]},
            name=f"model{i}",
        )
        for i, threshold in enumerate((*thresholds, thresholds[1]))
    ]


def as_labelled(
    samples: list[Sample], thresholds: tuple[float, float], positive_is_true: bool
) -> plain.Case:
    names = ("no", "yes") if positive_is_true else ("yes", "no")
    told = [None if s.target is None else ("yes" if s.target else "no") for s in samples]
    return plain.Case(
        rows=[
            plain.Row(
                id=i,
                target=told[i],
                old=by_hand(s.scores[0], thresholds[0], names),
                new=by_hand(s.scores[1], thresholds[1], names),
                controls=(by_hand(s.scores[2], thresholds[1], names),),
                groups={"group": s.group},
            )
            for i, s in enumerate(samples)
        ]
    )


def same(value: float, expected: float) -> bool:
    return math.isnan(value) if math.isnan(expected) else value == pytest.approx(expected)


@settings(max_examples=tries(60))
@given(SAMPLES, THRESHOLDS, THRESHOLDS, st.sampled_from(NAMES))
def test_every_metric_is_its_plain_definition(
    samples: list[Sample], first: float, second: float, names: tuple[list[Any], object]
) -> None:
    classes, positive = names
    old, new, control = sides(samples, (first, second), classes, positive)
    result = compare(old=old, new=new, control=control, by="group")
    positive_is_true = positive is None or positive == classes[1]
    parts = [(samples, result.whole)]
    parts += [([s for s in samples if s.group == g.name], g) for g in result.by["group"]]
    for some, found in parts:
        case = as_labelled(some, (first, second), positive_is_true)
        for name, definition in plain.METRICS.items():
            assert same(found[name].value, definition(case)), name


@settings(max_examples=tries(40))
@given(SAMPLES, SAMPLES, st.sampled_from(NAMES))
def test_the_counts_of_parts_add_to_those_of_the_whole(
    first: list[Sample], second: list[Sample], names: tuple[list[Any], object]
) -> None:
    def counts(samples: list[Sample]) -> FlipCounts:
        old, new, _ = sides(samples, (0.5, 0.3), *names)
        return compare(old=old, new=new).counts

    assert counts(first) + counts(second) == counts([*first, *second])


@settings(max_examples=tries(25))
@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(samples: list[Sample], random: Any) -> None:
    old, new, _ = sides(samples, (0.5, 0.3), [0, 1], None)
    order = list(range(len(samples)))
    random.shuffle(order)
    described = {"positive_score": "positive_score", "threshold": 0.3}
    shuffled = Predictions.from_frame(new.frame.collect()[order], **described)
    assert compare(old=old, new=new).counts == compare(old=old, new=shuffled).counts


def test_worst_flips_first_with_their_scores() -> None:
    result = compare(
        old=[0.9, 0.8, 0.1, 0.2, 0.6],
        new=[0.4, 0.1, 0.6, 0.1, 0.9],
        target=[1, 1, 1, 0, 1],
        threshold=0.5,
    )
    flips = result.flips()
    assert flips["kind"].to_list() == ["negative", "negative", "positive"]
    assert flips["id"].to_list() == [1, 0, 2]
    assert flips["old_score"].to_list() == [0.8, 0.9, 0.1]
    assert flips["new_score"].to_list() == [0.1, 0.4, 0.6]
    assert flips["old"].to_list() == [1, 1, 0]


def test_new_and_the_controls_may_have_another_threshold() -> None:
    scores = np.array([0.1, 0.4, 0.6, 0.9])
    sides = {"old": scores, "new": scores, "control": scores}
    found = compare(**sides, target=[0, 0, 1, 1], threshold=0.5, threshold_new=0.7)
    assert found["negative_flip_rate"].value == 1 / 4
    assert found["negative_flip_ratio"].value == 1


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "arrow", "csv.gz"])
def test_every_format_gives_the_same(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    target = rng.choice(["fair", "fraud"], 200)
    results = []
    for folder in (tmp_path / "a", tmp_path / kind):
        folder.mkdir()
        suffix = "parquet" if folder.name == "a" else kind
        for side in ("old", "new"):
            draws = np.random.default_rng(len(side) + ord(side[0])).random(200).round(2)
            table = Predictions.from_arrays(
                ids=np.arange(200),
                targets=target,
                positive_scores=draws,
                threshold=0.5,
                positive="fraud",
            )
            write_predictions(table, folder / f"{side}.{suffix}")
        described: dict[str, Any] = {"positive_score": "positive_score", "threshold": 0.37}
        described |= {"positive": "fraud", "target": "target"}
        sides = {s: str(folder / f"{s}.{suffix}") for s in ("old", "new")}
        results.append(compare(**sides, **described, by="target"))
    first, second = results
    assert first.counts == second.counts
    assert first.n == 200
    assert {g.name for g in second.by["target"]} == {"fair", "fraud"}
    assert first.by["target"]["fraud"].counts == second.by["target"]["fraud"].counts


def test_a_threshold_is_compared_in_the_precision_of_the_scores() -> None:
    scores = np.array([0.7, 0.3], dtype=np.float32)
    found = compare(old=scores, new=scores.astype(np.float64), target=[1, 0], threshold=0.7)
    assert found["error_rate_old"].value == 0
    # 0.7 in 32 bits is a little less than 0.7 in 64 bits.
    assert found["error_rate_new"].value == 0.5


def test_targets_of_one_class_only() -> None:
    for target, names in (([1, 1], {1, 0}), (["fraud", "fraud"], {"fraud", "not fraud"})):
        positive = None if target == [1, 1] else "fraud"
        found = compare(
            old=[0.9, 0.9], new=[0.9, 0.1], target=target, threshold=0.5, positive=positive
        )
        assert found["negative_flip_rate"].value == 0.5
        assert set(found.flips()[["old", "new"]].row(0)) == names


def test_without_targets_only_churn() -> None:
    found = compare(old=[0.9, 0.9], new=[0.9, 0.1], threshold=0.5)
    assert found["churn"].value == 0.5
    assert not found["negative_flip_rate"].is_defined


def test_a_matrix_of_scores() -> None:
    sides = [
        Predictions.from_arrays(
            ids=[0, 1, 2, 3], targets=[0, 0, 1, 1], positive_scores=scores, threshold=0.5
        )
        for scores in ([0.1, 0.2, 0.8, 0.9], [0.6, 0.2, 0.8, 0.9])
    ]
    assert matrix(sides).negative_flip_rate[0, 1] == 1 / 4


def table(path: Path, **columns: list[Any]) -> str:
    pl.DataFrame(columns).write_csv(path)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    target = ["fair", "fraud", "fraud", "fair"]
    return [
        table(tmp_path / "old.csv", id=[1, 2, 3, 4], target=target, score=[0.1, 0.8, 0.9, 0.4]),
        table(tmp_path / "new.csv", id=[1, 2, 3, 4], target=target, score=[0.1, 0.4, 0.9, 0.6]),
    ]


FRAUD = ("--positive-score", "score", "--positive", "fraud")


def test_the_commands(files: list[str], tmp_path: Path) -> None:
    ran = flipguard("compare", *files, *FRAUD, "--threshold", "0.5", "--json", "-")
    found = json.loads(ran.out)
    assert found["counts"]["negative_flip"] == 2
    ran = flipguard(
        *("compare", *files, *FRAUD, "--threshold", "0.5", "--threshold-new", "0.35"),
        *("--json", "-", "--flips", tmp_path / "flips.csv"),
    )
    assert json.loads(ran.out)["counts"]["negative_flip"] == 1
    assert pl.read_csv(tmp_path / "flips.csv").row(0, named=True) == {
        "id": 4,
        "kind": "negative",
        "target": "fair",
        "old": "fair",
        "new": "fraud",
        "old_score": 0.4,
        "new_score": 0.6,
    }
    policy = tmp_path / "gate.toml"
    policy.write_text('[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.3\njudge = "point"\n')
    gate = ("gate", *files, "--policy", policy, *FRAUD, "--threshold", "0.5")
    assert flipguard(*gate).code == 1
    assert flipguard(*gate, "--threshold-new", "0.35").code == 0


REFUSED: list[tuple[list[str], str]] = [
    (["--positive-score", "score"], "Expected --threshold with --positive-score"),
    (["--threshold", "0.5"], "Expected --positive-score with --threshold"),
    (["--positive", "fraud"], "Expected --positive-score with --positive"),
    ([*FRAUD, "--threshold-new", "0.5"], "Expected --threshold with --threshold-new"),
    ([*FRAUD, "--threshold", "nan"], "Expected --threshold to be a finite number"),
    ([*FRAUD, "--threshold", "0.5", "--threshold-new", "inf"], "to be a finite number"),
    ([*FRAUD[:2], "--threshold", "0.5"], "nothing says which class a high score means"),
    (
        [*FRAUD[:3], "fruad", "--threshold", "0.5"],
        "No target is of the class 'fruad' that --positive names; the classes are 'fair', 'fraud'.",
    ),
    (
        ["--positive-score", "scor", "--threshold", "0.5"],
        "has no column 'scor', which --positive-score asks for",
    ),
    (
        [*FRAUD, "--threshold", "0.5", "--label", "target"],
        "has both a score of the positive class and --label",
    ),
    (
        [*FRAUD, "--threshold", "0.5", "--correct", "target"],
        "has both a score of the positive class and --correct",
    ),
    (
        ["--positive-score", "target", "--threshold", "0.5", "--positive", "fraud"],
        "has no score in column 'target' for id '1'",
    ),
]


@pytest.mark.parametrize(("flags", "sentence"), REFUSED)
def test_what_is_refused(files: list[str], flags: list[str], sentence: str) -> None:
    ran = flipguard("compare", *files, *flags)
    assert (ran.code, ran.out) == (2, "")
    told = " ".join(ran.err.split())
    assert sentence in told, told
    assert told.count(". ") == 0, told


@pytest.mark.parametrize("value", ["", "nan", "inf", "-inf", "0,5", "high"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_bad_score_is_refused_with_its_id(files: list[str], value: str, side: int) -> None:
    Path(files[side]).write_text(
        f'id,target,score\n1,fair,0.1\n2,fraud,"{value}"\n3,fraud,0.9\n4,fair,0.2\n'
    )
    ran = flipguard("compare", *files, *FRAUD, "--threshold", "0.5")
    assert ran.code == 2
    name = Path(files[side]).name
    assert f"{name} has no score in column 'score' for id '2', or one that is NaN" in " ".join(
        ran.err.split()
    )


def test_a_third_class_is_refused(files: list[str]) -> None:
    Path(files[0]).write_text("id,target,score\n1,fair,0.1\n2,fraud,0.8\n3,odd,0.9\n4,fair,0.2\n")
    ran = flipguard("compare", *files, *FRAUD, "--threshold", "0.5")
    assert ran.code == 2
    assert "The targets have 3 classes ('fair', 'fraud', 'odd')" in " ".join(ran.err.split())


def test_what_is_refused_in_python(files: list[str]) -> None:
    plain_side = Predictions.from_arrays(ids=[1, 2, 3, 4], labels=["fair"] * 4)
    scored = read_predictions(files[0], positive_score="score", threshold=0.5, positive="fraud")
    other = read_predictions(files[0], positive_score="score", threshold=0.5, positive="fair")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"old": scored, "new": plain_side}, "but predictions has none"),
        ({"old": scored, "new": other}, "The sides name different positive classes"),
        ({"old": scored, "new": scored, "threshold": 0.5}, "Expected no `threshold`"),
        ({"old": [0.1], "new": [0.2], "threshold_new": 0.5}, "Expected `threshold=` with"),
        ({"old": [0.1], "new": [0.2], "positive": 1}, "Expected `threshold=` with"),
        ({"old": [0.1], "new": [0.2], "threshold": True}, "to be a finite number"),
        ({"old": [0.1], "new": [0.2], "threshold": "0.5"}, "to be a finite number"),
        (
            {"old": [0.1], "new": [0.2], "threshold": 0.5, "positive_score": "s"},
            "Expected no `positive_score`",
        ),
        ({"old": [True], "new": [False], "threshold": 0.5}, "of type Boolean"),
    ]
    for arguments, sentence in cases:
        with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
            compare(**arguments)


def test_an_npz_file_has_no_such_column(tmp_path: Path) -> None:
    side = Predictions.from_arrays(ids=[1], positive_scores=[0.5], threshold=0.5)
    with pytest.raises(InputError, match="a score of one class, which an NPZ file"):
        write_predictions(side, tmp_path / "a.npz")
    write_predictions(Predictions.from_arrays(ids=[1], labels=[1]), tmp_path / "a.npz")
    with pytest.raises(InputError, match="no column of scores of one class"):
        read_predictions(tmp_path / "a.npz", positive_score="score", threshold=0.5)


def test_scores_that_point_the_other_way_are_noticed() -> None:
    found: Comparison = compare(old=[0.9, 0.1], new=[0.9, 0.1], target=[0, 1], threshold=0.5)
    assert "old: every prediction is wrong; does a high score mean the other class?" in found.notes


def test_repr_names_the_score() -> None:
    side = Predictions.from_arrays(ids=[1], positive_scores=[0.5], threshold=0.25)
    assert repr(side) == "<Predictions 'predictions': id, positive from 'positive_score' of 0.25>"


# -- thresholds ----------------------------------------------------------------------------------


@settings(max_examples=tries(80))
@given(SAMPLES, THRESHOLDS, THRESHOLDS)
def test_thresholds_count_what_a_comparison_at_each_would(
    samples: list[Sample], first: float, second: float
) -> None:
    old, new, _ = sides(samples, (first, second), [0, 1], None)
    found = compare(old=old, new=new).details.thresholds
    known = [s for s in samples if s.target is not None]
    if not known:
        assert found is None
        return

    def by_hand_at(threshold: float) -> tuple[int, int, int, int, int]:
        old_right = [(s.scores[0] >= first) == s.target for s in known]
        new_right = [(s.scores[1] >= threshold) == s.target for s in known]
        pairs = list(zip(old_right, new_right, strict=True))
        return (
            sum(was and not now for was, now in pairs),
            sum(now and not was for was, now in pairs),
            sum(not now for now in new_right),
            sum(s.scores[1] >= threshold for s in known),
            sum(s.scores[1] >= threshold and s.target is True for s in known),
        )

    assert found is not None
    assert found.n == len(known)
    assert found.positives == sum(s.target is True for s in known)
    assert found.in_use.threshold == second
    points = [*found.points, found.in_use, *([] if found.best is None else [found.best])]
    for point in points:
        flips = (point.negative_flips, point.positive_flips)
        others = (point.wrong, point.predicted_positive, point.positives_found)
        assert flips + others == by_hand_at(point.threshold)
    tried = {s.scores[1]: by_hand_at(s.scores[1]) for s in known}
    used = found.in_use
    allowed = [
        flips
        for flips, _, wrong, _, caught in tried.values()
        if wrong <= used.wrong and caught >= used.positives_found
    ]
    fewest = min([*allowed, found.in_use.negative_flips])
    best = found.in_use if found.best is None else found.best
    assert best.negative_flips == fewest
    assert best.wrong <= found.in_use.wrong
    assert best.positives_found >= found.in_use.positives_found
    assert (found.best is None) == (fewest == found.in_use.negative_flips)
    # Every threshold with another count is in the picture, as there are few.
    rising = [point.threshold for point in found.points]
    assert rising == sorted(rising)
    if second <= max(tried):
        assert {by_hand_at(t) for t in tried} == {by_hand_at(t) for t in rising}


def test_a_picture_of_many_scores_has_few_points() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(20_000).astype(np.float32)
    target = (rng.random(20_000) < scores).astype(int)
    found = compare(old=scores, new=scores - np.float32(0.1), target=target, threshold=0.5)
    thresholds = found.details.thresholds
    assert thresholds is not None
    assert 150 < len(thresholds.points) <= 200
    assert thresholds.in_use in thresholds.points
    assert thresholds.best in thresholds.points
    # The shift of all scores is found, with few digits.
    assert thresholds.best is not None
    assert thresholds.best.threshold == pytest.approx(0.4, abs=0.001)
    assert thresholds.best.negative_flips == 0
    document = found.as_dict()["thresholds"]
    assert document["best"]["negative_flips"] == thresholds.best.negative_flips
    assert json.loads(found.to_json())["thresholds"]["points"][0]["threshold"] >= -0.1


def test_the_sentence_about_thresholds_in_every_output(files: list[str], tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    pages = {flag: tmp_path / f"page.{flag}" for flag in ("html", "markdown", "json")}
    outputs = [part for flag, path in pages.items() for part in (f"--{flag}", path)]
    ran = flipguard("compare", *files, *FRAUD, "--threshold", "0.5", *outputs)
    assert ran.code == 0, ran.err
    assert json.loads(pages["json"].read_text())["thresholds"]["best"]["threshold"] == 0.4
    sentence = (
        "With a threshold of 0.4 instead of 0.5, the new model would have 1 instead of 2 negative "
        "flips, 0 instead of 0 positive flips, and an error of 25.00 % instead of 50.00 %. Of the "
        "2 positives it would find 2 (recall 100.00 %) instead of 1 (recall 50.00 %); it would "
        "call 3 instead of 2 samples positive. This threshold was chosen on these very samples, so "
        "expect less of it on others."
    )
    for text in (ran.out, pages["markdown"].read_text(), pages["html"].read_text()):
        assert sentence in " ".join(text.split())
    assert 'id="c0-thresholds"' in pages["html"].read_text()


def rare_positives(shift: float) -> Comparison:
    """Two models of which the new one gives higher or lower scores; 2 % of samples are positive."""
    rng = np.random.default_rng(4)
    target = (rng.random(10_000) < 0.02).astype(int)
    seen = rng.beta(2, 8, 10_000) + 0.3 * target
    noise = 0.03 * rng.standard_normal((2, 10_000))
    return compare(old=seen + noise[0], new=seen + noise[1] + shift, target=target, threshold=0.5)


def test_no_threshold_is_named_that_misses_more_positives() -> None:
    found = rare_positives(0.05).details.thresholds
    assert found is not None
    # Higher ones have fewer flips and errors, but only because they find fewer positives.
    used, best = found.in_use, found.best
    fewest = min(found.points, key=lambda point: (point.negative_flips, point.wrong))
    assert fewest.negative_flips < used.negative_flips
    assert fewest.wrong < used.wrong
    assert fewest.positives_found < 0.6 * used.positives_found
    assert best is None or best.positives_found >= used.positives_found


def test_the_sentence_if_each_threshold_would_do_harm() -> None:
    # Above the two false alarms the error is lower, but the only positive is missed.
    target, old, new = [1, 0, 0, 0], [0.4, 0.1, 0.1, 0.1], [0.5, 0.6, 0.7, 0.1]
    found = compare(old=old, new=new, target=target, threshold=0.5).details.thresholds
    assert found is not None
    assert threshold_sentence(found) == (
        "No other threshold of the new model has fewer negative flips without a higher error or "
        "more missed positives. At 0.5 it finds 1 of 1 positives (recall 100.00 %)."
    )


def test_a_sentence_without_positives() -> None:
    found = compare(old=[0.1, 0.2], new=[0.6, 0.2], target=[0, 0], threshold=0.5).details.thresholds
    assert found is not None
    assert threshold_sentence(found).endswith("At 0.5 it finds 0 of 0 positives.")


def test_the_picture_is_legible_near_the_threshold() -> None:
    found = rare_positives(0.05).details.thresholds
    assert found is not None
    assert 150 < len(found.points) <= 200
    scores = [point.threshold for point in found.points]
    # Half of the points divide the range of scores, as few scores are high.
    assert max(np.diff(scores)) < 0.1
    assert sum(score > 0.5 for score in scores) > 30
    top = highest_drawn(found)
    used = found.in_use
    assert top == 300 * max(used.negative_flips, used.positive_flips, used.wrong) / found.n
    lines = threshold_chart(found)["layer"][-1]
    assert lines["encoding"]["y"]["scale"]["domain"] == [0, top]
    assert lines["mark"] == {"type": "line", "clip": True, "strokeWidth": 2}
    assert len(lines["data"]["values"]) == 3 * len(found.points)


def test_a_picture_that_fits_is_not_cut_off() -> None:
    found = compare(old=[0.9, 0.1], new=[0.9, 0.6], target=[1, 0], threshold=0.5).details.thresholds
    assert found is not None
    assert highest_drawn(found) is None
    assert "scale" not in threshold_chart(found)["layer"][-1]["encoding"]["y"]


def test_a_score_that_is_a_probability_of_one_class_is_used() -> None:
    both = pl.DataFrame(
        {"id": [1, 2], "target": [0, 1], "probability_0": [0.8, 0.3], "probability_1": [0.2, 0.7]}
    )
    found = compare(old=both, new=both, positive_score="probability_1", threshold=0.5)
    assert found["error_rate_old"].value == 0
    assert not [note for note in found.notes if "class scores" in note]


def test_scores_of_all_classes_with_a_threshold_are_refused() -> None:
    both = np.array([[0.8, 0.2], [0.3, 0.7]])
    for values in (both, both[:, 1:]):
        with pytest.raises(InputError, match="scores of the positive class as a 1-D array"):
            compare(old=values, new=values, scores="probabilities", target=[0, 1], threshold=0.5)


def test_models_in_memory_have_no_threshold() -> None:
    arguments: dict[str, Any] = {
        "threshold": 0.5,
        "threshold_new": 0.5,
        "positive": 1,
        "positive_score": "s",
    }
    for name, value in arguments.items():
        with pytest.raises(InputError, match=f"Expected no `{name}`.*give them to flipguard.compa"):
            compare_models(old=np.round, new=np.round, inputs=[0.1, 0.9], **{name: value})


def test_other_comparisons_have_no_thresholds() -> None:
    found = compare(old=[0, 1], new=[0, 1], target=[0, 1], wants=["thresholds"])
    assert found.details.thresholds is None
    assert "thresholds" not in found.as_dict()
