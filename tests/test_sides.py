"""What a side may be: one update in every form gives one result, and no form is guessed at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from flipguard import (
    Comparison,
    InputError,
    Predictions,
    compare,
    ensemble,
    matrix,
    write_predictions,
)

N = 200
RNG = np.random.default_rng(0)
TARGET = RNG.integers(0, 4, N)
OLD = np.where(RNG.random(N) < 0.8, TARGET, (TARGET + 1) % 4)
NEW = np.where(RNG.random(N) < 0.9, TARGET, (TARGET + 2) % 4)
CONTROL = np.where(RNG.random(N) < 0.85, TARGET, (TARGET + 3) % 4)
IDS = np.array([f"s{i:03d}" for i in range(N)])


def result_of(found: Comparison) -> dict[str, Any]:
    """What a comparison found, without the names of its sides and without notes."""
    document = found.as_dict()
    for name in ("old", "new", "notes", "rows"):
        document.pop(name, None)
    return {**document, "controls": [one["counts"] for one in document.get("controls", ())]}


def expected(**options: Any) -> Comparison:
    """The comparison of tables made by hand."""
    old, new, control = (
        Predictions.from_arrays(ids=IDS, labels=labels, targets=TARGET)
        for labels in (OLD, NEW, CONTROL)
    )
    return compare(old=old, new=new, control=control, **options)


# -- labels ----------------------------------------------------------------------------------------

LABELS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": np.asarray,
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(values.tolist()),
    "pandas": pd.Series,
    "pandas category": lambda values: pd.Series(values).astype("category"),
    "pandas Int64": lambda values: pd.Series(values, dtype="Int64"),
    "pandas index": pd.Index,
    "polars": pl.Series,
    "pyarrow": pa.array,
    "pyarrow chunks": lambda values: pa.chunked_array([values[:50], values[50:]]),
    "pyarrow dictionary": lambda values: pa.array(values.astype(str)).dictionary_encode(),
    "torch": torch.tensor,
    "names": lambda values: np.array([*"abcd"])[values],
    "pandas names": lambda values: pd.Series(np.array([*"abcd"])[values]),
    "polars names": lambda values: pl.Series(np.array([*"abcd"])[values]),
    "objects": lambda values: np.array([*"abcd"])[values].astype(object),
    "bytes": lambda values: np.array([*"abcd"])[values].astype("S"),
    "numpy strings": lambda values: np.array([*"abcd"])[values].astype(np.dtypes.StringDType()),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_in_every_form(form: str) -> None:
    make = LABELS[form]
    found = compare(
        old=make(OLD),
        new=make(NEW),
        target=make(TARGET),
        id=IDS,
        control=[make(CONTROL)],
        by="target",
    )
    assert (found.old, found.new, found.controls) == ("old", "new", ("control",))
    assert found.notes == expected().notes
    document, wanted = result_of(found), result_of(expected(by="target"))
    groups, wanted_groups = document.pop("by")["target"], wanted.pop("by")["target"]
    letters = dict(zip("abcd", "0123", strict=True))
    assert {letters.get(name, name): group["counts"] for name, group in groups.items()} == {
        name: group["counts"] for name, group in wanted_groups.items()
    }
    del document["significance"], wanted["significance"]
    assert document == wanted


def test_forms_may_be_mixed_and_rows_are_matched_by_position() -> None:
    found = compare(
        old=torch.tensor(OLD),
        new=pd.Series(NEW),
        target=pl.Series(TARGET),
        control=pa.array(CONTROL),
    )
    assert result_of(found) == result_of(expected())
    assert found.notes[0] == "rows were matched by their position, not by an id"


def test_several_controls() -> None:
    found = compare(old=OLD, new=NEW, target=TARGET, control=[CONTROL, pd.Series(OLD)])
    assert found.controls == ("control 1", "control 2")
    assert compare(old=OLD, new=NEW, target=TARGET, control=iter([CONTROL])).controls == (
        "control",
    )


def test_names_of_sides() -> None:
    found = compare(old=OLD, new=NEW, target=TARGET, name_old="v1", name_new="v2")
    assert (found.old, found.new) == ("v1", "v2")


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, np.nan], ids=str)
def test_a_missing_target_counts_for_churn_only(missing: object) -> None:
    target = pd.Series([0, 1, missing, 1], dtype="object" if missing is pd.NA else None)
    found = compare(old=[0, 1, 0, 0], new=[0, 0, 1, 1], target=target)
    assert found["negative_flip_rate"].n == 3
    assert found["negative_flip_rate"].value == pytest.approx(1 / 3)


# -- the index of pandas ---------------------------------------------------------------------------


def test_rows_are_joined_on_the_index_of_series() -> None:
    order = RNG.permutation(N)
    old, new = pd.Series(OLD, index=IDS), pd.Series(NEW[order], index=IDS[order])
    other = RNG.permutation(N)
    for target in (pd.Series(TARGET, index=IDS), pd.Series(TARGET[other], index=IDS[other])):
        control = pd.Series(CONTROL, index=IDS)
        found = compare(old=old, new=new, target=target, control=control, id="index")
        assert result_of(found) == result_of(expected())
        named = [side.rename_axis("key") for side in (old, new)]
        again = compare(old=named[0], new=named[1], target=target, control=control, id="index")
        assert result_of(again) == result_of(expected())


def test_an_index_that_differs_is_not_ignored() -> None:
    order = RNG.permutation(N)
    old, new = pd.Series(OLD, index=IDS), pd.Series(NEW[order], index=IDS[order])
    with pytest.raises(
        InputError, match=r"Expected `old` and `new` to have one index, .*id='index'"
    ):
        compare(old=old, new=new, target=TARGET)
    with pytest.raises(InputError, match="Expected `old` and `target` to have one index"):
        compare(old=old, new=NEW, target=pd.Series(TARGET, index=IDS[::-1]))
    # An index that only counts the rows says nothing about them,
    compare(old=old, new=pd.Series(NEW), target=TARGET)
    # but another one may have the same numbers in another order.
    for shuffled in (pd.Series(NEW).iloc[order], pd.Series(NEW)[::-1]):
        with pytest.raises(InputError, match="Expected `new` and `old` to have one index"):
            compare(old=pd.Series(OLD), new=shuffled, target=TARGET)
    part = pd.Series(NEW, index=np.arange(N) + 5)
    compare(old=pd.Series(OLD), new=part, target=pd.Series(TARGET))


def test_a_target_without_the_index_of_a_side() -> None:
    old, new = pd.Series(OLD, index=IDS), pd.Series(NEW, index=IDS)
    with pytest.raises(InputError, match="Expected `target` to have one row per index"):
        compare(old=old, new=new, target=pd.Series(TARGET[1:], index=IDS[1:]), id="index")


# -- tables ----------------------------------------------------------------------------------------


def table(labels: np.ndarray, order: np.ndarray | slice = slice(None)) -> pd.DataFrame:
    frame = pd.DataFrame({"key": IDS, "truth": TARGET, "says": labels, "weather": TARGET % 2})
    return frame.iloc[order]


TABLES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas index": lambda frame: frame.set_index("key"),
    "pandas arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "polars": pl.from_pandas,
    "polars lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "pyarrow batch": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("form", TABLES)
def test_tables_in_every_form(form: str) -> None:
    make, order = TABLES[form], RNG.permutation(N)
    found = compare(
        old=make(table(OLD)),
        new=make(table(NEW, order)),
        control=[make(table(CONTROL))],
        id="key",
        target="truth",
        label="says",
        by="weather",
    )
    document = result_of(found)
    groups = document.pop("by")["weather"]
    assert {name: group["n"] for name, group in groups.items()} == {
        str(value): int((value == TARGET % 2).sum()) for value in (0, 1)
    }
    document.pop("significance")
    wanted = result_of(expected())
    assert {**document, "by": {}} == wanted


def both() -> pd.DataFrame:
    named = {"key": IDS, "truth": TARGET, "v1": OLD, "v2": NEW, "c": CONTROL, "weather": TARGET % 2}
    return pd.DataFrame(named)


@pytest.mark.parametrize("form", TABLES)
def test_two_models_in_one_table(form: str) -> None:
    frame, order = TABLES[form](both()), RNG.permutation(N)
    shared: Any = {"id": "key", "target": "truth", "by": "weather"}
    found = compare(old=frame, new=frame, label_old="v1", label_new="v2", **shared)
    apart = compare(old=table(OLD), new=table(NEW, order), label="says", **shared)
    assert result_of(found) == result_of(apart)
    assert (found.old, found.new) == ("old:v1", "new:v2")
    # Two tables, one of which calls its labels otherwise, and a control in a table of its own.
    control = table(CONTROL, order)
    given: dict[str, Any] = {"old": frame, "new": table(NEW, order), "control": control}
    found = compare(**given, label_old="v1", label="says", **shared)
    assert (found.old, found.new) == ("old", "new")
    tables: dict[str, Any] = {**given, "old": table(OLD)}
    assert result_of(found) == result_of(compare(**tables, label="says", **shared))


def test_two_models_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "both.csv"
    both().assign(probability_0=0.5, probability_1=0.5, passed=1).to_csv(path, index=False)
    given: dict[str, Any] = {"id": "key", "target": "truth", "label_old": "v1", "label_new": "v2"}
    found = compare(old=path, new=str(path), **given)
    assert (found.old, found.new) == (f"{path}:v1", f"{path}:v2")
    apart = compare(old=table(OLD), new=table(NEW), id="key", target="truth", label="says")
    assert result_of(found) == result_of(apart)
    named = compare(old=path, new=path, name_old="in service", **given)
    assert (named.old, named.new) == ("in service", f"{path}:v2")
    with pytest.raises(InputError, match="no column 'v3', which `label_new=` asks for"):
        compare(old=path, new=path, **{**given, "label_new": "v3"})
    with pytest.raises(InputError, match="Expected no `correct=` where both models are columns of"):
        compare(old=path, new=path, correct="passed", **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"label_new": "v1"}, "old and new are the same column 'v1' of one table"),
        ({"label": "c"}, "Expected no `label` with `label_old` and `label_new`, because they name"),
        ({"new": NEW}, "Expected no `label_new`, because `new` is no file or .*'v2', but ndarray"),
        ({"label_old": ["v1"]}, "`label_old` to be the name of a column, but got list; name a col"),
        ({"label": both()["c"]}, "Expected `label` to be the name of a column, but got Series"),
        ({"correct": OLD == TARGET}, "`correct` to be the name of a column, but got ndarray"),
        ({"cluster": both()["weather"]}, "`cluster` to be the name of a column, but got Series"),
        ({"by": both()["weather"]}, "Expected `by` to be the name of a column .* but got Series;"),
        ({"by": pl.Series(IDS)}, "the name of a column or a list of names, but got Series;"),
        ({"by": IDS}, "Expected `by` to be the name of a column .* but got ndarray; name columns"),
        ({"by": [1, 2]}, "a list of names, but got list of other values; name columns"),
        ({"by": both()[["weather"]]}, "the name of a column .* but got DataFrame; name columns"),
    ],
    ids=str,
)
def test_names_of_columns_that_do_not_fit(given: dict[str, Any], sentence: str) -> None:
    frame = both()
    named: dict[str, Any] = {"old": frame, "new": frame, "id": "key", "target": "truth"}
    with pytest.raises(InputError, match=sentence) as caught:
        compare(**{**named, "label_old": "v1", "label_new": "v2", **given})
    assert "\n" not in str(caught.value)


def test_an_index_of_names_is_names() -> None:
    frames = {"old": table(OLD), "new": table(NEW)}
    named: dict[str, Any] = {"id": "key", "target": "truth", "label": "says"}
    found = compare(**frames, **named, by=both().columns[-1:])
    assert list(found.by) == ["weather"]


@pytest.mark.parametrize("is_file", [False, True])
def test_grades_of_tables_and_files(is_file: bool, tmp_path: Path) -> None:
    sides: dict[str, Any] = {}
    for name, labels in (("old", OLD), ("new", NEW), ("control", CONTROL)):
        sides[name] = pd.DataFrame({"id": IDS, "ok": labels == TARGET})
        if is_file:
            sides[name].to_csv(tmp_path / f"{name}.csv", index=False)
            sides[name] = tmp_path / f"{name}.csv"
    found, classes = compare(**sides, correct="ok"), expected()
    for metric in ("negative_flip_rate", "positive_flip_rate", "accuracy_gain"):
        assert found[metric] == classes[metric]


def test_an_index_without_a_name_is_called_index() -> None:
    order = RNG.permutation(N)
    old, new = (
        pd.DataFrame({"label": labels, "target": TARGET}, index=IDS) for labels in (OLD, NEW)
    )
    found = compare(old=old, new=new.iloc[order], control=CONTROL_FRAME, id="index")
    assert result_of(found) == result_of(expected())
    assert Predictions.from_frame(old, id="index").id == "index"
    # A column called index comes before the index.
    given = old.assign(index=IDS[::-1])
    assert Predictions.from_frame(given, id="index").frame.collect()["index"][0] == IDS[-1]


CONTROL_FRAME = pd.DataFrame({"label": CONTROL}, index=IDS)


def test_levels_of_an_index_are_columns() -> None:
    levels = pd.MultiIndex.from_arrays([IDS, TARGET % 3], names=["id", "user"])
    frames = [pd.DataFrame({"label": x, "target": TARGET}, index=levels) for x in (OLD, NEW)]
    found = compare(old=frames[0], new=frames[1].iloc[::-1], by="user")
    assert found.n == N
    assert {group.name for group in found.by["user"]} == {"0", "1", "2"}


def test_a_table_a_path_and_values_together(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    table(OLD).to_csv(path, index=False)
    columns = {"id": "key", "target": "truth", "label": "says"}
    found = compare(old=path, new=table(NEW), control=str(path), **columns)
    assert result_of(found)["counts"] == result_of(expected())["counts"]
    assert found.old == str(path)
    given = compare(old=Predictions.from_frame(table(OLD), **columns), new=NEW, id=IDS)
    assert result_of(given)["counts"] == result_of(expected())["counts"]


# -- scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [np.asarray, torch.tensor, lambda values: values.tolist(), np.float32],
    ids=["numpy", "torch", "list", "single"],
)
@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_scores(kind: Any, make: Callable[[np.ndarray], Any]) -> None:
    logits = [np.eye(4)[labels] * 3 + RNG.normal(size=(N, 4)) for labels in (OLD, NEW)]
    if kind == "probabilities":
        logits = [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in logits]
    names = ["cat", "dog", "fox", "owl"]
    found = compare(
        old=make(logits[0]), new=make(logits[1]), target=TARGET, scores=kind, class_names=names
    )
    sides = [
        Predictions.from_arrays(
            **{kind: np.asarray(make(x))}, targets=TARGET, class_names=names, name="s"
        )
        for x in logits
    ]
    assert result_of(found) == result_of(compare(old=sides[0], new=sides[1]))
    assert found.layout.has_logits == (kind == "logits")


# -- matrix and ensemble ---------------------------------------------------------------------------


def test_many_models_in_many_forms() -> None:
    frames = [table(x).rename(columns={"key": "id", "says": "label"}) for x in (OLD, NEW)]
    found = matrix([frames[0], pl.from_pandas(frames[1])])
    assert found.names == ("model 1", "model 2")
    assert found.churn[0, 1] == pytest.approx((OLD != NEW).mean())
    wide = [pl.DataFrame({"id": IDS, "logits": RNG.normal(size=(N, 4))}) for _ in range(2)]
    average = ensemble([wide[0], wide[1].to_pandas()])
    assert average.scores is not None
    assert average.scores.array is not None
    expected = (wide[0]["logits"].to_numpy() + wide[1]["logits"].to_numpy()) / 2
    assert average.scores.array == pytest.approx(expected)


# -- what is refused -------------------------------------------------------------------------------

SCORES = np.eye(4)[OLD]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"old": 5}, "Expected `old` to be predictions, the path .* but got int; read a file"),
        ({"old": None}, "Expected `old` to be predictions, .* but got NoneType"),
        ({"old": {"label": OLD}}, "Expected `old` to be predictions, .* but got dict"),
        (
            {"new": torch.nn.Linear(2, 2)},
            "got Linear; for models in memory use flipguard.compare_m",
        ),
        ({"control": [0, 1]}, "Expected `control 1` to be predictions, .* but got int"),
        ({"old": SCORES}, r"`scores=` with `old` of shape \(200, 4\).*scores='probabilities' or"),
        ({"old": OLD[:, None]}, r"labels per|its shape is \(200, 1\); give labels as a flat array"),
        ({"old": np.zeros((2, 2, 2))}, r"scores of shape \(samples, classes\), but its shape is"),
        ({"old": [[1], [1, 2]]}, "old has 'labels' that cannot be read as an array"),
        ({"target": TARGET[:5]}, r"old has arrays of different lengths \(target 5, label 200\)"),
        ({"target": "truth"}, "Expected `target` to be values, one per sample, because no side is"),
        ({"id": "key"}, "Expected `id` to be values, one per sample, because no side is"),
        (
            {"label": "says"},
            "Expected no `label`, because no side is a file or a table with a column",
        ),
        ({"correct": "passed"}, "Expected no `correct`, because no side is a file or a table with"),
        (
            {"label_old": "v1"},
            "no `label_old`, because `old` is no file or table with a column 'v1'",
        ),
        ({"scores": "softmax"}, "Expected `scores` to be probabilities or logits, but got 'softma"),
    ],
)
def test_what_is_no_side(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        compare(**{"old": OLD, "new": NEW, "target": TARGET, **given})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"target": TARGET}, "Expected `target` to be the name of a column, because every side is"),
        ({"id": IDS}, "Expected `id` to be the name of a column"),
        ({"scores": "logits"}, "Expected no `scores`, because no side is an array"),
        ({"class_names": ["a"]}, "Expected no `class_names`, because no side is an array"),
        ({"id": "nokey"}, "old has no column 'nokey', which `id=` asks for"),
    ],
)
def test_what_does_not_describe_tables(given: dict[str, Any], sentence: str) -> None:
    sides = {"old": table(OLD), "new": table(NEW)}
    with pytest.raises(InputError, match=sentence):
        compare(**{**sides, "id": "key", "target": "truth", "label": "says", **given})


def test_no_library_is_imported_to_recognise_its_values() -> None:
    code = (
        "import sys, numpy as np, polars as pl, flipguard as fg\n"
        "fg.compare(old=np.array([0, 1]), new=[0, 0], target=pl.Series([0, 1]))\n"
        "frame = pl.DataFrame({'id': [0, 1], 'label': [0, 1]})\n"
        "fg.compare(old=frame, new=frame.lazy())\n"
        "print([n for n in ('pandas', 'torch', 'sklearn') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_run_or_a_file_is_still_a_path(tmp_path: Path) -> None:
    paths = []
    for name, labels in (("old", OLD), ("new", NEW)):
        paths.append(tmp_path / f"{name}.npz")
        side = Predictions.from_arrays(ids=IDS, labels=labels, targets=TARGET)
        write_predictions(side, paths[-1])
    found = compare(old=str(paths[0]), new=paths[1])
    assert result_of(found)["counts"] == result_of(expected())["counts"]
