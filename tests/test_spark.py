"""The Spark engine against the local one: the same integers, and the same refusals.

The local engine is held against definitions in plain Python elsewhere; here it is the peer.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from flipguard import InputError, MissingExtraError, Predictions, read_predictions
from flipguard.engines import local, spark
from flipguard.engines.plan import Counted, CountingPlan
from flipguard.engines.spark_workers import from_spark, to_spark
from flipguard.predictions.write import write_predictions
from tests.conftest import Saver

WHY_NOT = (
    "pyspark is not installed"
    if find_spec("pyspark") is None
    else "there is no Java runtime"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ
    else ""
)
pytestmark = [
    # One Java machine for the whole file.
    pytest.mark.skipif(bool(WHY_NOT) and "CI" not in os.environ, reason=WHY_NOT),
]

N = 400
CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A user's session. The engine finds it by itself: it is the active one."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        # Small parts, so that a few hundred rows are many to Spark.
        "spark.sql.files.maxPartitionBytes": "8192",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def assert_same(plan: CountingPlan) -> Counted:
    """Counts by both engines, and holds every integer of one against the other's."""
    expected, found = local.count(plan), spark.count(plan)
    assert found.rows == expected.rows
    assert found.notes == expected.notes
    assert found.whole.counts == expected.whole.counts
    assert list(found.by) == list(expected.by)
    for name, groups in expected.by.items():
        assert found.by[name].keys == groups.keys
        assert found.by[name].counts == groups.counts
    assert found.whole.counts.values.dtype == np.int64
    return found


def refusal(plan: CountingPlan) -> str:
    """The sentence with which both engines refuse."""
    with pytest.raises(InputError) as expected:
        local.count(plan)
    with pytest.raises(InputError) as found:
        spark.count(plan)
    assert str(found.value) == str(expected.value)
    return str(found.value)


class Model:
    """Generated predictions of one model, as arrays in an order of their own."""

    def __init__(self, seed: int, *, classes: Sequence[str] = CLASSES, n: int = N) -> None:
        # One truth for all, and a model's own errors and order of rows.
        truth = np.random.default_rng(7)
        self.rng = np.random.default_rng(seed)
        self.classes = tuple(classes)
        target = truth.integers(0, len(CLASSES), n)
        known = truth.random(n) < 0.9
        self.site = truth.choice(["north", "south", "été"], n)
        self.user = truth.integers(0, 40, n)
        self.order = self.rng.permutation(n)
        logits = self.rng.normal(size=(n, len(classes))) * 2
        for j, name in enumerate(classes):
            logits[:, j] += 2.5 * (np.array(CLASSES)[target] == name)
        self.logits = logits.astype(np.float32)
        self.labels = np.array(classes)[logits.argmax(axis=1)]
        self.ids = np.array([f"sample-{i:04d}" for i in range(n)])
        self.targets = np.where(known, np.array(CLASSES)[target], None)

    @property
    def probabilities(self) -> np.ndarray:
        weights = np.exp(self.logits.astype(np.float64))
        return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float64)

    def table(self, *kept: str, name: str = "model", missing: bool = True) -> Predictions:
        """Predictions with the parts that are named: labels, logits, probabilities, targets."""
        targets = self.targets if missing else np.where(self.targets == None, "cat", self.targets)  # noqa: E711
        parts: dict[str, Any] = {part: getattr(self, part)[self.order] for part in kept}
        if "targets" in parts:
            parts["targets"] = targets[self.order].tolist()
        return Predictions.from_arrays(
            ids=self.ids[self.order],
            class_names=self.classes if {"logits", "probabilities"} & set(kept) else None,
            slices={"site": self.site[self.order], "user": self.user[self.order]},
            name=name,
            **parts,
        )


def write(predictions: Predictions, path: Path) -> Predictions:
    write_predictions(predictions, path)
    return read_predictions(path)


# -- the same integers -------------------------------------------------------------------------

FORMATS = (
    "parquet",
    "csv",
    "tsv",
    "jsonl",
    "csv.gz",
    "jsonl.gz",
    "csv.zst",
    "arrow",
    "npz",
)


@pytest.mark.parametrize("suffix", FORMATS)
def test_logits_of_every_format(session: Any, tmp_path: Path, suffix: str) -> None:
    # NPZ knows no missing text, so its targets are all there.
    models = [Model(seed).table("logits", "targets", missing=suffix != "npz") for seed in (1, 2)]
    old, new = (write(m, tmp_path / f"m{i}.{suffix}") for i, m in enumerate(models))
    counted = assert_same(CountingPlan(old=old, new=new, by=("target", "site")))
    assert counted.rows.matched == N
    assert counted.whole.counts.layout.has_logits


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl.gz", "arrow"])
def test_several_files_per_side(session: Any, tmp_path: Path, suffix: str) -> None:
    whole = [Model(seed).table("logits", "targets") for seed in (1, 2)]
    sides = []
    for side in whole:
        folder = tmp_path / f"{len(sides)}"
        folder.mkdir()
        rows, array = side.frame.collect(), side.scores.array
        for i, start in enumerate(range(0, N, 1 + N // 3)):
            piece = rows[start : start + 1 + N // 3]
            write_predictions(
                Predictions.from_arrays(
                    ids=piece["id"],
                    targets=piece["target"],
                    logits=array[start : start + 1 + N // 3],
                    class_names=side.class_names,
                    slices={"site": piece["site"], "user": piece["user"]},
                ),
                folder / f"p{i}.{suffix}",
            )
        sides.append(read_predictions(f"{folder}/*"))
    counted = assert_same(CountingPlan(old=sides[0], new=sides[1], by=("target", "site")))
    if suffix in ("parquet", "arrow"):
        # Text spells 32 bits in decimals, which are read as 64.
        expected = local.count(CountingPlan(old=whole[0], new=whole[1], by=("target", "site")))
        assert counted.whole.counts == expected.whole.counts
    # Files whose types differ are read on this machine.
    if suffix == "parquet":
        file = tmp_path / "1" / "p0.parquet"
        kept = {"flipguard.class_names": json.dumps(CLASSES)}
        pl.read_parquet(file).cast({"user": pl.Float64}).write_parquet(file, metadata=kept)
        mixed = read_predictions(f"{tmp_path}/1/*")
        assert_same(CountingPlan(old=sides[0], new=mixed, by=("user",)))


def test_labels_only(session: Any, tmp_path: Path) -> None:
    old = write(Model(1).table("labels", "targets"), tmp_path / "old.parquet")
    new = write(Model(2).table("labels"), tmp_path / "new.csv")
    assert_same(CountingPlan(old=old, new=new, by=("target", "site"), cluster="user"))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("answers", [False, True])
def test_graded_rows(session: Any, tmp_path: Path, suffix: str, answers: bool) -> None:
    rng = np.random.default_rng(5)
    sides = []
    for name in ("old", "new", "control"):
        order = rng.permutation(N)
        frame = pl.DataFrame(
            {
                "id": order,
                "ok": rng.choice(["1", "0", "error", "refused", "unparsed"], N),
                "answer": rng.choice(["x", "y", "3.5"], N),
                "site": [f"s{i % 3}" for i in order],
            }
        )
        path = tmp_path / f"{name}.{suffix}"
        written = {"csv": frame.write_csv, "jsonl": frame.write_ndjson}
        written.get(suffix, frame.write_parquet)(path)
        label = "answer" if answers else None
        sides.append(read_predictions(path, correct="ok", label=label))
    old, new, control = sides
    found = assert_same(CountingPlan(old=old, new=new, controls=(control,), by=("site",)))
    assert found.whole.counts["old_error"] > 0
    bad = new.frame.collect().with_columns(
        ok=pl.when(pl.col("id").cast(pl.Int64) == 7).then(pl.lit("maybe")).otherwise("ok")
    )
    wrong = Predictions.from_frame(bad, correct="ok", name="new")
    told = refusal(CountingPlan(old=old, new=wrong))
    assert told.startswith("new has no grade in column 'ok' for id ")
    assert "('maybe')" in told


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_with_a_threshold(session: Any, tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(5)
    sides = []
    for name, threshold in (("old", 0.5), ("new", 0.3), ("control", 0.3)):
        order = rng.permutation(N)
        scores = pl.Series(rng.random(N).round(2), dtype=pl.Float32)
        target = np.where(order % 3 == 0, "fraud", "fair")
        frame = pl.DataFrame({"id": order, "score": scores, "target": target})
        frame = frame.with_columns(site=pl.format("s{}", pl.col("id") % 4))
        path = tmp_path / f"{name}.{suffix}"
        {"csv": frame.write_csv}.get(suffix, frame.write_parquet)(path)
        described: dict[str, Any] = {"threshold": threshold, "positive": "fraud"}
        sides.append(read_predictions(path, positive_score="score", **described))
    old, new, control = sides
    found = assert_same(CountingPlan(old=old, new=new, controls=(control,), by=("site", "target")))
    assert found.whole.counts["negative_flip"] > 0
    odd = new.frame.collect().with_columns(
        score=pl.when(pl.col("id").cast(pl.Int64) == 7).then(math.nan).otherwise("score")
    )
    described = {"positive_score": "score", "threshold": 0.5, "positive": "fraud"}
    bad = Predictions.from_frame(odd, name="new", **described)
    assert "new has no score in column 'score' for id " in refusal(CountingPlan(old=old, new=bad))


def test_probabilities_beside_labels_off_the_top(session: Any) -> None:
    old, new = Model(1), Model(2)
    new.labels[:25] = "owl"
    plan = CountingPlan(
        old=old.table("probabilities", "targets", name="old"),
        new=new.table("probabilities", "labels", name="new"),
        exponent=0.5,
        by=("user",),
    )
    counted = assert_same(plan)
    assert len(counted.notes) == 1


def test_class_growth_with_logits_beside_probabilities(session: Any) -> None:
    old = Model(1, classes=("cat", "dog"))
    new = Model(2, classes=("owl", "cat", "dog", "emu"))
    for part in ("logits", "probabilities"):
        plan = CountingPlan(old=old.table("logits", "targets"), new=new.table(part), by=("target",))
        assert_same(plan)


def test_far_logits_in_double_precision(session: Any, save: Saver) -> None:
    rng = np.random.default_rng(3)
    columns = {
        "id": list(range(N)),
        "target": rng.integers(0, 3, N).tolist(),
        **{f"logit_{c}": (rng.normal(size=N) * 50).tolist() for c in range(3)},
    }
    old = read_predictions(save("old.csv", columns))
    columns |= {f"logit_{c}": (rng.normal(size=N) * 50).tolist() for c in range(3)}
    new = read_predictions(save("new.parquet", columns))
    assert_same(CountingPlan(old=old, new=new))


def test_controls_with_labels_or_scores(session: Any, tmp_path: Path) -> None:
    plan = CountingPlan(
        old=write(Model(1).table("logits", "targets"), tmp_path / "old.parquet"),
        new=Model(2).table("logits"),
        controls=(
            write(Model(3).table("labels", "targets"), tmp_path / "first.csv"),
            write(Model(4).table("logits"), tmp_path / "second.jsonl"),
        ),
        by=("site",),
        cluster="user",
    )
    assert_same(plan)


def test_lists_of_scores_without_class_names(session: Any, tmp_path: Path) -> None:
    sides = []
    for seed in (1, 2):
        model = Model(seed)
        frame = pl.DataFrame(
            {
                "id": model.ids,
                "target": np.random.default_rng(7).integers(0, 3, N),
                "logits": model.logits.tolist(),
            },
            schema_overrides={"logits": pl.List(pl.Float32), "target": pl.UInt8},
        )
        frame[model.order.tolist()].write_parquet(tmp_path / f"{seed}.parquet")
        sides.append(read_predictions(tmp_path / f"{seed}.parquet"))
    assert_same(CountingPlan(old=sides[0], new=sides[1], by=("target",)))


def test_rows_on_one_side_only_can_be_dropped(session: Any, save: Saver) -> None:
    old = save("old.csv", {"id": [1, 2, 3, 4], "target": [0, 1, 1, 0], "label": [0, 1, 0, 0]})
    new = save("new.parquet", {"id": [4, 3, 2, 9, 8], "label": [1, 1, 1, 0, 1]})
    plan = CountingPlan(old=read_predictions(old), new=read_predictions(new), on_missing="drop")
    counted = assert_same(plan)
    assert (counted.rows.matched, counted.rows.only_old, counted.rows.only_new) == (3, 1, 2)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "npz"])
def test_rows_that_a_control_lacks(session: Any, tmp_path: Path, suffix: str) -> None:
    ids = [f"s{i}" for i in range(6)]
    sides = [
        Predictions.from_arrays(ids=ids[:n], labels=[*"ababab"][:n], targets=[*"abbbab"][:n])
        for n in (6, 5, 3)
    ]
    for name, side in zip(("old", "new", "control"), sides, strict=True):
        write_predictions(side, tmp_path / f"{name}.{suffix}")
    old, new, control = (
        read_predictions(tmp_path / f"{name}.{suffix}") for name in ("old", "new", "control")
    )
    plan = CountingPlan(old=old, new=new, controls=(control,), on_missing="drop")
    assert assert_same(plan).rows.not_in_control == 2


@pytest.mark.parametrize("name", ["*", "^s.*$"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz"])
def test_a_column_called_like_a_pattern(
    session: Any, tmp_path: Path, name: str, suffix: str
) -> None:
    table = Predictions.from_arrays(
        ids=[1, 2, 3], labels=[*"aba"], targets=[*"abb"], slices={name: [*"xyx"], "site": [*"ppq"]}
    )
    path = tmp_path / f"old.{suffix}"
    write_predictions(table, path)
    side = read_predictions(path)
    assert assert_same(CountingPlan(old=side, new=side, by=(name,))).by[name].keys == ["x", "y"]


def test_one_spelling_of_ids_and_classes(session: Any, save: Saver) -> None:
    old = {
        "id": [1, 2, 3],
        "target": [0.0, 1.0, None],
        "label": [1, 1, 0],
        "day.of week": [1, 1, 2],
    }
    new = {"id": ["3", "1", "2"], "label": ["1", "-0", "1"]}
    plan = CountingPlan(
        old=read_predictions(save("old.parquet", old)),
        new=read_predictions(save("new.csv", new)),
        by=("target", "day.of week"),
    )
    assert_same(plan)


def test_what_all_rows_say_of_a_column_holds_in_every_part_of_them(
    session: Any, save: Saver
) -> None:
    # The one missing value, the one name, the one group of its kind: each lies in one part only.
    ids = [f"{i}.0" for i in range(N)]
    target = [f"{i % 3}.0" for i in range(N - 1)] + [None]
    group = ["(missing)", "", *["1.0"] * (N - 3), "0.5"]
    old = {"id": ids, "target": target, "label": [i % 3 for i in range(N)], "group": group}
    seen = [i % 2 == 0 for i in range(N)]
    old |= {"seen": [str(value) for value in seen], "name": ["3.0"] * (N - 1) + ["cat"]}
    new = {"id": list(range(N))[::-1], "label": [i % 3 for i in range(N)], "seen": seen[::-1]}
    plan = CountingPlan(
        old=read_predictions(save("old.csv", old)),
        new=read_predictions(save("new.parquet", new)),
        by=("group", "seen", "name", "target"),
    )
    counted = assert_same(plan)
    assert sorted(counted.by["group"].keys) == ['"(missing)"', "(missing)", "0.5", "1.0"]
    assert sorted(counted.by["seen"].keys) == ["false", "true"]
    assert sorted(counted.by["name"].keys) == ["3.0", "cat"]
    assert sorted(counted.by["target"].keys) == ["0", "1", "2"]


def test_truth_values_and_a_name_with_a_stroke(session: Any, save: Saver) -> None:
    old = {"id": [1, 2, 3], "target": ["True", "False", ""], "label": ["true", "True", "False"]}
    new = {"id": [3, 2, 1], "label": [True, False, True], "a|b": [1.0, float("nan"), -0.0]}
    plan = CountingPlan(
        old=read_predictions(save("old.csv", old)),
        new=read_predictions(save("new.parquet", new)),
        by=("a|b",),
    )
    counted = assert_same(plan)
    assert counted.by["a|b"].keys == ["0", "1", "(missing)"]
    assert int(counted.whole.counts["positive_flip"].sum()) == 1


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([3, None, 1, 3], dtype=pl.UInt8),
        pl.Series([2**64 - 1, 7, None, 7], dtype=pl.UInt64),
        pl.Series([0.1, None, float("nan"), -0.0], dtype=pl.Float32),
        pl.Series([True, False, None, True]),
        pl.Series(["b", None, "a", "b"], dtype=pl.Categorical),
        pl.Series(["b", None, "a", "b"], dtype=pl.Enum(["b", "a"])),
        pl.Series([20_000, None, 3, 3]).cast(pl.Date),
        pl.Series([1_700_000_000_000_001, None, 3, 3]).cast(pl.Datetime("us", "Europe/Berlin")),
        pl.Series([86_399_000_000_001, None, 3, 3]).cast(pl.Time),
        pl.Series([-5, None, 3, 3]).cast(pl.Duration("ms")),
        pl.Series(["1.20", None, "3.00", "3.00"]).cast(pl.Decimal(10, 2)),
        pl.Series([None, None, None, None]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_a_column_comes_back_from_its_travels_as_it_was(values: pl.Series) -> None:
    back = from_spark(to_spark(values), values.dtype)
    assert back.dtype == values.dtype
    assert back.equals(values, null_equal=True)


def test_columns_of_every_type_to_group_by(session: Any, tmp_path: Path) -> None:
    n = 6
    columns = {
        "day": pl.Series([20_000, 3, None, 3, 3, 20_000]).cast(pl.Date),
        "when": pl.Series([1_700_000_000_000_001, 3, None, 3, 3, 3]).cast(pl.Datetime("us")),
        "size": pl.Series(["s", "l", "m", None, "l", "s"], dtype=pl.Enum(["s", "m", "l"])),
        "kind": pl.Series(["b", "a", "b", None, "a", "c"], dtype=pl.Categorical),
        "share": pl.Series([0.1, 0.2, float("nan"), 0.3, 0.1, 0.2], dtype=pl.Float32),
        "seen": pl.Series([True, False, None, True, True, False]),
    }
    rows = {"id": range(n), "target": [0, 1, 1, 0, 1, 0], "label": [0, 1, 0, 0, 1, 1]}
    frame = pl.DataFrame({**rows, **columns})
    frame.write_parquet(tmp_path / "old.parquet")
    known = frame.drop("when").with_columns(pl.col("share").fill_nan(0.5))
    known.write_parquet(tmp_path / "without.parquet")
    new = Predictions.from_arrays(ids=np.arange(n)[::-1], labels=[0, 1, 0, 1, 1, 1])
    old = read_predictions(tmp_path / "old.parquet")
    assert_same(CountingPlan(old=old, new=new, by=tuple(columns)))
    old = read_predictions(tmp_path / "without.parquet")
    assert_same(CountingPlan(old=old, new=new, by=("size", "kind", "day"), cluster="share"))


def test_text_files_as_people_write_them(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "old file.csv"
    path.write_bytes(
        b'\xef\xbb\xbfid,target,label,"the, note"\r\n'
        b'a,cat,cat,"said ""no"""\r\n'
        b"b,dog,cat,\r\n"
        b"id,target,label,x\r\n"
        b"c,dog,dog,\r\n"
    )
    new = Predictions.from_arrays(ids=["id", "c", "b", "a"], labels=["cat", "dog", "dog", "owl"])
    assert_same(CountingPlan(old=read_predictions(path), new=new, by=("the, note",)))


# -- the same refusals -------------------------------------------------------------------------

GOOD: dict[str, Sequence[object]] = {
    "id": ["a", "b", "c"],
    "target": ["cat", "dog", "cat"],
    "label": ["cat", "dog", "dog"],
}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"id": ["a", "b", "a"]}, {}, "more than one row for id 'a'"),
        ({}, {"id": ["a", None, "c"]}, "no id in column 'id' at row 2"),
        ({}, {"target": ["cat", "cat", "cat"]}, "disagree on the target of id 'b'"),
        ({}, {"id": ["a", "b", "d"]}, "has 1 id that"),
        ({}, {"id": ["x", "y", "z"]}, "No id is in every file"),
        ({}, {"label": ["cat", None, "dog"]}, "no predicted class in column 'label' for id 'b'"),
        ({"label": [0.0, 0.5, 1.0]}, {}, "fractional numbers in column 'label'"),
        ({"label": [0.0, 1.0, 1.0]}, {}, "has floats in column 'label'"),
        ({}, {"label": ["1", "2", "3.0"]}, "has floats in column 'label'"),
        ({"site": ["n", "s", "n"]}, {"site": ["n", "s", "s"]}, "disagree on column 'site'"),
    ],
)
def test_rows_that_cannot_be_compared(
    session: Any, save: Saver, old: dict[str, Any], new: dict[str, Any], told: str
) -> None:
    plan = CountingPlan(
        old=read_predictions(save("old.parquet", GOOD | old)),
        new=read_predictions(save("new.csv", GOOD | new)),
        by=("site",) if "site" in old else (),
    )
    assert told in refusal(plan)


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ({"logit_cat": [1.0, float("nan"), 0.0], "logit_dog": [0.0] * 3}, "NaN or infinite logits"),
        ({"logit_cat": [1.0, float("inf"), 0.0], "logit_dog": [0.0] * 3}, "NaN or infinite logits"),
        (
            {"probability_cat": [1.0, 0.6, 0.5], "probability_dog": [0.0, 0.6, 0.5]},
            "probabilities that sum to 1.2 instead of 1, for id 'b'",
        ),
        ({"logits": [[0.0, 1.0], [0.0], [1.0, 0.0]]}, "has 1 scores in column 'logits'"),
        ({"logits": [[0.0, 1.0], [0.0, None], [1.0, 0.0]]}, "has no score for some class"),
        ({"logit_cat": [1.0, None, 0.0], "logit_dog": [0.0] * 3}, "has no score for some class"),
    ],
    ids=["nan", "infinite", "sum", "ragged", "null in a list", "null in a column"],
)
def test_scores_that_mean_nothing(
    session: Any, save: Saver, scores: dict[str, Any], told: str
) -> None:
    rows = {"id": GOOD["id"]}
    # Scores in lists are of numbered classes.
    classes = {"label": [0, 1, 1], "target": [0, 1, 0]} if "logits" in scores else {}
    plan = CountingPlan(
        old=read_predictions(save("old.csv", GOOD | classes)),
        new=read_predictions(save("new.parquet", rows | scores)),
    )
    assert told in refusal(plan)


@pytest.mark.parametrize("first", ["7", "owl"])
def test_numbered_scores_beside_named_classes(session: Any, save: Saver, first: str) -> None:
    # One number among the names, in whatever part of the rows, and the numbers may be meant.
    n = 200
    names = [first, *["cat", "dog"] * n][:n]
    old = {"id": range(n), "target": names, "label": names}
    new = {"id": range(n), "logits": [[0.0, 1.0], [1.0, 0.0]] * (n // 2)}
    plan = CountingPlan(
        old=read_predictions(save("old.csv", old)), new=read_predictions(save("new.parquet", new))
    )
    if first == "7":
        assert_same(plan)
    else:
        assert "matched with 'cat', 'dog', 'owl'" in refusal(plan)


def test_a_file_without_rows(session: Any, save: Saver) -> None:
    empty = {name: [] for name in GOOD}
    plan = CountingPlan(
        old=read_predictions(save("old.csv", empty)), new=read_predictions(save("new.csv", GOOD))
    )
    assert "old.csv has columns but no rows" in refusal(plan)


def test_a_damaged_file(session: Any, tmp_path: Path, save: Saver) -> None:
    old = read_predictions(save("old.parquet", GOOD))
    whole = old.path.read_bytes() if old.path is not None else b""
    middle = len(whole) // 4
    (tmp_path / "old.parquet").write_bytes(whole[:4] + b"\0" * middle + whole[4 + middle :])
    plan = CountingPlan(old=old, new=read_predictions(save("new.csv", GOOD)))
    with pytest.raises(InputError, match=r"old\.parquet cannot be read"):
        spark.count(plan)


def test_scores_that_are_not_numbers(session: Any, tmp_path: Path, save: Saver) -> None:
    path = tmp_path / "old.csv"
    path.write_text("id,logit_cat,logit_dog\na,1.0,zero\n")
    plan = CountingPlan(
        old=read_predictions(path), new=read_predictions(save("new.csv", GOOD)), on_missing="drop"
    )
    with pytest.raises(InputError, match=r"old\.csv has 'zero' in score column 'logit_dog'"):
        spark.count(plan)


def test_no_order_of_rows_stands_in_for_ids(session: Any) -> None:
    model = Predictions.from_arrays(labels=[0, 1], targets=[0, 1], name="old.npz")
    with pytest.raises(InputError, match=r"old\.npz has no ids.*`engine='local'`"):
        spark.count(CountingPlan(old=model, new=model))


@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_json_lines_are_read_as_the_local_reader_reads_them(
    session: Any, tmp_path: Path, bom: str
) -> None:
    """Late keys, blank lines, and numbers among text, which keep the spelling that they have."""
    sites = ["1.50", '"cat"', "1e3", "-0", "true", "null", '"x, \\"y\\""', str(2**64)]
    lines = [f'{{"id": {i}, "label": "a", "site": {sites[i % 8]}}}' for i in range(1_200)]
    lines += [f'{{"id": {i}, "target": "a", "label": "b"}}' for i in range(1_200, 1_300)]
    path = tmp_path / "t.jsonl"
    path.write_text(bom + "\n\n".join(lines) + "\n")
    table = read_predictions(path)
    counted = assert_same(CountingPlan(old=table, new=table, by=("site",)))
    assert set(counted.by["site"].keys) >= {"1.50", "cat", "1e3", "true", 'x, "y"', str(2**64)}
    assert counted.whole.counts["wrong_same"] == 100


def test_blank_lines_are_no_rows(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f'{i},a,"{i % 3}, ""q"""' for i in range(300)]
    path.write_bytes("\r\n\r\n".join(["\ufeffid,label,site", *rows, ""]).encode())
    table = read_predictions(path)
    counted = assert_same(CountingPlan(old=table, new=table, by=("site",)))
    assert (counted.rows.matched, counted.by["site"].keys[0]) == (300, '0, "q"')


def test_rows_of_blanks_are_rows_in_separated_text(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b"\xef\xbb\xbf\n\nid\tlabel\na\tx\n \t \n\nb\ty\n  \t \n")
    table = read_predictions(path)
    counted = assert_same(CountingPlan(old=table, new=table, by=("label",)))
    assert (counted.rows.matched, counted.by["label"].keys) == (4, [" ", "x", "y"])


def test_a_line_break_inside_quotes_is_told(session: Any, tmp_path: Path, save: Saver) -> None:
    path = tmp_path / "old.csv"
    path.write_text('id,label,note\na,cat,"two\nlines"\nb,dog,\nc,dog,\n')
    plan = CountingPlan(old=read_predictions(path), new=read_predictions(save("new.csv", GOOD)))
    with pytest.raises(InputError, match=r"line break .* write Parquet, or use `engine='local'`"):
        spark.count(plan)


# -- sessions ----------------------------------------------------------------------------------


def test_the_users_session_is_used_and_left_running(session: Any) -> None:
    from pyspark.sql import SparkSession

    before = session.sparkContext.applicationId
    assert_same(CountingPlan(old=Model(1).table("labels"), new=Model(2).table("labels")))
    assert SparkSession.getActiveSession() is session
    assert session.sparkContext.applicationId == before
    assert session.range(3).count() == 3


def test_the_page_about_spark_is_true(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "spark.md").read_text()
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("old.parquet", "new.parquet")):
        write_predictions(Model(seed).table("logits", "targets"), name)
    for code in re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(code, "spark.md", "exec"), {"__name__": "docs"})


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    model = Model(1).table("labels")
    with pytest.raises(MissingExtraError, match=r"\.\[spark\]"):
        spark.count(CountingPlan(old=model, new=model))


def command(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, where no session is active."""
    kept = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return subprocess.run(
        [sys.executable, "-m", "flipguard", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=kept | environment,
    )


@pytest.mark.slow
def test_the_command_line_starts_a_session_and_says_nothing_of_it(tmp_path: Path) -> None:
    paths = [tmp_path / "old.parquet", tmp_path / "new.csv"]
    for seed, path in enumerate(paths):
        write_predictions(Model(seed).table("logits", "targets"), path)
    found = command("compare", *paths, "--engine", "spark", "--json", "-")
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    expected = command("compare", *paths, "--json", "-")
    assert json.loads(found.stdout) == json.loads(expected.stdout)


def test_without_java(tmp_path: Path, save: Saver) -> None:
    path = save("old.csv", GOOD)
    found = command("compare", path, path, "--engine", "spark", PATH="", JAVA_HOME=str(tmp_path))
    assert found.returncode == 2
    assert "needs a Java runtime" in found.stderr
    assert "Traceback" not in found.stderr
