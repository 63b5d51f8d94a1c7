"""Columns with well-known names are found, told in a note, and never chosen out of two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from flipguard import InputError, Predictions, compare, read_predictions, write_predictions
from tests.commands import flipguard

IDS = [f"s{i}" for i in range(8)]
TARGET = [*"abcabcab"]
OLD = [*"abcabbbb"]
NEW = [*"abcccbab"]
NAMES = {
    "id": ("sample_id", "doc_id", "uid"),
    "target": ("y_true", "gold", "ground_truth"),
    "label": ("y_pred", "pred", "prediction", "predicted"),
}
VALUES = {"id": IDS, "target": TARGET, "label": OLD}

Save = Callable[[str, dict[str, Any]], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(name: str, columns: dict[str, Any]) -> Path:
        path = tmp_path / name
        frame = pl.DataFrame(columns)
        match path.suffix:
            case ".csv":
                frame.write_csv(path)
            case ".jsonl":
                frame.write_ndjson(path)
            case ".parquet":
                frame.write_parquet(path)
            case ".npz":
                np.savez(path, **{key: np.array(values) for key, values in columns.items()})
        return path

    return write


def notes_about(result: Any) -> list[str]:
    return [note for note in result.notes if ": took column" in note]


FORMATS = [".csv", ".jsonl", ".parquet", ".npz"]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(("role", "name"), [(r, n) for r, names in NAMES.items() for n in names])
def test_each_name_is_taken_and_told(role: str, name: str, suffix: str, save: Save) -> None:
    columns = {name if usual == role else usual: values for usual, values in VALUES.items()}
    path = save(f"old{suffix}", columns)
    usual = read_predictions(save(f"usual{suffix}", VALUES))
    result, expected = compare(old=path, new=usual), compare(old=usual, new=usual)
    assert result.counts.rows == expected.counts.rows == 8
    assert result["error_rate_old"] == expected["error_rate_old"]
    assert notes_about(result) == [f"{path}: took column {name!r} as {role}"]
    assert notes_about(expected) == []
    # A column that is named is not told.
    named = read_predictions(path, **{role: name})
    assert notes_about(compare(old=named, new=usual)) == []


def test_names_are_taken_as_written(save: Save) -> None:
    path = save("t.csv", {**VALUES, "ID": IDS[::-1], "Target": OLD, "Prediction": NEW})
    found = read_predictions(path)
    assert (found.id, found.target, found.label) == ("id", "target", "label")
    with pytest.raises(InputError, match="try: `id='ID'`"):
        read_predictions(save("u.csv", {"ID": IDS, "label": OLD}))


def test_one_note_for_all_sides_alike(save: Save) -> None:
    columns = {"uid": IDS, "gold": TARGET, "pred": OLD}
    old, new = save("old.csv", columns), save("new.csv", {**columns, "pred": NEW})
    result = compare(old=old, new=new, control=pd.DataFrame({"id": IDS, "y_pred": OLD}))
    assert notes_about(result) == [
        f"{old}, {new}: took column 'uid' as id, 'gold' as target, 'pred' as label",
        "control: took column 'y_pred' as label",
    ]


def test_tables_in_python_have_roles_too() -> None:
    frame = pd.DataFrame({"y_true": TARGET, "y_pred": OLD}, index=pd.Index(IDS, name="uid"))
    result = compare(old=frame, new=pl.from_pandas(frame.reset_index()))
    assert result["churn"].value == 0
    assert result["error_rate_old"].value == pytest.approx(2 / 8)


@pytest.mark.parametrize("prefix", ["proba_", "prob_"])
@pytest.mark.parametrize("suffix", FORMATS[:3])
def test_scores_of_other_prefixes(prefix: str, suffix: str, save: Save) -> None:
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), 8)

    def columns(start: str) -> dict[str, Any]:
        wide = {f"{start}{c}": scores[:, i] for i, c in enumerate("abc")}
        return {"id": IDS, "target": TARGET, **wide}

    path, usual = save(f"t{suffix}", columns(prefix)), save(f"u{suffix}", columns("probability_"))
    result, expected = compare(old=path, new=path), compare(old=usual, new=usual)
    assert result.to_frame().equals(expected.to_frame())
    assert notes_about(result) == [f"{path}: took column '{prefix}*' as probabilities"]


def test_one_column_of_another_prefix_is_a_column(save: Save) -> None:
    path = save("t.csv", {**VALUES, "prob_bucket": ["low", "high"] * 4})
    result = compare(old=path, new=path, by="prob_bucket")
    assert {group.name for group in result.by["prob_bucket"]} == {"low", "high"}


# -- two candidates --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"id": IDS, "label": TARGET, "prediction": OLD},
            "has 2 columns that may be the predicted class ('label', 'prediction'); name the right "
            "one: `target='label', label='prediction'` if 'label' is the true class, "
            "`label='label'` or `label='prediction'`.",
        ),
        (
            {"id": IDS, "y_true": TARGET, "gold": TARGET, "label": OLD},
            "has 2 columns that may be the true class ('y_true', 'gold'); name the right one: "
            "`target='y_true'` or `target='gold'`.",
        ),
        (
            {"id": IDS, "uid": IDS, "label": OLD},
            "has 2 columns that may be the id ('id', 'uid'); name the right one: `id='id'` or "
            "`id='uid'`.",
        ),
    ],
    ids=["label and prediction", "target", "id"],
)
def test_two_candidates(columns: dict[str, Any], told: str, suffix: str, save: Save) -> None:
    path = save(f"t{suffix}", columns)
    with pytest.raises(InputError) as caught:
        read_predictions(path)
    assert str(caught.value) == f"{path} {told}"


def test_arrays_called_labels_and_prediction(save: Save) -> None:
    path = save("t.npz", {"ids": IDS, "labels": TARGET, "prediction": OLD})
    with pytest.raises(
        InputError, match="`target='labels', label='prediction'` if 'labels' is the"
    ):
        read_predictions(path)


def test_a_column_that_is_named_leaves_one(save: Save) -> None:
    path = save("t.csv", {"id": IDS, "label": TARGET, "prediction": OLD})
    found = read_predictions(path, target="label")
    assert (found.target, found.label) == ("label", "prediction")
    assert read_predictions(path, label="prediction").target is None
    assert compare(old=found, new=found)["error_rate_old"].value == pytest.approx(2 / 8)


def test_two_kinds_of_scores(save: Save) -> None:
    wide = {f"{prefix}{c}": [0.5] * 8 for prefix in ("probability_", "prob_") for c in "ab"}
    path = save("t.csv", {"id": IDS, **wide})
    with pytest.raises(InputError, match=r"in the columns probability_\* and prob_\*, and either"):
        read_predictions(path)


def test_no_table_is_written_that_would_be_read_otherwise(tmp_path: Path) -> None:
    side = Predictions.from_arrays(ids=IDS, labels=OLD, slices={"gold": TARGET})
    for suffix in FORMATS:
        with pytest.raises(InputError, match="has a further column 'gold', a name that"):
            write_predictions(side, tmp_path / f"t{suffix}")


# -- rows by position, and the command line --------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_by_position(suffix: str, save: Save) -> None:
    old = save(f"old{suffix}", {"target": TARGET, "label": OLD})
    new = save(f"new{suffix}", {"sample_id": IDS[::-1], "target": TARGET, "label": NEW})
    result = compare(old=old, new=new, id="row")
    assert result["churn"].value == pytest.approx(np.mean(np.array(OLD) != np.array(NEW)))
    assert result.notes[0].startswith("rows were matched by their position, not by an id")
    short = save(f"short{suffix}", {"target": TARGET[1:], "label": NEW[1:]})
    with pytest.raises(InputError, match="must have the same rows in the same order, but their nu"):
        compare(old=old, new=short, id="row")
    # A column that is called row is a column.
    named = save(f"named{suffix}", {"row": IDS, "target": TARGET, "label": OLD})
    assert read_predictions(named, id="row").id is not None


def test_the_command_line_recognises_columns(save: Save, tmp_path: Path) -> None:
    columns = {"doc_id": IDS, "gold": TARGET, "pred": OLD}
    save("old.csv", columns)
    save("new.csv", {**columns, "pred": NEW})
    done = flipguard("compare", "old.csv", "new.csv", "--json", "out.json", folder=tmp_path)
    assert done.code == 0, done.err
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["n"] == 8
    assert (
        "old.csv, new.csv: took column 'doc_id' as id, 'gold' as target, 'pred' as label"
        in document["notes"]
    )
    save("both.csv", {**columns, "label": NEW})
    done = flipguard("compare", "both.csv", "new.csv", folder=tmp_path)
    assert done.code == 2
    # `gold` is the target here, so that `label` cannot be it.
    assert done.err.endswith("name the right one: --label pred or --label label.\n")
    given = ("--label", "pred", "--id", "row")
    done = flipguard("compare", "both.csv", "new.csv", *given, folder=tmp_path)
    assert done.code == 0, done.err
    assert "matched by their position" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id;target;label\n1;a;a\n", "a single column 'id;target;label'"),
        ("id;target;score\n1;a;0,5\n", "a single column 'id;target;score'"),
        ("id;target,x;label\n1;a,u;a\n", "columns 'id;target', 'x;label'"),
    ],
)
@pytest.mark.parametrize(
    "named", [{}, {"id": "id"}, {"label": "label", "target": "target"}], ids=str
)
def test_other_separators(text: str, told: str, named: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_predictions(path, **named)
    assert str(caught.value) == (
        f"{path} has {told}, so its columns seem to be separated by semicolons; save it with "
        "commas as .csv, or with tabs as .tsv."
    )


def test_signs_in_names_of_columns(save: Save) -> None:
    path = save("t.csv", {**VALUES, "gold;silver": IDS, "label|old": IDS})
    assert read_predictions(path).label == "label"


# -- two models in one file ------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_two_models_in_one_file(suffix: str, save: Save, tmp_path: Path) -> None:
    scores = {"probability_a": [0.5] * 8, "probability_b": [0.5] * 8} if suffix != ".npz" else {}
    both = save(f"both{suffix}", {"uid": IDS, "gold": TARGET, "v1": OLD, "v2": NEW, **scores})
    old = save("old.csv", {"id": IDS, "target": TARGET, "label": OLD})
    new = save("new.csv", {"id": IDS, "target": TARGET, "label": NEW})
    given = ("--label-old", "v1", "--label-new", "v2", "--json", "one.json")
    done = flipguard("compare", both.name, *given, folder=tmp_path)
    assert done.code == 0, done.err
    document = json.loads((tmp_path / "one.json").read_text())
    expected = compare(old=old, new=new).as_dict()
    assert (document["old"], document["new"]) == (f"{both.name}:v1", f"{both.name}:v2")
    assert document["counts"] == expected["counts"]
    assert document["metrics"].keys() == expected["metrics"].keys()
    names = ("--name-old", "in service", "--name-new", "candidate")
    done = flipguard("compare", both.name, *given, *names, folder=tmp_path)
    document = json.loads((tmp_path / "one.json").read_text())
    assert (document["old"], document["new"]) == ("in service", "candidate")
    assert "in service → candidate" in done.out


def test_a_gate_over_two_columns_of_one_file(save: Save, tmp_path: Path) -> None:
    save("both.csv", {"id": IDS, "target": TARGET, "v1": TARGET, "v2": TARGET})
    (tmp_path / "gate.toml").write_text('[[rule]]\nmetric = "churn"\nmax = 0.9\njudge = "point"\n')
    labels = ("--label-old", "v1", "--label-new", "v2", "--policy", "gate.toml")
    assert flipguard("gate", "both.csv", *labels, folder=tmp_path).code == 0
    done = flipguard("gate", "both.csv", *labels, "--json", "both.csv", folder=tmp_path)
    assert done.code == 2
    assert "both.csv is one of the input files" in done.err


def test_two_files_with_a_column_each(save: Save, tmp_path: Path) -> None:
    save("old.csv", {"id": IDS, "target": TARGET, "v1": OLD})
    save("new.csv", {"id": IDS, "target": TARGET, "v2": NEW})
    given = ("old.csv", "new.csv", "--label-old", "v1", "--label-new", "v2")
    done = flipguard("compare", *given, "--json", "-", folder=tmp_path)
    assert json.loads(done.out)["n"] == 8


@pytest.mark.parametrize("labels", [(), ("--label-old", "v1"), ("--label", "v1")], ids=str)
def test_one_file_needs_two_labels(labels: tuple[str, ...], save: Save, tmp_path: Path) -> None:
    save("both.csv", {"id": IDS, "target": TARGET, "v1": OLD, "v2": NEW})
    done = flipguard("compare", "both.csv", *labels, folder=tmp_path)
    assert done.code == 2
    assert done.err == (
        "flipguard: Missing argument NEW. Usage: OLD NEW, or OLD --label-old COL --label-new COL "
        "if both models are columns of one file.\n"
    )


@pytest.mark.parametrize("files", [("both.csv",), ("both.csv", "both.csv")], ids=str)
def test_one_column_is_not_two_models(files: tuple[str, ...], save: Save, tmp_path: Path) -> None:
    save("both.csv", {"id": IDS, "target": TARGET, "v1": OLD})
    labels = ("--label-old", "v1", "--label-new", "v1")
    done = flipguard("compare", *files, *labels, folder=tmp_path)
    assert done.code == 2
    assert done.err == (
        "flipguard: Expected --label-old and --label-new to name two columns, but old and new are "
        "the same column 'v1' of one table; name the column of each model.\n"
    )


def test_a_label_of_one_side_that_is_not_there(save: Save, tmp_path: Path) -> None:
    save("both.csv", {"id": IDS, "target": TARGET, "v1": OLD, "v2": NEW})
    labels = ("--label-old", "v1", "--label-new", "v3")
    done = flipguard("compare", "both.csv", *labels, folder=tmp_path)
    assert done.code == 2
    assert "both.csv has no column 'v3', which --label-new asks for" in done.err
