"""Texts in .jsonl files, packed or not, in a folder or alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flipguard.data import TextSplit, load_data, part
from flipguard.data.readers import class_names_of, indices_of
from flipguard.errors import InputError

ROWS = [{"text": f"text {place}", "label": place % 3} for place in range(40)]
NAMED = [{"text": "é \u2028 \x1f", "label": "cat"}, {"text": "b", "label": "ant"}] * 2


def write(path: Path, rows: list[Any]) -> Path:
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize("test", ["test", "val", "validation", "dev"])
def test_a_folder_of_two_files(tmp_path: Path, ending: str, test: str) -> None:
    write(tmp_path / f"train.{ending}", NAMED)
    write(tmp_path / f"{test}.{ending}", NAMED[1:2])
    data = load_data(str(tmp_path))
    assert (data.kind, data.class_names) == ("text", ("ant", "cat"))
    assert isinstance(data.train, TextSplit)
    assert data.train.texts == [row["text"] for row in NAMED]
    assert data.train.targets.tolist() == [1, 0, 1, 0]
    assert data.test.inputs(torch.tensor([0])) == ["b"]
    assert torch.equal(torch.as_tensor(data.train.ids), torch.arange(4))


def test_one_file_is_split_by_id(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl.gz", ROWS)
    data = load_data(f"{path}:test=0.3,seed=2")
    tested = part(torch.arange(40), 2, 0.3)
    assert data.name == "mine"
    assert torch.equal(data.test.ids_index, tested.nonzero().squeeze(1))
    assert len(data.train) + len(data.test) == 40
    assert data.test.inputs(torch.tensor([0])) == [f"text {int(data.test.ids_index[0])}"]
    assert data.class_names == ("0", "1", "2")
    write(path, [*ROWS, {"text": "one more", "label": 0}])
    grown = load_data(f"{path}:test=0.3,seed=2")
    assert set(data.test.ids_index.tolist()) <= set(grown.test.ids_index.tolist())
    assert grown.fingerprint != data.fingerprint


def test_empty_lines_and_a_byte_order_mark_count_for_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test.jsonl", ROWS)
    before = load_data(str(tmp_path)).fingerprint
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert load_data(str(tmp_path)).fingerprint == before


def test_agnews_knows_its_classes(tmp_path: Path) -> None:
    write(tmp_path / "agnews" / "train.jsonl.gz", ROWS)
    write(tmp_path / "agnews" / "test.jsonl.gz", ROWS[:5])
    data = load_data("agnews", root=tmp_path)
    assert (data.name, data.class_names) == ("agnews", ("World", "Sports", "Business", "Sci/Tech"))
    write(tmp_path / "agnews" / "test.jsonl.gz", [{"text": "x", "label": 4}])
    with pytest.raises(InputError, match=r"among its 4 classes .* and 1 more\), but got 4; fix"):
        load_data("agnews", root=tmp_path)


def test_a_missing_data_set_says_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIPGUARD_DATA", str(tmp_path))
    with pytest.raises(InputError) as refused:
        load_data("agnews")
    assert str(refused.value) == (
        f"Expected `agnews` to be at {tmp_path}/agnews/train.csv, but got no such file; put AG "
        "News there as train.csv and test.csv, or as train.jsonl and test.jsonl with lines of "
        '{"text": …, "label": 0 to 3}, plain or .gz, or name the parent folder with '
        "`data_root=DIR` or FLIPGUARD_DATA."
    )
    monkeypatch.delenv("FLIPGUARD_DATA")
    with pytest.raises(InputError, match=r"to be at data/agnews/train\.csv, but"):
        load_data("agnews")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", 'to be lines of {"text": …, "label": …}, but got an empty file; add samples.'),
        (b'{"text": "a", "label": 0}\n{"text": "b"', "Expected line 2 of "),
        (b'{"text": "a", "label": 0}\n{"text": "b"', 'to be one JSON object, but got \'{"text": "'),
        (b"[1, 2]", "Expected line 1 of "),
        (b"[1, 2]", "to be a JSON object, but got [1, 2]; write {"),
        (b'{"text": "a"}', "to hold 'label', but got 'text'; write {"),
        (b'{"label": 1}', "to hold 'text', but got 'label'; write {"),
        (b"{}", "to hold 'text', but got nothing; write {"),
        (b'{"text": 3, "label": 1}', "to be text, but got 3; quote it."),
        (b'{"text": "a", "label": 1.5}', "to be a whole number or text, but got 1.5; write a"),
        (b'{"text": "a", "label": true}', "to be a whole number or text, but got True; write a"),
        (b'{"text": "a", "label": null}', "to be a whole number or text, but got None; write a"),
        (b'{"text": "a", "label": -1}', "to be among its 0 classes (), but got -1; fix"),
        (
            b'{"text": "a", "label": 0}\n{"text": "b", "label": "cat"}',
            "to be all numbers or all text, but got 0, 'cat'; write them in one way.",
        ),
        (b"\xff\xfe", "but got a file that cannot be read ('utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "to be one JSON object, but got '[[[["),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "mine.jsonl").write_bytes(content)
    with pytest.raises(InputError) as refused:
        load_data(str(tmp_path / "mine.jsonl"))
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_packed_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl.gz", ROWS)
    whole = path.read_bytes()
    for content in (whole[:-20], whole[:5], b"no gzip at all", whole[:40] + b"!!!" + whole[43:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="but got a file that cannot be read"):
            load_data(str(path))


def test_a_folder_without_a_test_file_or_a_file_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(InputError, match=r"to hold test\.jsonl or test\.jsonl\.gz, but got neith"):
        load_data(str(tmp_path))
    with pytest.raises(InputError, match=r"but got no such file; check the path\."):
        load_data(str(tmp_path / "other.jsonl"))


@given(st.lists(st.text(), min_size=1))
def test_text_labels_count_in_order(labels: list[str]) -> None:
    names = class_names_of(labels, where="here")
    assert names == sorted(set(labels))
    assert indices_of(labels, names, where="here").tolist() == [names.index(x) for x in labels]
