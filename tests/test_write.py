"""Writing prediction tables: what is read back is what was written."""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from flipguard import InputError, Predictions, read_predictions
from flipguard.predictions import write
from flipguard.predictions.scores import score_batches
from flipguard.predictions.write import write_predictions

TEXT = [f"{kind}{codec}" for kind in (".csv", ".tsv", ".jsonl") for codec in ("", ".gz", ".zst")]
BINARY = [".parquet", ".pq", ".arrow", ".feather", ".npz"]
SUFFIXES = [*TEXT, ".ndjson", *BINARY]

HOSTILE = (
    "a,b",
    "line\nbreak",
    "tab\there",
    "ünï ☃ 日本",
    " padded ",
    "it's",
    "(missing)",
    "-1",
    "007",
    "v1.5",
)
HOSTILE_IDS = ["a,b", 'say "hi"', "line\nbreak", "tab\t", "☃", " pad ", "", "007", "1e5", "null"]


def texts(predictions: Predictions, column: str | None) -> list[str | None]:
    assert column is not None
    values = predictions.frame.select(column).collect().to_series().to_list()
    return [None if value is None else str(value) for value in values]


def score_array(predictions: Predictions) -> np.ndarray:
    return np.concatenate(list(score_batches(predictions)))


def table(
    suffix: str, *, kind: str = "logits", names: tuple[str, ...] | None = HOSTILE
) -> Predictions:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(10, 10)).astype(np.float32)
    if kind == "probabilities":
        scores = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    given = {kind: scores}
    classes = names or tuple(str(i) for i in range(10))
    return Predictions.from_arrays(
        ids=HOSTILE_IDS,
        targets=[classes[i] for i in rng.permutation(10)],
        labels=[classes[i] for i in rng.permutation(10)],
        class_names=names,
        slices={"site": ["north,1", 'a "b"', "☃"] * 3 + ["x\ny"], "age": np.arange(10)},
        **given,
    )


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_everything_comes_back(tmp_path: Path, suffix: str, named: bool, kind: str) -> None:
    given = table(suffix, kind=kind, names=HOSTILE if named else None)
    file = tmp_path / f"new{suffix}"
    write_predictions(given, file)
    found = read_predictions(file)
    for role in ("id", "target", "label"):
        assert texts(found, getattr(found, role)) == texts(given, getattr(given, role))
    assert texts(found, "site") == texts(given, "site")
    assert texts(found, "age") == texts(given, "age")
    assert found.scores is not None
    assert found.scores.kind == kind
    wide = suffix.startswith((".csv", ".tsv"))
    assert found.class_names == (HOSTILE if named else tuple("0123456789") if wide else None)
    np.testing.assert_array_equal(score_array(found).astype(np.float32), score_array(given))
    assert sorted(found.columns) == sorted(given.columns)
    assert os.listdir(tmp_path) == [file.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_quotes_in_class_names_come_back(tmp_path: Path, suffix: str) -> None:
    names = ('q"x"', '"', "back\\slash")
    logits = np.eye(3)
    given = Predictions.from_arrays(ids=[1, 2, 3], logits=logits, class_names=names)
    write_predictions(given, tmp_path / f"new{suffix}")
    found = read_predictions(tmp_path / f"new{suffix}")
    assert found.class_names == names
    np.testing.assert_array_equal(score_array(found), logits)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_quotes_in_headers_are_written_as_every_csv_reader_expects(
    tmp_path: Path, suffix: str
) -> None:
    names = ('q"x"', 'a,"b"')
    given = Predictions.from_arrays(ids=[1, 2], logits=np.eye(2), class_names=names)
    write_predictions(given, tmp_path / f"new{suffix}")
    with (tmp_path / f"new{suffix}").open(newline="") as file:
        rows = list(csv.reader(file, delimiter="," if suffix == ".csv" else "\t"))
    assert rows == [["id", 'logit_q"x"', 'logit_a,"b"'], ["1", "1.0", "0.0"], ["2", "0.0", "1.0"]]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("source", [".csv", ".jsonl", ".parquet", ".npz"])
def test_any_format_converts_to_any_other(tmp_path: Path, source: str, suffix: str) -> None:
    logits = np.random.default_rng(1).normal(size=(7, 3))
    given = Predictions.from_arrays(
        ids=range(7), targets=[0, 1, 2, 0, 1, 2, 0], logits=logits, class_names=["0", "1", "2"]
    )
    write_predictions(given, tmp_path / f"first{source}")
    write_predictions(read_predictions(tmp_path / f"first{source}"), tmp_path / f"second{suffix}")
    found = read_predictions(tmp_path / f"second{suffix}")
    assert texts(found, found.id) == [str(i) for i in range(7)]
    assert texts(found, found.target) == ["0", "1", "2", "0", "1", "2", "0"]
    assert found.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(score_array(found), logits)


@pytest.mark.parametrize("suffix", BINARY)
def test_integers_stay_integers(tmp_path: Path, suffix: str) -> None:
    ids = np.array([2**62 + 1, -5, 0])
    given = Predictions.from_arrays(ids=ids, targets=[1, 0, 1], labels=[1, 1, 1])
    write_predictions(given, tmp_path / f"new{suffix}")
    frame = read_predictions(tmp_path / f"new{suffix}").frame.collect()
    assert frame["id"].to_list() == ids.tolist()
    assert frame["target"].dtype.is_integer()


@pytest.mark.parametrize("suffix", TEXT)
def test_large_integers_come_back_in_text(tmp_path: Path, suffix: str) -> None:
    given = Predictions.from_arrays(ids=[2**62 + 1, -5], labels=[1, 2])
    write_predictions(given, tmp_path / f"new{suffix}")
    found = read_predictions(tmp_path / f"new{suffix}")
    assert texts(found, "id") == [str(2**62 + 1), "-5"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_targets_is_no_column(tmp_path: Path, suffix: str) -> None:
    write_predictions(Predictions.from_arrays(ids=["a"], labels=["x"]), tmp_path / f"new{suffix}")
    assert read_predictions(tmp_path / f"new{suffix}").target is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_targets_stay_missing(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"id": ["a", "b", "c"], "target": [1, None, 0], "label": [1, 1, 1]})
    write_predictions(Predictions.from_frame(frame), tmp_path / f"new{suffix}")
    found = read_predictions(tmp_path / f"new{suffix}")
    values = found.frame.select("target").collect().to_series().to_list()
    assert [None if v is None or v != v else int(v) for v in values] == [1, None, 0]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_an_empty_text_is_not_a_missing_one(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"id": [1, 2], "target": ["", None], "label": ["x", "y"]})
    write_predictions(Predictions.from_frame(frame), tmp_path / f"new{suffix}")
    assert texts(read_predictions(tmp_path / f"new{suffix}"), "target") == ["", None]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_whole_floats_are_spelled_as_integers_in_text(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame(
        {"id": [1.0, 2.0, 3.5], "target": [3.0, float("nan"), None], "label": [3.0, 4.0, 1e15]}
    )
    write_predictions(Predictions.from_frame(frame), tmp_path / f"new{suffix}")
    found = read_predictions(tmp_path / f"new{suffix}")
    assert texts(found, "id") == ["1", "2", "3.5"]
    assert texts(found, "target") == ["3", None, None]
    assert texts(found, "label") == ["3", "4", "1000000000000000"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_roles_are_written_under_their_own_names(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame(
        {"image": ["a", "b"], "truth": [0, 1], "said": [1, 1], "camera": ["x", "y"]}
    )
    given = Predictions.from_frame(frame, id="image", target="truth", label="said")
    write_predictions(given, tmp_path / f"new{suffix}")
    found = read_predictions(tmp_path / f"new{suffix}")
    assert (found.id, found.target, found.label) == ("id", "target", "label")
    assert found.columns == ["id", "target", "label", "camera"]


def test_types_that_only_a_table_library_knows(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "id": ["a", "b"],
            "label": pl.Series(["x", "y"], dtype=pl.Categorical),
            "day": pl.Series([0, 1]).cast(pl.Date),
            "took": pl.Series([60_000, 1_000]).cast(pl.Duration("ms")),
            "price": pl.Series(["1.50", "2.25"]).cast(pl.Decimal(10, 2)),
        }
    )
    for suffix in SUFFIXES:
        write_predictions(Predictions.from_frame(frame), tmp_path / f"new{suffix}")
        found = read_predictions(tmp_path / f"new{suffix}")
        assert texts(found, "label") == ["x", "y"]
        assert texts(found, "day") == ["1970-01-01", "1970-01-02"]
        assert texts(found, "price") == ["1.50", "2.25"]


def test_pieces_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "MOST_ROWS_PER_PIECE", 7)
    logits = np.random.default_rng(2).normal(size=(100, 3))
    given = Predictions.from_arrays(
        ids=[f"id{i}" for i in range(100)], labels=[f"c{i % 3}" for i in range(100)], logits=logits
    )
    for suffix in SUFFIXES:
        write_predictions(given, tmp_path / f"first{suffix}")
        found = read_predictions(tmp_path / f"first{suffix}")
        assert texts(found, "id") == [f"id{i}" for i in range(100)]
        assert texts(found, "label") == [f"c{i % 3}" for i in range(100)]
        np.testing.assert_array_equal(score_array(found), logits)


def test_parquet_of_the_same_ids_has_the_same_bytes_of_ids(tmp_path: Path) -> None:
    from flipguard.predictions.same_bytes import identical_parquet_column

    for name, seed in (("old", 0), ("new", 1)):
        logits = np.random.default_rng(seed).normal(size=(5000, 3))
        given = Predictions.from_arrays(ids=[f"id{i}" for i in range(5000)], logits=logits)
        write_predictions(given, tmp_path / f"{name}.parquet")
    assert identical_parquet_column(tmp_path / "old.parquet", "id", tmp_path / "new.parquet", "id")


def test_an_npz_needs_no_ids(tmp_path: Path) -> None:
    write_predictions(Predictions.from_arrays(logits=np.eye(3)), tmp_path / "new.npz")
    found = read_predictions(tmp_path / "new.npz")
    assert found.id is None
    np.testing.assert_array_equal(score_array(found), np.eye(3))


def test_a_file_can_be_written_over_the_one_it_is_read_from(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        file = tmp_path / f"new{suffix}"
        write_predictions(table(suffix), file)
        write_predictions(read_predictions(file), file)
        assert texts(read_predictions(file), "id") == HOSTILE_IDS


def test_compressed_text_is_compressed(tmp_path: Path) -> None:
    given = Predictions.from_arrays(ids=[1], labels=["x"])
    write_predictions(given, tmp_path / "new.csv.gz")
    assert gzip.decompress((tmp_path / "new.csv.gz").read_bytes()) == b"id,label\n1,x\n"


# -- refusals ----------------------------------------------------------------------------------


def labels(**slices: list[object]) -> Predictions:
    return Predictions.from_arrays(ids=["a", "b"], labels=["x", "y"], slices=slices, name="new")


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"new\.xlsx is of no format known by its name"):
        write_predictions(labels(), tmp_path / "new.xlsx")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be written because .*nowhere is no folder"):
        write_predictions(labels(), tmp_path / "nowhere" / "new.csv")
    (tmp_path / "new.csv").mkdir()
    with pytest.raises(InputError, match=r"new\.csv is a folder; name a file in it"):
        write_predictions(labels(), tmp_path / "new.csv")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failing_disk_leaves_the_old_file(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"new{suffix}"
    file.write_bytes(b"as it was")

    def full(source: object, target: object) -> None:
        if Path(str(target)) == file:
            raise OSError(28, "No space left on device")
        os.rename(str(source), str(target))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        write_predictions(labels(), file)
    assert file.read_bytes() == b"as it was"
    assert os.listdir(tmp_path) == [file.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".jsonl.zst", ".parquet", ".arrow"])
def test_a_full_device_is_named(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"new{suffix}").symlink_to("/dev/full")
    told = r"cannot be written \(No space left on device( \(os error 28\))?\); check free space"
    with pytest.raises(InputError, match=told):
        write_predictions(labels(), tmp_path / f"new{suffix}")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.zst", ".parquet", ".arrow", ".npz"])
def test_a_broken_source_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"new{suffix}"
    file.write_bytes(b"as it was")
    frame = pl.DataFrame({"id": ["a", "b", "c"], "logits": [[1.0, 2.0], [1.0], [0.0, 1.0]]})
    with pytest.raises(InputError, match=r"new has 1 scores in column 'logits' .* for id 'b'"):
        write_predictions(Predictions.from_frame(frame, name="new"), file)
    assert file.read_bytes() == b"as it was"
    assert os.listdir(tmp_path) == [file.name]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".jsonl", ".npz"])
def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "old.csv").write_text("id,logit_a,logit_b\nx,1,2\ny,oops,3\n")
    with pytest.raises(InputError, match=r"old\.csv has 'oops' in score column 'logit_a'"):
        write_predictions(read_predictions(tmp_path / "old.csv"), tmp_path / f"new{suffix}")
    assert os.listdir(tmp_path) == ["old.csv"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_table_without_ids_is_only_for_npz(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match=r"new has no ids, .* give it ids, or write an NPZ"):
        write_predictions(
            Predictions.from_arrays(labels=[1], name="new"), tmp_path / f"new{suffix}"
        )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".arrow"])
def test_an_empty_table_is_refused(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"id": [], "label": []}, schema={"id": pl.String, "label": pl.String})
    with pytest.raises(InputError, match="new is empty"):
        write_predictions(Predictions.from_frame(frame, name="new"), tmp_path / f"new{suffix}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("suffix", "name"),
    [(".csv", "logit_x"), (".parquet", "probabilities"), (".npz", "file"), (".npz", "ids")],
)
def test_a_slice_that_would_be_read_as_something_else_is_refused(
    tmp_path: Path, suffix: str, name: str
) -> None:
    with pytest.raises(InputError, match=f"new has a further column '{name}', a name that"):
        write_predictions(labels(**{name: ["1", "2"]}), tmp_path / f"new{suffix}")


def test_a_second_id_column_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2], "image": ["a", "b"], "label": [0, 1]})
    given = Predictions.from_frame(frame, id="image", name="new")
    with pytest.raises(InputError, match="new has a further column 'id'"):
        write_predictions(given, tmp_path / "new.csv")


def test_probabilities_beside_logits_stay_a_column(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": ["a"], "logits": [[1.0, 2.0]], "probabilities": [[0.3, 0.7]]})
    given = Predictions.from_frame(frame, name="new")
    write_predictions(given, tmp_path / "new.parquet")
    assert "probabilities" in read_predictions(tmp_path / "new.parquet").columns
    with pytest.raises(InputError, match=r"column 'probabilities' of type List.*cannot hold"):
        write_predictions(given, tmp_path / "new.csv")


def test_an_npz_refuses_what_an_array_cannot_hold(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2], "target": ["a", None], "label": ["a", "b"]})
    given = Predictions.from_frame(frame, name="new")
    with pytest.raises(InputError, match="new has no value in column 'target' for 1 rows"):
        write_predictions(given, tmp_path / "new.npz")
    nul = Predictions.from_frame(
        pl.DataFrame({"id": ["a\0", "a"], "label": ["a", "b"]}), name="new"
    )
    with pytest.raises(InputError, match="'id' that ends in a NUL character"):
        write_predictions(nul, tmp_path / "new.npz")
    assert os.listdir(tmp_path) == []


def test_the_name_in_messages_is_the_predictions_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^renamed has no ids"):
        write_predictions(
            replace(Predictions.from_arrays(labels=[1]), name="renamed"), tmp_path / "x.csv"
        )


def test_an_npz_is_written_beside_its_place_under_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flipguard.archives import write_npz

    seen: list[str] = []

    def broken(file: Any, **_: object) -> None:
        seen.append(Path(file.name).name)
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    for _ in range(2):
        with pytest.raises(InputError, match=r"t\.npz cannot be written"):
            write_npz(tmp_path / "t.npz", labels=[1, 2])
    assert len(set(seen)) == 2
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="is no folder; create it first"):
        write_npz(tmp_path / "none" / "t.npz", labels=[1, 2])


def test_ids_beyond_64_bits_are_written_to_text(tmp_path: Path) -> None:
    table = Predictions.from_arrays(ids=np.array([1e20, 2.0, 1.5]), labels=[1, 2, 3])
    write_predictions(table, tmp_path / "t.csv")
    ids = [line.split(",")[0] for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    assert [float(i) for i in ids] == [1e20, 2.0, 1.5]
    assert ids[1:] == ["2", "1.5"]
