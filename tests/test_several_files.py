"""A side of several files is the table of all their rows: split anywhere, nothing changes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flipguard import (
    Comparison,
    InputError,
    Predictions,
    compare,
    ensemble,
    matrix,
    read_predictions,
    write_predictions,
    write_report,
)
from tests.commands import flipguard
from tests.effort import tries

FORMATS = ("csv", "csv.gz", "tsv", "jsonl", "jsonl.zst", "parquet", "arrow", "npz")
CLASSES = ("cat", "dog", "7")
N = 24


def model(seed: int, *, scores: bool = True) -> Predictions:
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(0).choice(CLASSES, N)
    order = rng.permutation(N)
    logits = rng.normal(size=(N, 3)).round(3)
    given: dict[str, Any] = {"logits": logits, "class_names": CLASSES} if scores else {}
    return Predictions.from_arrays(
        ids=[f"s{i:02d}" for i in order],
        targets=truth[order],
        labels=None if scores else rng.choice(CLASSES, N),
        slices={"site": np.array(["x", "y"])[order % 2]},
        name=f"model{seed}",
        **given,
    )


def part(side: Predictions, rows: Sequence[int]) -> Predictions:
    frame = side.frame.collect()[list(rows)]
    columns = {c: frame[c] for c in frame.columns}
    return Predictions.from_arrays(
        ids=columns["id"],
        targets=columns["target"],
        labels=columns.get("label"),
        logits=None if side.scores is None else side.scores.array[list(rows)],
        class_names=side.class_names,
        slices={"site": columns["site"]},
    )


def split(side: Predictions, cuts: Sequence[int], folder: Path, suffix: str) -> list[Path]:
    """Write the rows between the cuts, a file for each part that has some."""
    folder.mkdir(exist_ok=True)
    ends = [0, *sorted({cut for cut in cuts if 0 < cut < N}), N]
    paths = []
    for i, (start, stop) in enumerate(pairwise(ends)):
        paths.append(folder / f"part-{i:02d}.{suffix}")
        write_predictions(part(side, range(start, stop)), paths[-1])
    return paths


def found(result: Comparison) -> dict[str, Any]:
    document = json.loads(result.to_json())
    return {key: document[key] for key in document.keys() - {"old", "new", "notes", "controls"}}


CUTS = st.lists(st.integers(1, N - 1), max_size=4)


@settings(max_examples=tries(25), deadline=None)
@given(st.sampled_from(FORMATS), CUTS, CUTS, st.booleans())
def test_files_are_one_table(
    suffix: str, old_cuts: list[int], new_cuts: list[int], scores: bool
) -> None:
    models = model(1, scores=scores), model(2, scores=scores)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = []
        for side in models:
            whole.append(folder / f"{side.name}.{suffix}")
            write_predictions(side, whole[-1])
        old = split(models[0], old_cuts, folder / "old", suffix)
        split(models[1], new_cuts, folder / "new", suffix)
        options: dict[str, Any] = {"by": ["target", "site"], "wants": ["flips"]}
        expected = compare(old=whole[0], new=whole[1], control=whole[1], **options)
        pattern = f"{folder}/new/*.{suffix}"
        result = compare(old=old, new=pattern, control=[pattern], **options)
        assert found(result) == found(expected)
        assert result.flips().equals(expected.flips())
        # A folder of parts is the same as the pattern of its files.
        assert found(compare(old=folder / "old", new=folder / "new", **options)) == found(
            compare(old=whole[0], new=whole[1], **options)
        )


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_without_ids_keep_the_order_of_the_files(suffix: str, tmp_path: Path) -> None:
    side = model(1)
    whole = tmp_path / f"whole.{suffix}"
    write_predictions(side, whole)
    parts = split(side, [5, 11], tmp_path / "old", suffix)
    one, several = (read_predictions(path, id="row") for path in (whole, parts))
    result = compare(old=one, new=several)
    assert result["churn"].value == 0
    assert result["logit_displacement"].value == 0


VALUES = st.one_of(
    st.integers(-3, 3), st.sampled_from([2.0, 0.5, 1e300, 2**60, True, "a", "", "1.50", None])
)


@settings(max_examples=tries(60), deadline=None)
@given(st.lists(VALUES, min_size=2, max_size=6), st.integers(1, 5))
@example([1, 2, "x"], 2)
@example([True, ""], 1)
@example([1, 2.5, 2**60], 1)
def test_types_of_json_lines_are_those_of_all_files(values: list[object], cut: int) -> None:
    cut = min(cut, len(values) - 1)
    lines = [json.dumps({"id": i, "label": "x", "v": v}) for i, v in enumerate(values)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, rows in (("a", lines), ("p1", lines[:cut]), ("p2", lines[cut:])):
            (folder / f"{file}.jsonl").write_text("\n".join(rows) + "\n")
        one = read_predictions(folder / "a.jsonl").frame.collect()
        two = read_predictions(f"{folder}/p*.jsonl").frame.collect()
    assert two.equals(one)
    assert two.schema == one.schema


# -- types and classes -----------------------------------------------------------------------------


def tables(folder: Path, *frames: pl.DataFrame) -> str:
    for i, frame in enumerate(frames):
        frame.write_parquet(folder / f"t{i}.parquet")
    return f"{folder}/t*.parquet"


def test_integers_that_a_library_wrote_as_floats(tmp_path: Path) -> None:
    ints = pl.DataFrame({"id": [1, 2], "target": [0, 1], "label": [0, 1]})
    floats = pl.DataFrame({"id": [3, 4], "target": [0.0, None], "label": [0, 1]})
    side = read_predictions(tables(tmp_path, ints, floats))
    other = Predictions.from_arrays(ids=[1, 2, 3, 4], targets=[0, 1, 0, None], labels=[0, 1, 0, 1])
    result = compare(old=other, new=side)
    assert (result["churn"].value, result["error_rate_new"].value) == (0, 0)
    assert result.counts.labelled == 3


def test_types_that_hold_each_other(tmp_path: Path) -> None:
    first = pl.DataFrame(
        {"id": ["a"], "label": ["x"], "logit_x": [1.0], "logit_y": [0], "n": [1]},
        schema_overrides={"logit_x": pl.Float32, "n": pl.Int8, "label": pl.Categorical},
    )
    # Another order of columns, and a column that is all missing.
    second = pl.DataFrame(
        {"n": [2], "label": ["y"], "id": ["b"], "logit_y": [2.5], "logit_x": [0.25]}
    )
    third = second.with_columns(id=pl.lit("c"), n=pl.lit(None))
    frame = read_predictions(tables(tmp_path, first, second, third)).frame.collect()
    assert frame.rows() == [
        ("a", "x", 1.0, 0.0, 1),
        ("b", "y", 0.25, 2.5, 2),
        ("c", "y", 0.25, 2.5, None),
    ]


def test_types_that_do_not(tmp_path: Path) -> None:
    numbers = pl.DataFrame({"id": [1], "label": ["a"]})
    pattern = tables(tmp_path, numbers, numbers.cast({"id": pl.String}))
    assert refused(pattern) == (
        f"{tmp_path}/t0.parquet has column 'id' of type Int64, and {tmp_path}/t1.parquet of type "
        "String; all files of one side must have one type per column."
    )


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_classes_are_matched_by_name(suffix: str, tmp_path: Path) -> None:
    names, scores = np.array(["cat", "dog", "owl"]), np.random.default_rng(3).normal(size=(6, 3))
    for i, order in enumerate(([0, 1, 2], [2, 0, 1])):
        rows = slice(3 * i, 3 * i + 3)
        chunk = {"ids": np.arange(6)[rows], "logits": scores[rows][:, order]}
        np.savez(tmp_path / f"p{i}.npz", class_names=names[order], **chunk)
        if suffix == "parquet":
            pl.DataFrame({"id": chunk["ids"], "logits": chunk["logits"].tolist()}).write_parquet(
                tmp_path / f"p{i}.parquet",
                metadata={"flipguard.class_names": json.dumps(names[order].tolist())},
            )
    whole = Predictions.from_arrays(ids=range(6), logits=scores, class_names=names)
    result = compare(old=whole, new=f"{tmp_path}/p*.{suffix}")
    assert (result["churn"].value, result["logit_displacement"].value) == (0, 0)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    for i, names in enumerate((["cat", "dog"], ["cat", "owl"])):
        np.savez(tmp_path / f"p{i}.npz", ids=[i], logits=np.ones((1, 2)), class_names=names)
    assert refused(f"{tmp_path}/p*.npz") == (
        f"{tmp_path}/p0.npz has scores of the classes 'cat', 'dog', and {tmp_path}/p1.npz of "
        "'cat', 'owl'; all files of one side must score the same classes."
    )
    # Labels may be of any classes.
    for i, names in enumerate((["cat", "dog"], ["cat", "owl"])):
        np.savez(tmp_path / f"l{i}.npz", ids=[i], labels=[1], class_names=names)
    labels = read_predictions(f"{tmp_path}/l*.npz").frame.collect()["label"]
    assert labels.to_list() == ["dog", "owl"]


# -- refusals --------------------------------------------------------------------------------------


def refused(side: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_predictions(side)
    return str(caught.value)


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


def test_a_pattern_without_a_file(tmp_path: Path) -> None:
    assert refused(f"{tmp_path}/old-*.csv") == (
        f"No file matches the pattern {tmp_path}/old-*.csv; check its folder and its spelling."
    )


def test_a_name_with_signs_of_a_pattern_is_a_file(tmp_path: Path) -> None:
    write(tmp_path, **{"t[1]_csv": "id,label\n1,a\n", "t1_csv": "id,label\n1,a\n2,b\n"})
    assert read_predictions(tmp_path / "t[1].csv").height == 1


@pytest.mark.parametrize(
    ("suffix", "second", "text"),
    [
        ("csv", "id,label\n2,b\n", "lacks column 'target'"),
        ("csv", "id,label,target,more\n2,b,b,1\n", "has another column, 'more'"),
        ("jsonl", '{"id": 2, "label": "b"}\n', "lacks column 'target'"),
    ],
)
def test_files_with_other_columns(suffix: str, second: str, text: str, tmp_path: Path) -> None:
    usual = "id,label,target\n{0},a,a\n"
    if suffix == "jsonl":
        usual = '{{"id": {0}, "label": "a", "target": "a"}}\n'
    for i, content in enumerate((usual.format(1), second, usual.format(3))):
        (tmp_path / f"p{i}.{suffix}").write_text(content)
    # The file that differs is the one of which there are fewer.
    assert refused(f"{tmp_path}/p*") == (
        f"{tmp_path}/p1.{suffix} {text}, unlike {tmp_path}/p0.{suffix}; all files of one side must "
        "have the same columns."
    )


def test_a_key_of_json_lines_may_be_left_out_if_it_has_no_role(tmp_path: Path) -> None:
    write(tmp_path, a_jsonl='{"id": 1, "label": "a", "note": "x"}\n', b_jsonl='{"id":2,"label":3}')
    frame = read_predictions(f"{tmp_path}/*.jsonl").frame.collect()
    assert frame.rows() == [(1, "a", "x"), (2, "3", None)]


def test_an_id_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, a_csv="id,label\n1,a\n2,a\n", b_csv="id,label\n2,b\n3,b\n")
    pattern = f"{tmp_path}/*.csv"
    with pytest.raises(InputError) as caught:
        compare(old=pattern, new=pattern)
    assert str(caught.value).startswith(f"{pattern} (2 files) has more than one row for id '2'")


def test_the_file_at_fault_is_named(tmp_path: Path) -> None:
    write(tmp_path, a_csv="id,logit_a,logit_b\n1,1,2\n", b_csv="id,logit_a,logit_b\n2,1,?\n")
    good = Predictions.from_arrays(ids=["1", "2"], logits=np.ones((2, 2)), class_names=["a", "b"])
    with pytest.raises(InputError, match=r"b\.csv has '\?' in score column 'logit_b'"):
        compare(old=good, new=f"{tmp_path}/*.csv")
    write(tmp_path, b_csv="id,logit_a,logit_b\n2,1,1\n,1,1\n")
    with pytest.raises(InputError, match=r"has no id in column 'id' at row 2 of .*/b\.csv; give"):
        compare(old=good, new=f"{tmp_path}/*.csv")
    write(tmp_path, b_csv="id,logit_a,logit_b\n2,1\n")
    assert refused(f"{tmp_path}/*.csv").startswith(f"{tmp_path}/b.csv cannot be read (line 2 has")


def test_files_of_two_formats_and_folders(tmp_path: Path) -> None:
    write(tmp_path, a_csv="id,label\n1,a\n", b_tsv="id\tlabel\n2\ta\n")
    assert refused(f"{tmp_path}/*") == (
        f"{tmp_path}/a.csv and {tmp_path}/b.tsv are of two formats, and the files of one side must "
        "be of one; name those of one format."
    )
    (tmp_path / "c").mkdir()
    assert "/c is a folder, but" in refused(f"{tmp_path}/*")
    assert refused([tmp_path / "a.csv", tmp_path / ".." / tmp_path.name / "a.csv"]).endswith(
        f"is the same file as {tmp_path}/a.csv; give each file once."
    )


def test_a_folder_of_other_files_says_what_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    write(folder, v1_csv="id,label\n1,a\n", v2_csv="id,label\n1,b\n")
    assert refused(folder) == (
        f"{folder} is a folder, not a file of predictions, and no run, because there is no "
        "run.json in it; name a file or a run, or several files with a pattern: "
        f"{folder}/*.csv."
    )
    assert read_predictions(f"{folder}/v1*").height == 1


def test_a_folder_as_spark_writes_it(tmp_path: Path) -> None:
    folder = tmp_path / "old.csv"
    folder.mkdir()
    write(folder, **{"part-0_csv": "id,label\n1,a\n", "part-1_csv": "id,label\n2,a\n"})
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.csv.crc").write_bytes(b"crc")
    assert read_predictions(folder).height == 2
    (folder / "readme.txt").touch()
    assert "with a pattern" in refused(folder)


# -- Python: paths or labels -----------------------------------------------------------------------


def test_a_list_of_texts_is_labels_unless_they_look_like_files(tmp_path: Path) -> None:
    write(tmp_path, a_csv="id,label\n0,a\n", b_csv="id,label\n1,b\n")
    texts = [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"]
    paths = [Path(text) for text in texts]
    labels = Predictions.from_arrays(labels=["a", "b"], ids=["0", "1"])
    assert compare(old=paths, new=labels)["churn"].value == 0
    assert compare(old=["a", "b"], new=["a", "b"])["churn"].value == 0
    with pytest.raises(InputError, match="which may be files or labels; give"):
        compare(old=texts, new=["a", "b"])
    assert compare(old=np.array(texts), new=np.array(texts))["churn"].value == 0
    with pytest.raises(InputError, match="a list of paths or of labels, but it has both"):
        compare(old=[paths[0], "b"], new=["a", "b"])
    with pytest.raises(InputError, match="the list is empty"):
        read_predictions([])
    # Here they can only be files.
    assert read_predictions(texts).height == 2


def test_matrix_and_ensemble(tmp_path: Path) -> None:
    one, two = model(1), model(2)
    parts = [split(side, [7], tmp_path / side.name, "parquet") for side in (one, two)]
    found, expected = matrix(parts), matrix([one, two])
    assert np.array_equal(found.churn, expected.churn)
    assert found.names == (f"{parts[0][0]} and 1 more file", f"{parts[1][0]} and 1 more file")
    averaged, plain = ensemble(parts), ensemble([one, two])
    assert averaged.frame.collect().equals(plain.frame.collect())
    assert np.array_equal(averaged.scores.array, plain.scores.array)


# -- the command line ------------------------------------------------------------------------------


def test_every_command(tmp_path: Path) -> None:
    for seed in (1, 2):
        split(model(seed), [3, 9], tmp_path / f"m{seed}", "parquet")
        write_predictions(model(seed), tmp_path / f"m{seed}.parquet")
    (tmp_path / "gate.toml").write_text('[[rule]]\nmetric = "churn"\nmax = 0.99\n')
    patterns, files = ["m1/*.parquet", "m2/part*"], ["m1.parquet", "m2.parquet"]
    tail = {
        "compare": ["--json", "-", "--control"],
        "gate": ["--policy", "gate.toml", "--json", "-", "--control"],
        "matrix": ["--json", "-"],
    }
    for command, options in tail.items():
        last = [[one[0]] if options[-1] == "--control" else [] for one in (patterns, files)]
        ran = flipguard(command, *patterns, *options, *last[0], folder=tmp_path)
        expected = flipguard(command, *files, *options, *last[1], folder=tmp_path)
        assert ran.code == expected.code == 0, ran.err
        text = ran.out.replace("m1/*.parquet (3 files)", "m1.parquet")
        text = text.replace("m2/part* (3 files)", "m2.parquet")
        if command == "matrix":
            text = text.replace('"m1.parquet"', '"m1"').replace('"m2.parquet"', '"m2"')
        assert text == expected.out
    assert flipguard("ensemble", *patterns, "--out", "e.npz", folder=tmp_path).code == 0
    assert read_predictions(tmp_path / "e.npz").height == N
    page = flipguard(
        "report", "m2/part*", "--old", "m1/*.parquet", "--out", "r.html", folder=tmp_path
    )
    assert page.code == 0, page.err
    assert "m2/part*: " in page.out


def test_an_output_never_overwrites_a_matched_file(tmp_path: Path) -> None:
    split(model(1), [3], tmp_path / "m", "csv")
    ran = flipguard("compare", "m/*.csv", "m/*.csv", "--flips", "m/part-01.csv", folder=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "m/part-01.csv is one of the input files" in ran.err


def test_two_models_in_columns_of_several_files(tmp_path: Path) -> None:
    write(tmp_path, a_csv="id,a,b,target\n1,x,x,x\n", b_csv="id,a,b,target\n2,x,y,x\n")
    ran = flipguard("compare", "*.csv", "--label-old", "a", "--label-new", "b", folder=tmp_path)
    assert ran.code == 0, ran.err
    assert "*.csv (2 files):a → *.csv (2 files):b" in ran.out


def test_the_report_has_one_hash_for_all_files(tmp_path: Path) -> None:
    paths = split(model(1), [3, 9], tmp_path / "m1", "csv")
    result = compare(old=paths, new=model(2))
    write_report(result, tmp_path / "r.html")
    content = b"".join(path.read_bytes() for path in paths)
    text = (tmp_path / "r.html").read_text()
    assert hashlib.sha256(content).hexdigest() in text
    assert "part-00.csv and 2 more files" in text
