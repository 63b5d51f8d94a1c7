"""The plain reading itself, on small tables whose counts can be seen."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.fuzzing import running
from tests.fuzzing.cases import case
from tests.fuzzing.counting import Task, counted
from tests.fuzzing.outcomes import Allowed, every_reading


def read(folder: Path, old: object, new: object, **options: object) -> Allowed:
    """The reading of two files: text is CSV, lists are JSON Lines, dictionaries NPZ."""
    paths = []
    for name, content in (("old", old), ("new", new)):
        if isinstance(content, str):
            path = folder / f"{name}.csv"
            path.write_text(content)
        elif isinstance(content, list):
            path = folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            path = folder / f"{name}.npz"
            np.savez(path, **content)  # type: ignore[arg-type]
        paths.append(path)
    task = Task(old=paths[0], new=paths[1], **options)  # type: ignore[arg-type]
    return every_reading(lambda questions: counted(task, questions))


def cells(allowed: Allowed) -> dict[str, int]:
    """The counts of the one reading there is."""
    (reading,) = allowed.readings
    assert reading.counts is not None, reading.refused
    return reading.counts.whole


def test_a_bare_quotation_mark_swallows_nothing(tmp_path: Path) -> None:
    old = 'id,target,label,text\n1,a,a,a 5" disk\n2,b,b,x\n3,a,a,a 6" disk\n4,b,b,y\n'
    found = read(tmp_path, old, old.replace("2,b,b", "2,b,a"))
    assert cells(found) == {"both_right": 3, "negative_flip": 1}
    assert found.may_refuse


def test_a_late_key_counts(tmp_path: Path) -> None:
    rows = [{"id": i, "label": "a", **({"target": "a"} if i > 1_100 else {})} for i in range(1_200)]
    found = read(tmp_path, rows, [{**row, "label": "b"} for row in rows[:-1]] + [rows[-1]])
    assert cells(found) == {"unlabelled_different": 1_101, "negative_flip": 98, "both_right": 1}
    assert not found.may_refuse


def test_a_boolean_is_two_texts(tmp_path: Path) -> None:
    old = "id,target,label\n1,True,True\n2,false,false\n3,True,False\n"
    new = [{"id": 1, "label": True}, {"id": 2, "label": False}, {"id": 3, "label": True}]
    assert cells(read(tmp_path, old, new)) == {"both_right": 2, "positive_flip": 1}
    texts = read(tmp_path, old, "id,label\n1,true\n2,false\n3,True\n")
    assert cells(texts) == {"negative_flip": 1, "both_right": 1, "positive_flip": 1}


@pytest.mark.parametrize(
    "new",
    [
        "id,label\n1,1.0\n2,0.0\n",
        "id,label\n1,0.5\n2,1\n",
        "id,label\n1,cat\n2,dog\n",
        "id,label\n1,1\n1,0\n",
        "id,label\n1,1\n",
        "id,label\n1,1\n2,\n",
        "id,label\n1,1\n2,0,9\n",
        "id,label,label\n1,1,1\n2,0,0\n",
        "id,logit_1\n1,1\n2,0\n",
        "id,logit_1,logit_\n1,1,2\n2,0,2\n",
        [{"id": 1, "label": [1]}, {"id": 2, "label": 0}],
        {"ids": np.array([1, 2]), "labels": np.array([1.5, 0.0])},
    ],
)
def test_what_must_be_refused(tmp_path: Path, new: object) -> None:
    assert read(tmp_path, "id,target,label\n1,1,1\n2,0,0\n", new).must_refuse


def test_missing_values_and_a_group_called_so(tmp_path: Path) -> None:
    old = "id,target,label,g\n1,a,a,(missing)\n2,b,b,\n3,a,a,1.5x\n"
    new = {"ids": np.array([1, 2, 3]), "labels": np.array(["a", "b", "b"])}
    (reading,) = read(tmp_path, old, new, by=("g",)).readings
    assert reading.counts is not None
    assert list(reading.counts.groups["g"]) == ['"(missing)"', "(missing)", "1.5x"]


def test_whole_floats_are_integers_next_to_a_missing_value(tmp_path: Path) -> None:
    new = {"ids": np.array([1.0, 2.0, 3.0]), "targets": np.array([1.0, np.nan, 0.0])}
    new["labels"] = np.array([1, 0, 0])
    found = read(tmp_path, "id,label\n1,1\n2,1\n3,1\n", new)
    assert cells(found) == {"both_right": 1, "unlabelled_different": 1, "positive_flip": 1}


def test_most_cases_have_one_right_answer(tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    for number in range(100):
        made, folder = case(0, number), tmp_path / str(number)
        folder.mkdir()
        running.write(made, folder)
        found = running.expected(made, folder)
        kinds["refused" if found.must_refuse else "open" if found.may_refuse else "counted"] += 1
    assert kinds["counted"] >= 50
    assert kinds["refused"] >= 10
    assert kinds["open"] <= 30


def test_a_case_is_the_same_each_time() -> None:
    assert case(3, 14).files == case(3, 14).files
    assert case(3, 14).arguments == case(3, 14).arguments
    assert case(3, 14).files != case(4, 14).files
