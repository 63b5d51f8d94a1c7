"""Every format says the same thing: the same data in any two of them gives the same counts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pytest

from flipguard import FlipCounts, InputError, Predictions, compare, read_predictions

TEXT = (".csv", ".tsv", ".jsonl", ".ndjson")
FORMATS = (
    *TEXT,
    *(f"{suffix}{packed}" for suffix in TEXT for packed in (".gz", ".zst")),
    ".parquet",
    ".pq",
    ".arrow",
    ".feather",
    ".ipc",
    ".npz",
)

Columns = dict[str, list[Any]]


def text_of(columns: Columns, suffix: str) -> str:
    """CSV, TSV or JSON Lines, written by hand."""
    rows = list(zip(*columns.values(), strict=True))
    if suffix in (".jsonl", ".ndjson"):
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
        return "\n".join(lines) + "\n"
    separator = "," if suffix == ".csv" else "\t"

    def cell(value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, list):
            value = json.dumps(value)
        text = str(value)
        return '"' + text.replace('"', '""') + '"' if separator in text else text

    lines = [separator.join(columns), *(separator.join(map(cell, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def write(path: Path, columns: Columns) -> Path:
    """The columns in the format of the file's name, by anything but flipguard."""
    suffixes = path.suffixes
    if suffixes[0] in TEXT:
        data = text_of(columns, suffixes[0]).encode()
        if suffixes[-1] == ".gz":
            data = gzip.compress(data)
        elif suffixes[-1] == ".zst":
            data = zstd_stream(data)
        path.write_bytes(data)
    elif path.suffix in (".parquet", ".pq"):
        pl.DataFrame(columns, strict=False).write_parquet(path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(pa.table(columns), path, compression="uncompressed")
    elif path.suffix == ".npz":
        np.savez(path, **{plural(k): np.asarray(v) for k, v in columns.items()})
    else:
        pl.DataFrame(columns, strict=False).write_ipc(path)
    return path


def zstd_stream(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def plural(name: str) -> str:
    return {"id": "ids", "target": "targets", "label": "labels"}.get(name, name)


# -- the same data in every pair of formats --------------------------------------------------------

IDS = ["a", "b", "007", "ä,ö", "7", "猫"]
TARGETS = ["cat", "dog", "cat", "été", "dog", "cat"]
OLD_LABELS = ["cat", "dog", "dog", "été", "cat", "cat"]
NEW_LABELS = ["dog", "dog", "cat", "cat", "été", "cat"]
CLASSES = ["cat", "dog", "été"]
OLD_LOGITS = [[3.0, 1.5, 0.0], [0.0, 2.0, 2.0], [0.25, 1.0, 0.5], [0.0, 0.0, 1.0], [9.0, 0.0, -9.0]]
OLD_LOGITS.append([1.0, 1.0, 1.0])
NEW_LOGITS = [[0.0, 1.5, 0.0], [0.0, 2.5, 2.0], [1.25, 1.0, 0.5], [4.0, 0.0, 1.0], [0.0, 0.0, 0.5]]
NEW_LOGITS.append([1.0, 0.5, 0.75])


def labels_table(labels: list[str]) -> Columns:
    return {"id": IDS, "target": TARGETS, "label": labels, "group": list("ppqqrr")}


def wide_table(logits: list[list[float]]) -> Columns:
    scores = {f"logit_{name}": [row[i] for row in logits] for i, name in enumerate(CLASSES)}
    return {"id": IDS, "target": TARGETS, **scores, "group": list("ppqqrr")}


def list_table(logits: list[list[float]]) -> Columns:
    numbers = [CLASSES.index(target) for target in TARGETS]
    return {"id": IDS, "target": numbers, "logits": logits, "group": list("ppqqrr")}


def counts(old: Path, new: Path, **options: Any) -> FlipCounts:
    return compare(old=read_predictions(old), new=read_predictions(new), **options).counts


@pytest.mark.parametrize("suffix", FORMATS)
def test_labels_are_the_same_in_every_pair_of_formats(suffix, tmp_path):
    old = write(tmp_path / f"old{suffix}", labels_table(OLD_LABELS))
    expected = compare(
        old=Predictions.from_arrays(ids=IDS, targets=TARGETS, labels=OLD_LABELS),
        new=Predictions.from_arrays(ids=IDS, labels=NEW_LABELS),
    ).counts
    # Read from the lists above: a and 猫 aside, nothing stays as it was.
    assert {cell: int(expected[cell]) for cell in ("both_right", "negative_flip")} == {
        "both_right": 2,
        "negative_flip": 2,
    }
    for other in FORMATS:
        new = write(tmp_path / f"new{other}", labels_table(NEW_LABELS))
        assert counts(old, new, by=["group"]) == expected, other


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("table", [wide_table, list_table], ids=["wide", "list"])
def test_scores_are_the_same_in_every_pair_of_formats(table, suffix, tmp_path):
    def saved(name: str, logits: list[list[float]]) -> Path:
        path = tmp_path / name
        if path.suffix == ".npz":
            columns = list_table(logits)
            if table is wide_table:
                columns |= {"class_names": CLASSES, "target": TARGETS}
            return write(path, columns)
        return write(path, table(logits))

    names = CLASSES if table is wide_table else None
    targets = TARGETS if table is wide_table else list_table(OLD_LOGITS)["target"]
    expected = compare(
        old=Predictions.from_arrays(
            ids=IDS, targets=targets, logits=np.array(OLD_LOGITS), class_names=names
        ),
        new=Predictions.from_arrays(ids=IDS, logits=np.array(NEW_LOGITS), class_names=names),
    ).counts
    assert expected["negative_flip"] == 2
    assert expected["distance"] > 0
    old = saved(f"old{suffix}", OLD_LOGITS)
    for other in FORMATS:
        assert counts(old, saved(f"new{other}", NEW_LOGITS), by=["group"]) == expected, other


@pytest.mark.parametrize("suffix", FORMATS)
def test_probabilities_are_read_in_every_format(suffix, tmp_path):
    chances = [[0.5, 0.5], [0.125, 0.875], [1.0, 0.0]]
    columns = {"id": [1, 2, 3], "target": [0, 0, 1], "probabilities": chances}
    table = read_predictions(write(tmp_path / f"t{suffix}", columns))
    result = compare(old=table, new=table)
    assert result["margin_old"].value == pytest.approx((0 + 0.75 + 1) / 3)
    assert result["error_rate_old"].value == pytest.approx(2 / 3)
    assert np.isnan(result["logit_displacement"].value)


@pytest.mark.parametrize("suffix", FORMATS)
def test_labels_and_scores_in_one_file(suffix, tmp_path):
    columns = {"id": [1, 2], "target": [1, 1], "label": [1, 1], "logits": [[0.0, 1.0], [1.0, 0.0]]}
    table = read_predictions(write(tmp_path / f"t{suffix}", columns))
    result = compare(old=table, new=table)
    assert result["error_rate_old"].value == 0.0
    assert result["margin_old"].value == pytest.approx(np.tanh(0.5))


@pytest.mark.parametrize("suffix", FORMATS)
def test_columns_of_other_names(suffix, tmp_path):
    columns = {"key": ["a", "b"], "truth": ["x", "y"], "guess": ["x", "x"], "label": ["y", "y"]}
    path = tmp_path / f"t{suffix}"
    if suffix == ".npz":
        # Beside the array that is asked for lies one of the usual name, which is then a slice.
        columns["labels"] = columns.pop("label")
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    else:
        write(path, columns)
    table = read_predictions(path, id="key", target="truth", label="guess")
    assert (table.id is None, table.target is None, table.label is None) == (False,) * 3
    result = compare(old=table, new=table, by=["target"])
    assert result["error_rate_old"].value == 0.5
    assert {group.name for group in result.by["target"]} == {"x", "y"}


# -- what is the same, and what is not -------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".csv.gz", ".parquet"])
def test_ids_with_leading_zeros_are_ids_of_their_own(suffix, tmp_path):
    columns = {"id": ["007", "7", "07"], "label": ["a", "b", "c"]}
    old = read_predictions(write(tmp_path / f"old{suffix}", columns))
    flipped = {"id": ["7", "07", "007"], "label": ["b", "c", "z"]}
    new = read_predictions(write(tmp_path / "new.csv", flipped))
    result = compare(old=old, new=new)
    assert result.n == 3
    assert result.flips()["id"].to_list() == ["007"]


INTEGERS: dict[str, Callable[[Path, list[int]], Path]] = {
    "int in CSV": lambda p, v: write(p / "x.csv", {"id": [1, 2, 3], "label": v}),
    "int in JSON": lambda p, v: write(p / "x.jsonl", {"id": [1, 2, 3], "label": v}),
    "text in JSON": lambda p, v: write(
        p / "z.jsonl", {"id": ["1", "2", "3"], "label": [str(x) for x in v]}
    ),
    "a mixture in JSON": lambda p, v: write(
        p / "m.jsonl", {"id": ["1", 2, 3], "label": [str(v[0]), v[1], v[2]]}
    ),
    "int in Parquet": lambda p, v: write(p / "x.parquet", {"id": [1, 2, 3], "label": v}),
    "text in Parquet": lambda p, v: write(
        p / "z.parquet", {"id": ["1", "2", "3"], "label": [str(x) for x in v]}
    ),
    "int in NPZ": lambda p, v: write(p / "x.npz", {"id": [1, 2, 3], "label": v}),
    "bytes in NPZ": lambda p, v: write(
        p / "z.npz", {"id": [b"1", b"2", b"3"], "label": [str(x).encode() for x in v]}
    ),
    "small ints in Arrow": lambda p, v: small_ints(p / "x.arrow", v),
    "categories in Arrow": lambda p, v: categories(p / "y.arrow", v),
    "decimals in Parquet": lambda p, v: decimals(p / "d.parquet", v),
}
FLOATS: dict[str, Callable[[Path, list[int]], Path]] = {
    "3.0 in CSV": lambda p, v: write(
        p / "y.csv", {"id": [1, 2, 3], "label": [float(x) for x in v]}
    ),
    "3.0 in JSON": lambda p, v: write(
        p / "y.jsonl", {"id": [1, 2, 3], "label": [float(x) for x in v]}
    ),
    "float in Parquet": lambda p, v: write(
        p / "y.parquet", {"id": [1, 2, 3], "label": [float(x) for x in v]}
    ),
    "3.0 as text in Parquet": lambda p, v: write(
        p / "w.parquet", {"id": ["1", "2", "3"], "label": [str(float(x)) for x in v]}
    ),
    "float in NPZ": lambda p, v: write(
        p / "y.npz", {"id": [1.0, 2.0, 3.0], "label": [float(x) for x in v]}
    ),
}


def small_ints(path: Path, values: list[int]) -> Path:
    frame = pl.DataFrame({"id": [1, 2, 3], "label": values})
    frame.cast({"id": pl.UInt32, "label": pl.Int8}).write_ipc(path)
    return path


def categories(path: Path, values: list[int]) -> Path:
    frame = pl.DataFrame({"id": ["1", "2", "3"], "label": [str(x) for x in values]})
    frame.cast({"label": pl.Categorical}).write_ipc(path)
    return path


def decimals(path: Path, values: list[int]) -> Path:
    frame = pl.DataFrame({"id": [1, 2, 3], "label": values})
    frame.cast({"id": pl.Decimal(10, 2), "label": pl.Decimal(10, 2)}).write_parquet(path)
    return path


@pytest.mark.parametrize(
    ("first", "spellings"),
    [(name, group) for group in (INTEGERS, FLOATS) for name in group],
    ids=[*INTEGERS, *FLOATS],
)
def test_a_class_is_the_same_in_every_spelling(first, spellings, tmp_path):
    old = read_predictions(spellings[first](tmp_path, [3, -1, 10]))
    for second, make in spellings.items():
        (folder := tmp_path / second).mkdir()
        same = compare(old=old, new=read_predictions(make(folder, [3, -1, 10])))
        assert (same.n, same["churn"].value) == (3, 0.0), second
        other = compare(old=old, new=read_predictions(make(folder, [3, -1, 11])))
        assert other["churn"].value == pytest.approx(1 / 3), second


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_names_that_end_like_whole_numbers_keep_their_end(suffix, tmp_path):
    old = write(tmp_path / f"old{suffix}", {"id": ["1", "2"], "label": ["v1.0", "v1"]})
    new = write(tmp_path / "new.parquet", {"id": ["1", "2"], "label": ["v1.0", "v1.0"]})
    assert counts(old, new).different == 1


def test_classes_of_wide_columns_are_spelled_as_labels_are(tmp_path):
    old = write(tmp_path / "old.csv", {"id": [1, 2], "logit_3.0": [1, 0], "logit_4": [0, 1]})
    new = write(tmp_path / "new.parquet", {"id": [1, 2], "label": [3, 4]})
    assert counts(old, new).different == 0


@pytest.mark.parametrize("first", [".csv", ".jsonl", ".npz"])
def test_ids_as_numbers_and_as_text_meet(first, tmp_path):
    ids = [10, 2, 33]
    old = write(tmp_path / "old.parquet", {"id": ids, "label": ["a", "b", "c"]})
    shuffled = {"id": ["2", "10", "33"], "label": ["b", "a", "x"]}
    new = write(tmp_path / f"new{first}", shuffled)
    assert counts(old, new).different == 1


def test_large_numbers_are_kept_to_the_last_digit(tmp_path):
    ids = [2**63 - 1, 2**63 - 2, 2**53 + 1, 2**53]
    old = write(tmp_path / "old.parquet", {"id": ids, "label": [2**62 + 1, 2**62, 0, 1]})
    for suffix in (".csv", ".jsonl", ".npz", ".parquet"):
        new = write(tmp_path / f"new{suffix}", {"id": ids[::-1], "label": [1, 0, 2**62, 2**62]})
        result = compare(old=read_predictions(old), new=read_predictions(new))
        assert result.counts.different == 1, suffix
        assert [int(i) for i in result.flips()["id"]] == [2**63 - 1], suffix


def test_numbers_beyond_the_signed_ones(tmp_path):
    ids = np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64)
    np.savez(tmp_path / "old.npz", ids=ids, labels=ids)
    np.savez(tmp_path / "same.npz", ids=ids[::-1], labels=ids[::-1])
    write(tmp_path / "new.csv", {"id": ids.tolist(), "label": [2**64 - 1, 5]})
    write(tmp_path / "small.parquet", {"id": [1, 2], "label": [1, 2]})
    assert counts(tmp_path / "old.npz", tmp_path / "same.npz").different == 0
    assert counts(tmp_path / "old.npz", tmp_path / "new.csv").different == 1
    np.savez(tmp_path / "mixed.npz", ids=np.array([1, 2]), labels=ids)
    with pytest.raises(InputError, match=r"None .* predicts .'18446744073709551614'"):
        counts(tmp_path / "mixed.npz", tmp_path / "small.parquet")


def test_class_names_beyond_the_signed_numbers(tmp_path):
    names = [str(2**64), str(2**70)]
    old = Predictions.from_arrays(logits=np.eye(2), class_names=names)
    new = Predictions.from_arrays(labels=names)
    assert compare(old=old, new=new).counts.different == 0


def test_ids_that_are_fractions_are_not_cut(tmp_path):
    ids = [1.25, 1.5, 2.0]
    old = write(tmp_path / "old.parquet", {"id": ids, "label": ["a", "b", "c"]})
    new = write(tmp_path / "new.parquet", {"id": [2.0, 1.5, 1.25], "label": ["c", "b", "x"]})
    result = compare(old=read_predictions(old), new=read_predictions(new))
    assert result.counts.different == 1
    assert result.flips()["id"].to_list() == ["1.25"]
    text = write(tmp_path / "new.csv", {"id": ["2", "1.5", "1.25"], "label": ["c", "b", "x"]})
    assert counts(old, text).different == 1


def test_dates_are_ids(tmp_path):
    from datetime import date

    days = [date(2024, 1, 2), date(2024, 1, 1)]
    old = write(tmp_path / "old.parquet", {"id": days, "label": ["a", "b"]})
    new = write(tmp_path / "new.csv", {"id": ["2024-01-01", "2024-01-02"], "label": ["b", "x"]})
    assert counts(old, new).different == 1


# -- missing values, groups, NPZ -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [s for s in FORMATS if s != ".npz"])
def test_missing_targets_are_unlabelled_rows(suffix, tmp_path):
    columns = {"id": [1, 2, 3], "target": [1, None, 2], "label": [1, 1, 1]}
    table = read_predictions(write(tmp_path / f"t{suffix}", columns))
    result = compare(old=table, new=table)
    assert result.counts["both_right"] == 1
    assert result.counts["wrong_same"] == 1
    assert result.counts["unlabelled_same"] == 1


@pytest.mark.parametrize("new", [".csv", ".jsonl", ".parquet", ".npz"])
@pytest.mark.parametrize("old", [".csv", ".jsonl", ".parquet", ".npz"])
def test_groups_of_numbers_meet_across_formats(old, new, tmp_path):
    columns = {"id": [1, 2, 3], "label": ["a", "b", "c"], "fold": [0, 1, 1]}
    first = read_predictions(write(tmp_path / f"old{old}", columns))
    second = read_predictions(write(tmp_path / f"new{new}", columns))
    result = compare(old=first, new=second, by=["fold"])
    assert {group.name: group.n for group in result.by["fold"]} == {"0": 1, "1": 2}
    assert result.by["fold"][1].n == 2


def test_a_group_told_by_one_file_only(tmp_path):
    old = write(tmp_path / "old.csv", {"id": [1, 2], "label": [1, 1]})
    new = write(tmp_path / "new.csv", {"id": [2, 1], "label": [1, 0], "site": ["p", "q"]})
    result = compare(old=read_predictions(old), new=read_predictions(new), by=["site"])
    assert {group.name: group["churn"].value for group in result.by["site"]} == {"p": 0, "q": 1}


def test_npz_without_ids_is_paired_by_position(tmp_path):
    np.savez(tmp_path / "old.npz", labels=[1, 2, 3], targets=[1, 2, 3])
    np.savez(tmp_path / "new.npz", labels=[1, 3, 3])
    assert counts(tmp_path / "old.npz", tmp_path / "new.npz")["negative_flip"] == 1


def test_npz_scores_alone(tmp_path):
    np.savez(tmp_path / "old.npz", logits=np.eye(3, dtype=np.float32))
    np.savez(tmp_path / "new.npz", logits=np.eye(3, dtype=np.float16)[[0, 2, 1]])
    result = compare(
        old=read_predictions(tmp_path / "old.npz"), new=read_predictions(tmp_path / "new.npz")
    )
    assert result["churn"].value == pytest.approx(2 / 3)
    assert result["logit_displacement"].value == pytest.approx(2 * np.sqrt(2) / 3, abs=1e-6)


def test_npz_slices_are_the_arrays_with_an_entry_a_row(tmp_path):
    np.savez(
        tmp_path / "old.npz",
        labels=[1, 2, 3],
        site=["p", "q", "q"],
        weights=np.ones((3, 2)),
        epoch=np.array(7),
        other=[1, 2],
    )
    table = read_predictions(tmp_path / "old.npz")
    assert table.columns == ["label", "site"]
    result = compare(old=table, new=table, by=["site"])
    assert {group.name: group.n for group in result.by["site"]} == {"p": 1, "q": 2}


@pytest.mark.parametrize("kind", [">i8", "<i2", "u1", ">f4", "S3", "U3", "?"])
def test_npz_of_any_plain_type(kind, tmp_path):
    labels = np.array([0, 1, 1]).astype(kind)
    np.savez(tmp_path / "t.npz", labels=labels, targets=labels[[0, 1, 0]])
    table = read_predictions(tmp_path / "t.npz")
    assert compare(old=table, new=table)["error_rate_old"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", [">f8", ">f4", "f2", "i4"])
def test_npz_scores_of_any_plain_type(kind, tmp_path):
    np.savez(tmp_path / "t.npz", logits=np.eye(3).astype(kind), targets=[0, 1, 1])
    table = read_predictions(tmp_path / "t.npz")
    assert compare(old=table, new=table)["error_rate_old"].value == pytest.approx(1 / 3)


def test_class_names_stored_beside_a_list_column(tmp_path):
    import pyarrow.parquet as pq

    columns = pa.table({"id": [1, 2], "logits": [[1.0, 2.0], [2.0, 1.0]], "target": ["b", "b"]})
    stored = {b"flipguard.class_names": b'["a", "b"]'}
    pq.write_table(columns.replace_schema_metadata(stored), tmp_path / "t.parquet")
    table = read_predictions(tmp_path / "t.parquet")
    assert table.class_names == ("a", "b")
    assert compare(old=table, new=table)["error_rate_old"].value == 0.5


def test_fixed_size_lists_and_single_precision(tmp_path):
    frame = pl.DataFrame(
        {"id": [1, 2], "logits": [[1.0, 2.0], [2.0, 1.0]], "target": [1, 1]},
        schema_overrides={"logits": pl.Array(pl.Float32, 2)},
    )
    frame.write_parquet(tmp_path / "t.parquet")
    table = read_predictions(tmp_path / "t.parquet")
    assert compare(old=table, new=table)["error_rate_old"].value == 0.5


def test_frames_of_pandas_and_arrow(tmp_path):
    pandas = pytest.importorskip("pandas")
    columns = {"id": ["a", "b"], "target": ["x", None], "label": ["x", "y"]}
    expected = compare(
        old=Predictions.from_frame(pl.DataFrame(columns)),
        new=Predictions.from_frame(pl.DataFrame(columns).lazy()),
    ).counts
    for frame in (pandas.DataFrame(columns), pa.table(columns)):
        table = Predictions.from_frame(frame)
        assert compare(old=table, new=table).counts == expected


def test_columns_of_pandas_are_read_without_pyarrow(monkeypatch):
    pd = pytest.importorskip("pandas")
    # As on a machine without pyarrow: neither library may ask it for help.
    monkeypatch.setattr(pl, "from_pandas", None)
    day = "2026-03-01"
    frame = pd.DataFrame(
        {
            "text": pd.Series(["a", None, "c"], dtype=object),
            "string": pd.Series(["a", None, "c"], dtype=pd.StringDtype("python")),
            "category": pd.Categorical(["x", None, "y"]),
            "nothing": pd.Series([None] * 3, dtype=object),
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "float": [1.5, float("nan"), 3.0],
            "small": pd.Series([1, 2, 3], dtype="int8"),
            "logits": [np.float32([1, 2]), np.float32([3, 4]), None],
            "mixed": pd.Series([1, True, "a"], dtype=object),
            "one_or_true": pd.Series([1, True, None], dtype=object),
            "seconds": np.array([day, "NaT", day], dtype="datetime64[s]"),
            "zone": pd.to_datetime([day, None, day]).tz_localize("Europe/Berlin"),
            "offset": pd.to_datetime([day, None, day]).tz_localize("+02:00"),
            "odd": pd.Series([1, {}, [2]], dtype=object),
        }
    )
    table = Predictions.from_frame(frame.assign(id=[1, 2, 3], label=[0, 1, 2]))
    found = table.frame.collect()
    assert found["text"].to_list() == found["string"].to_list() == ["a", None, "c"]
    assert found["category"].to_list() == ["x", None, "y"]
    assert found["nothing"].dtype == pl.String
    assert found["whole"].to_list() == [1, None, 3]
    assert found["maybe"].to_list() == [True, None, False]
    assert found["float"].to_list() == [1.5, None, 3.0]
    assert found["small"].dtype == pl.Int8
    assert found["mixed"].to_list() == ["1", "true", "a"]
    assert found["one_or_true"].to_list() == ["1", "true", None]
    assert [str(day) for day in found["seconds"].dt.date()] == [day, "None", day]
    assert found["zone"].dt.hour().to_list() == [0, None, 0]
    assert found["offset"].dt.hour().to_list() == [22, None, 22]
    assert found["logits"].to_list() == [[1, 2], [3, 4], None]
    assert found["logits"].dtype == pl.List(pl.Float32)
    assert found["odd"].dtype == pl.Object


def test_reading_is_by_name_and_upper_case_is_no_other_name(tmp_path):
    path = write(tmp_path / "t.csv", {"id": [1], "label": [1]})
    path = path.rename(tmp_path / "My.Predictions.CSV")
    assert read_predictions(str(path)).name == str(path)
    assert read_predictions(path).height == 1


def test_shuffled_scores_in_columns_are_gathered_from_disk(tmp_path):
    random = np.random.default_rng(0)
    n = 5_000
    logits, order = random.normal(size=(n, 7)), random.permutation(n)
    ids = np.arange(n)
    target = random.integers(0, 7, n)
    columns = {"id": pl.Series(ids), "target": target, "logits": logits.tolist()}
    pl.DataFrame(columns).write_parquet(tmp_path / "old.parquet")
    moved = {"id": ids[order], "logits": (logits[order] + 0.5).tolist()}
    pl.DataFrame(moved).write_parquet(tmp_path / "new.parquet", row_group_size=700)
    result = compare(
        old=read_predictions(tmp_path / "old.parquet"),
        new=read_predictions(tmp_path / "new.parquet"),
    )
    assert result["churn"].value == 0.0
    assert result["logit_displacement"].value == pytest.approx(0.5 * np.sqrt(7))
    accuracy = (logits.argmax(axis=1) == target).mean()
    assert result["error_rate_new"].value == pytest.approx(1 - accuracy)


def test_the_helper_writes_what_it_should(tmp_path):
    """The formats differ in their bytes, so that no test above compares a format with itself."""
    path = write(tmp_path / "t.csv.zst", {"id": [1], "label": ["é"]})
    assert path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    assert write(tmp_path / "t.jsonl.gz", {"id": [1]}).read_bytes()[:2] == b"\x1f\x8b"
    path = write(tmp_path / "t.feather", {"id": [1], "label": ["é"]})
    assert pc.equal(pyarrow.feather.read_table(path)["label"], "é").to_pylist() == [True]


# -- text: what a parser would pass over -----------------------------------------------------------


def packed(path: Path, text: str) -> Path:
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstd_stream(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst"])
@pytest.mark.parametrize(
    "text",
    [
        'id,label,note\n1,a,"x, y"\n2,b,"two\nlines, and\n"\n3,a,"he said ""no, no"""\n',
        "id,label,note\n1,a,x\n\n2,b,y\n3,a,\n\n\n",
        "id,label,note\r\n1,a,x\r\n2,b,y\r\n3,a,z",
        "\ufeffid,label,note\n1,a,x\n2,b,y\n3,a,z\n",
        '"id","label","a, b"\n"1","a","x"\n"2","b","y"\n"3","a","z"\n',
    ],
    ids=["separators in quotes", "blank lines", "CRLF", "BOM", "quoted header"],
)
def test_rows_that_only_look_ragged_are_read(text, suffix, tmp_path):
    table = read_predictions(packed(tmp_path / f"t{suffix}", text))
    ids = table.frame.select("id", "label").drop_nulls().collect().rows()
    assert ids == [("1", "a"), ("2", "b"), ("3", "a")]


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["1,a", "2", 'x"y,b', "3\r,c"], "line 3 has 1 fields"),
        (["1,a", ",", "2", 'x"y,b'], "no value in line 3"),
        (["1,a", '2,b"', "3", ",", "4,\rc"], "middle of a field in line 3"),
        (["1,a", "2\r2,b", '"3,c"d', "4"], "line feed in line 3"),
        (["1,a", "2", '"3,c'], "line 3 has 1 fields"),
    ],
)
def test_the_first_fault_of_a_file_is_told(rows, told, piece, tmp_path, monkeypatch):
    from flipguard.predictions import text

    monkeypatch.setattr(text, "PIECE", piece)
    path = tmp_path / "t.csv"
    path.write_bytes("\n".join(["id,label", *rows, ""]).encode())
    with pytest.raises((text.FormatError, InputError), match=told):
        text.check_separated(path, ",")


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_rows_are_looked_at_in_pieces_of_any_size(piece, tmp_path, monkeypatch):
    from flipguard.predictions import text

    monkeypatch.setattr(text, "PIECE", piece)
    for i, content in enumerate(['id,label\n1,"a\n,"\n2,b\n', "\ufeffid,label\r\n1,a\r\n2,b"]):
        path = packed(tmp_path / f"{i}.csv", content)
        assert text.check_separated(path, ",").names == ["id", "label"]
        path.write_text(content.rstrip() + "\n3,a,c\n")
        with pytest.raises(text.FormatError, match="has 3 fields where the header has 2"):
            text.check_separated(path, ",")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_scores_that_are_whole_numbers_at_first(suffix, tmp_path):
    n = 1_200
    rows = [{"id": i, "logit_a": 1, "logit_b": 2} for i in range(n)]
    rows[-1]["logit_b"] = 2.9
    text = "".join(json.dumps(row) + "\n" for row in rows)
    wide = read_predictions(packed(tmp_path / f"wide{suffix}", text))
    lists = [{"id": r["id"], "logits": [r["logit_a"], r["logit_b"]]} for r in rows]
    text = "".join(json.dumps(row) + "\n" for row in lists)
    listed = read_predictions(packed(tmp_path / f"list{suffix}", text))
    for table in (wide, listed):
        plain = Predictions.from_arrays(
            ids=np.arange(n), logits=np.array([[1, 2]] * n), class_names=table.class_names
        )
        moved = compare(old=plain, new=table)["logit_displacement"].value
        assert moved == pytest.approx(0.9 / n)


@pytest.mark.parametrize(("first", "then"), [(None, "north"), (3, "north"), (3, 3.5), (True, "x")])
def test_a_slice_that_changes_its_type_late(first, then, tmp_path):
    rows = [{"id": i, "label": 1, "site": first} for i in range(1_500)]
    rows[-1]["site"] = then
    text = "".join(json.dumps(row) + "\n" for row in rows)
    table = read_predictions(packed(tmp_path / "t.jsonl", text))
    groups = {g.name: g.n for g in compare(old=table, new=table, by=["site"]).by["site"]}
    assert groups[str(then)] == 1
    assert sum(groups.values()) == 1_500


# -- nothing is no name ----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow", ".npz"])
def test_an_empty_target_is_a_missing_one(suffix, tmp_path):
    columns = {"id": ["1", "2"], "target": ["a", ""], "label": ["a", "a"]}
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text('id,target,label\n1,a,a\n2,"",a\n')
    else:
        write(path, columns)
    table = read_predictions(path)
    found = compare(old=table, new=table).counts
    assert (found["both_right"], found["unlabelled_same"]) == (1, 1)


def test_an_empty_category_is_a_missing_one(tmp_path):
    frame = pl.DataFrame({"id": ["1", "2"], "target": ["a", ""], "label": ["a", "a"]})
    frame.cast({"target": pl.Categorical}).write_parquet(tmp_path / "t.parquet")
    table = read_predictions(tmp_path / "t.parquet")
    assert compare(old=table, new=table).counts["unlabelled_same"] == 1


def test_npz_members_that_cannot_matter_are_left_alone(tmp_path):
    import zipfile

    path = tmp_path / "t.npz"
    np.savez(path, labels=[1, 2], features=np.ones((2, 3)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "no array")
    assert read_predictions(path).columns == ["label"]


def test_integers_beside_class_names_are_places_in_them(save):
    """What a training script has at hand: integer targets, logits, and the names of the classes."""
    names = ["cat", "dog", "owl"]
    logits = np.eye(3)[[0, 1, 2, 0]]
    path = save("places.npz", {"targets": [0, 1, 2, 1], "logits": logits, "class_names": names})
    named = Predictions.from_arrays(
        targets=["cat", "dog", "owl", "dog"], logits=logits, class_names=names
    )
    result = compare(old=read_predictions(path), new=named)
    assert result["error_rate_old"].value == 1 / 4
    assert result["churn"].value == 0


def test_integers_beside_class_names_that_are_integers_are_those_classes():
    given = Predictions.from_arrays(targets=[7, 3], labels=[7, 7], class_names=[7, 3])
    assert compare(old=given, new=given)["error_rate_old"].value == 1 / 2


def test_the_names_of_tables_are_understood_in_an_npz_too(save):
    """An id that was overlooked would leave rows to be matched by their position."""
    old = save("old.npz", {"id": [1, 2, 3], "target": [0, 1, 1], "label": [0, 1, 0]})
    new = save("new.npz", {"id": [3, 2, 1], "label": [1, 1, 0]})
    result = compare(old=read_predictions(old), new=read_predictions(new))
    assert (result.counts["positive_flip"], result.counts["both_right"]) == (1, 2)
