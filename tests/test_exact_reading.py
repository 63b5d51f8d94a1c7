"""What a file says is what is read: against Python's csv and json, whatever the file holds."""

from __future__ import annotations

import cProfile
import csv
import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, Policy, Predictions, check, compare, read_predictions
from flipguard.archives import read_arrays
from flipguard.errors import PolicyError
from flipguard.predictions import json_lines, scores, text
from flipguard.predictions.write import write_predictions

ROLES = frozenset({"id", "target", "label"})


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    return read_predictions(path).frame.collect().rows()


def refusal(path: Path) -> str:
    def read() -> None:
        table = read_predictions(path)
        compare(old=table, new=table)

    with pytest.raises(InputError) as refused:
        read()
    return str(refused.value)


# -- separated text --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_bare_quotation_mark_swallows_no_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    lines = ["id,target,label,text", '1,a,a,a 5" disk', "2,b,b,x", '3,a,a,a 6" disk', "4,b,b,y"]
    path.write_text("\n".join(lines).replace(",", "," if suffix == ".csv" else "\t"))
    assert refusal(path).startswith(f"{path} has a quotation mark in the middle of a field in line")
    assert "in line 2;" in refusal(path)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('id,label\n1,a"\n2,b\n', 2),
        ('id,label\n1,a""b\n', 2),
        ('id,label\n1,"a"b\n', 2),
        ('id,label\n1,"a" \n', 2),
        ('id,label\n1, "a"\n', 2),
        ('id,label\n1,"x\ny"\n2,b"\n', 4),
        ('id,label\n1,a\n2,"b\n3,c\n', 3),
        ('i"d,label\n1,a\n', 1),
    ],
)
def test_quotation_marks_that_enclose_no_field(content: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    assert f"in line {line};" in refusal(path)


def parsed_by_csv(content: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(content, newline="")) if row]


def test_whatever_is_accepted_reads_as_csv_reads_it(tmp_path: Path) -> None:
    """Rows of random signs, mostly odd: they are read as csv reads them, or refused."""
    draw, path = random.Random(0), tmp_path / "t.csv"
    accepted = 0
    for _ in range(600):
        fields = [
            "a",
            "1",
            "",
            '"a"',
            '"a,b"',
            '"a\n"',
            '""',
            '""""',
            '"x""y"',
            "é",
            " ",
            '"',
            "\r",
        ]
        weights = [9, 9, 3, 5, 3, 3, 1, 1, 2, 3, 1, 0.2, 0.2]
        ends = draw.choice(["\n", "\r\n"])
        lines = [",".join(draw.choices(fields, weights, k=2)) for _ in range(draw.randint(0, 5))]
        lines = [draw.choice(["", line, line, line, line]) for line in lines]
        content = ends.join(["id,label", *lines]) + draw.choice(["", ends])
        path.write_bytes(content.encode())
        try:
            found = read_predictions(path).frame.collect().rows()
        except InputError:
            continue
        accepted += 1
        expected = parsed_by_csv(content)[1:]
        assert [[value or "" for value in row] for row in found] == expected, content
    assert accepted > 200


def test_line_ends_of_old_macs_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"id,target,label\r" + b"0000001,a,b\r" * 1_000_000)
    assert "has a carriage return without a line feed in line 1;" in refusal(path)


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv.zst", ".jsonl.gz"])
@pytest.mark.parametrize("filler", [b"x", b'"' * 2, b" "])
def test_an_endless_line_is_refused_before_it_is_in_memory(
    filler: bytes, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"t{suffix}"
    start = b'{"id": 1, "label": 2}\n' if suffix == ".jsonl.gz" else b"id,label\n1,a"
    with pa.output_stream(path) as file:  # which compresses by the name of the file
        file.write(start + filler * (40 << 20))
    with pytest.raises(InputError, match=r"more than 16 MiB|quotation mark"):
        read_predictions(path)


def test_a_long_field_is_not_joined_again_with_every_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a row is incomplete, each attempt to read it takes twice as much text."""
    monkeypatch.setattr(text, "PIECE", 64)
    path = tmp_path / "t.csv"
    path.write_text("id,label\n1," + "x" * (1 << 18) + "\n")
    with cProfile.Profile() as profile:
        text.check_separated(path, ",")
    stats = profile.getstats()
    (looks,) = [row.callcount for row in stats if getattr(row.code, "co_name", "") == "check"]
    assert looks < 20  # not one for each of the 4,096 pieces


def test_blank_lines_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BLANK_LINES", 1_000)
    path = tmp_path / "t.csv"
    path.write_text("id,label\n1,a\n" + "\n" * 1_001 + "2,b\n")
    assert len(rows_of(path)) == 2
    path.write_text("id,label\n1,a\n" + "\n" * 1_100 + "2,b\n")
    assert "has more than 1,000 blank lines" in refusal(path)
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1, "label": 2}\n' + "\n" * 100_000 + '{"id": 2, "label": 2}\n')
    assert "has more than 1,000 blank lines" in refusal(path)


def test_separators_alone_are_no_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,label\n1,a\n\n,\n2,b\n")
    assert "has no value in line 4" in refusal(path)


def test_names_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('\ufeff"id","label","logit_""a""","logit_b\nc",\r\n1,a,2,1,\r\n')
    table = read_predictions(path)
    assert table.class_names == ('"a"', "b\nc")
    assert table.columns == ["id", "label", ""]


def test_truth_values_in_lists_of_scores_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,logits\n1,"[1,2]"\n2,"[true,0]"\n')
    assert "has no scores in column 'logits'" in refusal(path)


# -- JSON Lines ------------------------------------------------------------------------------------


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_key_that_appears_late_counts(tmp_path: Path) -> None:
    def side(name: str, late: dict[str, int], early: dict[str, int], **more: int) -> Path:
        rows = [
            {"id": i, "target": "c" if i >= 1_000 else "a", "logit_a": 3, "logit_b": 1}
            | (late if i >= 1_000 else early)
            for i in range(1_200)
        ]
        return write_lines(tmp_path / name, rows[::-1] if more else rows)

    new = read_predictions(side("new.jsonl", {"logit_c": 0}, {"logit_c": 0}))
    for name, more in (("old.jsonl", {}), ("reversed.jsonl", {"reverse": 1})):
        old = read_predictions(side(name, {"logit_c": 9}, {}, **more))
        assert old.class_names is not None
        assert sorted(old.class_names) == ["a", "b", "c"]
        with pytest.raises(InputError, match="has no score for some class, for id"):
            compare(old=old, new=new)


def test_targets_that_only_the_last_rows_have(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": i, "label": "a"} for i in range(1_500)]
    for row in rows[1_000:]:
        row["target"] = "a"
    found = []
    for name, some in (("a", rows), ("b", rows[::-1])):
        table = read_predictions(write_lines(tmp_path / f"{name}.jsonl", some))
        found.append(compare(old=table, new=table).counts)
    assert found[0] == found[1]
    assert (found[0]["both_right"], found[0]["unlabelled_same"]) == (500, 1_000)


def test_groups_that_only_the_last_rows_have(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": i, "target": "a", "label": "a"} for i in range(1_500)]
    for row in rows[1_000:]:
        row["g"] = "x"
    for some in (rows, rows[::-1]):
        table = read_predictions(write_lines(tmp_path / "t.jsonl", some))
        result = compare(old=table, new=table, by=["g"])
        assert {group.name: group.n for group in result.by["g"]} == {"x": 500, "(missing)": 1_000}


JSON_TYPES: list[tuple[list[str], pl.DataType, list[Any]]] = [
    (["1", "-0", "null"], pl.Int64(), [1, 0, None]),
    ([str(2**63 - 1), str(-(2**63) + 1)], pl.Int64(), [2**63 - 1, -(2**63) + 1]),
    (["1", "2.50", "1e3", "-0.0"], pl.Float64(), [1.0, 2.5, 1000.0, 0.0]),
    (["true", "false", "null"], pl.Boolean(), [True, False, None]),
    (['"1"', '"1.0"', '""'], pl.String(), ["1", "1.0", ""]),
    (["null", "null"], pl.String(), [None, None]),
    (["1.0", '"cat"', "1e3", "-0", "2.50"], pl.String(), ["1.0", "cat", "1e3", "-0", "2.50"]),
    (["true", "1", '"x"'], pl.String(), ["true", "1", "x"]),
    ([str(2**63), "1"], pl.String(), [str(2**63), "1"]),
    ([str(2**53 + 1), "0.5"], pl.String(), [str(2**53 + 1), "0.5"]),
    (["[1]", "[2.5, null]"], pl.List(pl.Float64), [[1.0], [2.5, None]]),
    (["[1]", "3"], pl.String(), ["[1]", "3"]),
]


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(("values", "dtype", "expected"), JSON_TYPES, ids=lambda x: str(x)[:30])
def test_a_column_has_the_type_of_all_its_values(
    values: list[str], dtype: pl.DataType, expected: list[Any], bom: str, tmp_path: Path
) -> None:
    """In any order, after many other rows, and with blank lines between."""
    path = tmp_path / "t.jsonl"
    for places in (range(len(values)), range(len(values))[::-1]):
        lines = [f'{{"id": {i}, "site": {values[i]}, "label": 0}}' for i in places]
        others = [f'{{"id": {i}, "site": null, "label": 0}}' for i in range(1_500)]
        path.write_text(bom + "\n\n".join([*others, *lines]) + "\n")
        found = json_lines.scan_json_lines(path, ROLES).select("site").tail(len(values)).collect()
        assert found["site"].dtype == dtype
        assert found["site"].to_list() == [expected[i] for i in places]


@pytest.mark.parametrize("where", [0, 1_500])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": 1, "label": [1]}', "has a list in column 'label' at line"),
        ('{"id": 1, "label": []}', "has a list in column 'label' at line"),
        ('{"id": {}, "label": 1}', "has an object in column 'id' at line"),
        ('{"id": 1, "id": 1, "label": 1}', "key 'id' more than once"),
        ('{"id": 1, "label": 1, "x": {"a": 1, "\\u0061": 2}}', "key 'a' more than once"),
        ('{"id": 1, "label": "\\ud800"}', "half of a surrogate pair"),
        ('{"id": 1, "label": "\\udfff\\ud800"}', "half of a surrogate pair"),
        ('{"id": 1, "label": NaN}', "NaN"),
        ('{"id": 1, "label": 01}', "Expecting"),
        ('{"id": 1, "label": "a\tb"}', "control character"),
        ('{"id": 1, "label": 1} {"id": 2, "label": 1}', "Extra data"),
        ('[{"id": 1, "label": 1}]', "expected a JSON object"),
        ("null", "expected a JSON object"),
        ('{"id": 1, "label": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_lines_that_mean_two_things_or_none(
    line: str, told: str, where: int, tmp_path: Path
) -> None:
    lines = [f'{{"id": {i}, "label": 1}}' for i in range(2, 2_002)]
    lines.insert(where, line)
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))
    assert told in refusal(path)
    assert f"line {where + 1:,}" in refusal(path)


def test_a_pair_of_surrogates_is_a_sign(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "\\ud83d\\ude00", "label": "\\\\ud800"}\n')
    assert rows_of(path) == [("😀", "\\ud800")]


def random_value(draw: random.Random, depth: int = 0) -> Any:
    plain: list[Callable[[], Any]] = [
        lambda: None,
        lambda: draw.random() < 0.5,
        lambda: draw.randint(-3, 3) * draw.choice([1, 10**9, 10**18]),
        lambda: draw.choice([0.5, -0.0, 1.0, 1e300, 2.5e-8]),
        lambda: draw.choice(["", "x", 'a "b"', "é\n", "[1]", '"k":1', "{}", "\\", "😀", "1.0"]),
    ]
    if depth < 2 and draw.random() < 0.1:
        if draw.random() < 0.5:
            return [random_value(draw, depth + 1) for _ in range(draw.randint(0, 3))]
        return {key: random_value(draw, depth + 1) for key in draw.sample("kä", 2)}
    return draw.choice(plain)()


def test_whatever_is_accepted_reads_as_json_reads_it(tmp_path: Path) -> None:
    """Random objects with random keys, in any order, in columns of one kind or of several."""
    draw, path = random.Random(0), tmp_path / "t.jsonl"
    keys = ["a", "b c", "é", "logit_a", 'q"', "x.*"]
    for _ in range(150):
        pool = [random_value(draw) for _ in range(draw.randint(1, 4))]
        rows: list[dict[str, Any]] = []
        for _ in range(draw.randint(1, 20)):
            some = draw.sample(keys, draw.randint(1, len(keys)))
            rows.append({key: draw.choice(pool) for key in some})
        escape = draw.random() < 0.5
        lines = [json.dumps(row, ensure_ascii=escape) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8")
        frame = json_lines.scan_json_lines(path, frozenset()).collect()
        assert set(frame.columns) == {key for row in rows for key in row}
        for key in frame.columns:
            for row, found in zip(rows, frame[key].to_list(), strict=True):
                assert same_value(row.get(key), found, frame[key].dtype), (key, row)


def same_value(value: Any, found: Any, dtype: pl.DataType) -> bool:
    if dtype == pl.Boolean and value == "":
        value = None  # the empty text is a missing value
    if value is None or dtype.is_nested():
        # Of what is nested only the outline is compared: empty objects take the keys of others.
        return (value is None) == (found is None)
    if dtype == pl.String:
        return isinstance(value, list | dict) or found == (
            value if isinstance(value, str) else json.dumps(value)
        )
    return type(found) is (float if dtype == pl.Float64 else type(value)) and found == value


def test_only_keys_of_the_line_itself_are_columns(tmp_path: Path) -> None:
    """Keys of the same name in objects and texts within it stay as they are, in every spelling."""
    path, text = tmp_path / "t.jsonl", json.dumps('"label": 5, "ok": "", \\')
    lines = [
        '{"raw": {"label": 5, "ok": ""}, "id": 1, "label": "x", "ok": true}',
        '{"raw": {"label": 5, "ok": ""}, "id": 2, "label": 1.50, "ok": ""}',
        '{"id": 3, "\\u006cabel": -2e3, "o\\u006b" : "" }',
        f'{{"id": 4, "label": {text}, "ok":false}}',
    ]
    path.write_text("\n".join(lines))
    frame = read_predictions(path).frame.collect()
    assert frame["label"].to_list() == ["x", "1.50", "-2e3", json.loads(text)]
    assert frame["ok"].to_list() == [True, None, None, False]
    assert [None if raw is None else raw["label"] for raw in frame["raw"]] == [5, 5, None, None]


def test_files_of_many_shapes_are_read_too(tmp_path: Path) -> None:
    """More orders of keys, and longer lines, than a regular expression is made for."""
    draw = random.Random(0)
    keys = [f"logit_{i}" for i in range(5_000)]
    rows = [{"id": i, **dict.fromkeys(keys, i / 2)} for i in range(3)]
    path = write_lines(tmp_path / "wide.jsonl", rows)
    assert read_predictions(path).class_names == tuple(str(i) for i in range(5_000))
    rows = []
    for i in range(1_500):
        some = draw.sample(["a", "b", "c", "d", "e"], 5)
        rows.append({"id": i, "label": 1, **dict.fromkeys(some, i)})
    frame = read_predictions(write_lines(tmp_path / "orders.jsonl", rows)).frame.collect()
    assert all(frame[key].to_list() == list(range(1_500)) for key in "abcde")


# -- pinned samples --------------------------------------------------------------------------------


def judged(path: Path) -> str:
    old = Predictions.from_arrays(ids=range(9), targets=["a"] * 9, labels=["a"] * 9)
    new = Predictions.from_arrays(ids=range(9), labels=["a"] * 4 + ["b"] + ["a"] * 4)
    policy = Policy.from_dict({"pinned": {"ids": path.name}}, folder=path.parent)
    return check(compare(old=old, new=new), policy).verdict


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.csv", 'id,why\n1,5" disk\n4,must stay right\n2,6" disk\n', "quotation mark"),
        ("p.csv", "id,why\n1,x\n,this line lost its id\n", "has no id in row 2"),
        ("p.csv", "id,why\n1,x\n4\n", "line 3 has 1 fields"),
        ("p.csv", "id\n1\n4,5\n", "line 3 has 2 fields"),
        ("p.csv", "id,id\n1,4\n", "more than one column called 'id'"),
        ("p.tsv", "id\twhy\n1\tx\r4\ty\n", "carriage return"),
        ("p.jsonl", '{"id": 4.5}\n', "pins id '4.5'"),
        ("p.jsonl", '{"id": 1, "id": 4}\n', "more than once"),
        ("p.jsonl", '{"id": 1}\n{"why": "x"}\n', "has no id in row 2"),
        ("p.jsonl", '{"id": [4]}\n', "a list in column 'id'"),
    ],
)
def test_pins_are_checked_as_tables_are(name: str, content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PolicyError) as refused:
        judged(tmp_path / name)
    assert told in str(refused.value)


@pytest.mark.parametrize("values", [[1, 4], [1.0, 4.0], ["1", "4"]], ids=str)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".npz", ".csv", ".jsonl", ".txt"])
def test_pins_in_every_format(suffix: str, values: list[Any], tmp_path: Path) -> None:
    path = tmp_path / f"p{suffix}"
    frame = pl.DataFrame({"id": values})
    if suffix == ".npz":
        np.savez(path, ids=np.array(values))
    elif suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".arrow":
        frame.write_ipc(path)
    elif suffix == ".jsonl":
        frame.write_ndjson(path)
    else:
        text = [str(value).removesuffix(".0") for value in values]
        path.write_text("\ufeff" + "id\n" * (suffix == ".csv") + "\r\n".join(text))
    assert judged(path) == "fail"


# -- columnar files --------------------------------------------------------------------------------

BASE = {"id": [1, 2, 3], "target": list("aba"), "label": list("abb")}


def unusual() -> dict[str, pa.Table]:
    base = pa.table(BASE)
    months = pa.array([None, (1, 2, 3), None], pa.month_day_nano_interval())
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()),
        pa.array([0, 0, 1], pa.int32()),
        [pa.array([1, 2]), pa.array(["x"])],
    )
    run = pa.RunEndEncodedArray.from_arrays([3], ["x"])
    views = pa.array([[1], [2], [3]], pa.list_view(pa.int64()))
    columns = {"months": months, "union": union, "runs": run, "views": views}
    tables = {name: base.append_column("x", column) for name, column in columns.items()}
    return tables | {"twice": base.append_column("label", base["label"])}


@pytest.mark.parametrize("name", unusual())
def test_columns_that_polars_panics_about(name: str, tmp_path: Path) -> None:
    table, path = unusual()[name], tmp_path / "t.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    told = "has more than one column called 'label'" if name == "twice" else "cannot be read ("
    assert f"{path} {told}" in refusal(path)


def test_no_damage_to_an_arrow_file_is_anything_but_a_refusal(tmp_path: Path) -> None:
    table, path = pa.table(BASE), tmp_path / "t.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    sound = path.read_bytes()
    refused = 0
    for at in [*range(0, len(sound), 13), 311, 384]:
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        try:
            found = read_predictions(path)
            compare(old=found, new=found)
        except InputError:
            refused += 1
    assert refused > 20


def test_a_parquet_page_of_less_than_no_values(tmp_path: Path) -> None:
    """Of which Polars would take 2 EB of memory, and the process would end."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(BASE), path)
    sound = bytearray(path.read_bytes())
    # A data page of three values (6 as it is stored), as Thrift writes its header.
    at = sound.index(b"\x2c\x15\x06") + 2
    sound[at] ^= 1
    path.write_bytes(bytes(sound))
    assert "its footer or a page is damaged" in refusal(path)


def test_a_parquet_page_of_an_encoding_that_there_is_not(tmp_path: Path) -> None:
    """Polars panics while it reads such a page, although the schema is valid."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(BASE), path)
    sound = bytearray(path.read_bytes())
    # What follows the number of values in the header of a page.
    sound[sound.index(b"\x2c\x15\x06") + 4] ^= 1
    path.write_bytes(bytes(sound))
    assert f"{path} cannot be read (" in refusal(path)


def test_damage_to_the_footer_of_a_parquet_file(tmp_path: Path) -> None:
    path, whole = tmp_path / "t.parquet", tmp_path / "whole.parquet"
    pq.write_table(pa.table(BASE), whole)
    sound = whole.read_bytes()
    length = int.from_bytes(sound[-8:-4], "little")
    old, refused = read_predictions(whole), 0
    for at in range(len(sound) - 8 - length, len(sound), 9):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        try:
            compare(old=old, new=read_predictions(path))
        except InputError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(("kind", "told"), [("stream", "an Arrow stream"), ("v1", "version 1")])
def test_relatives_of_arrow_files_are_told(kind: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    if kind == "stream":
        with pa.ipc.new_stream(path, pa.table(BASE).schema) as writer:
            writer.write_table(pa.table(BASE))
    else:
        path.write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    assert told in refusal(path)
    assert "write it as an Arrow file" in refusal(path)


# -- NPZ -------------------------------------------------------------------------------------------


def test_arrays_of_other_lengths_stay_in_the_file(tmp_path: Path) -> None:
    """What lies in the file is damaged: had it been read, the file would have been refused."""
    path = tmp_path / "t.npz"
    np.savez(path, labels=[1, 2, 3], site=["p", "q", "q"])
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "<i4", "fortran_order": False, "shape": (1_500_000_000,)}
    )
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("junk.npy", member.getvalue())
    assert read_predictions(path).columns == ["label", "site"]
    assert set(read_arrays(path, always=["labels"])) == {"labels", "site"}


def test_an_array_as_long_as_the_class_names_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, logits=np.eye(3, 2), class_names=["a", "b"], weights=[1.0, 2.0])
    assert set(read_arrays(path, always=["logits", "class_names"])) == {"logits", "class_names"}


def test_an_array_that_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, labels=[1, 2, 3])
    content = zipfile.ZipFile(path).read("labels.npy")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("labels.npy", content)
    assert refusal(path) == (
        f"{path} holds more than one array 'labels'; give each a different name."
    )


def test_a_member_without_suffix_does_not_stand_in_for_an_array(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, labels=[1, 2, 3])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels", "no array")
    assert read_predictions(path).height == 3


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"labels": np.array(3)}, "has 'labels' of shape ()"),
        ({"labels": [0], "ids": [[1]]}, "has 'ids' of shape (1, 1)"),
        (
            {"logits": np.eye(3), "class_names": np.zeros((3, 2))},
            "has 'class_names' of shape (3, 2)",
        ),
        ({"labels": [1], "ids": np.array([1], np.longdouble)}, "has 'ids' of type float128"),
        ({"labels": [1], "ids": np.array([1j])}, "has 'ids' of type complex128"),
    ],
    ids=["label", "ids", "names", "float128", "complex"],
)
def test_arrays_of_other_shapes_and_types(
    arrays: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    assert told in refusal(path)


def test_arrays_that_cannot_be_groups_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, labels=[1, 2], turn=[1j, 2j], wide=np.ones(2, np.longdouble), site=["p", "q"])
    assert read_predictions(path).columns == ["label", "site"]
    np.savez(path, logits=np.eye(2, dtype=np.longdouble))
    table = read_predictions(path)
    assert compare(old=table, new=table)["logit_displacement"].value == 0.0


# -- writing, and room to write --------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]], ids=["places", "names"])
def test_single_floats_come_back_as_they_were(
    suffix: str, names: list[str] | None, tmp_path: Path
) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    table = Predictions.from_arrays(ids=np.arange(50), logits=logits, class_names=names)
    write_predictions(table, tmp_path / f"t{suffix}")
    back = read_predictions(tmp_path / f"t{suffix}")
    assert compare(old=table, new=back)["logit_displacement"].value == 0.0


def test_a_disk_without_room_for_scores_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may not grow beyond a limit, which is what a full disk comes to."""
    import resource

    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spool))
    ids, logits = np.arange(4_000), np.zeros((4_000, 20))
    paths = [tmp_path / "old.csv", tmp_path / "new.csv"]
    for path, order in zip(paths, (ids, ids[::-1]), strict=True):
        columns = {"id": order, **{f"logit_{i}": logits[:, i] for i in range(20)}}
        pl.DataFrame(columns).write_csv(path)
    old, new = (read_predictions(path) for path in paths)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"temporary file of 640,000 bytes .* set TMPDIR"):
            compare(old=old, new=new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(spool.iterdir()) == []


def test_room_for_scores_is_taken_before_it_is_written_to(tmp_path: Path) -> None:
    """Writing to a hole in a memory-mapped file kills the process when the disk is full."""
    path = tmp_path / "t.scores"
    path.touch()
    scores._reserve(path, 1 << 20)
    assert (path.stat().st_size, path.stat().st_blocks * 512 >= 1 << 20) == (1 << 20, True)
