"""Results that differ in seeds alone become one, as if all had been run at once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.studies.made_up import as_in_the_paper
from tests.studies.test_running import flipguard

from flipguard.studies.joining import joined_with
from flipguard.studies.results import Result, read_result, result_path, write_result

ID, CURVED = "elodi.table4", "pct.figure5"
SMALL = ["--set", "data=mnist1d:train=100,test=100", "--members", "2"]
SMALL += ["--set", "recipe.epochs=2"]


def document(out: Path, study: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result_path(out, study, "mnist1d").read_text())
    return found


@pytest.mark.parametrize("study", [ID, CURVED])
def test_seeds_in_two_calls_are_the_table_of_one(study: str, tmp_path: Path) -> None:
    def run(out: str, *arguments: str) -> str:
        done = flipguard("run", study, *SMALL, "--out", str(tmp_path / out), *arguments)
        assert done.code == 0, done.err
        return done.err

    run("once", "--seeds", "3")
    run("parts", "--seeds", "1", "--first-seed", "2")
    told = run("parts", "--seeds", "2")
    assert f"{study} had a result of other seeds, with which it is now one of 3" in told
    whole, parts = (document(tmp_path / out, study) for out in ("once", "parts"))
    assert parts["seeds"] == [0, 1, 2]
    for name in ("rows", "agreement", "setting", "set", "differences", "runs"):
        assert parts[name] == whole[name], name
    assert parts["command"].count("flipguard study run") == 2
    # Some of them again: they are taken, and nothing is lost or counted twice.
    run("parts", "--seeds", "1")
    again = document(tmp_path / "parts", study)
    assert {**again, "written": None} == {**parts, "written": None}
    assert not (tmp_path / "parts" / "results" / "earlier").exists()


def made_up(seeds: tuple[int, ...], **changes: Any) -> Result:
    facts = {
        "device": {"kind": "cpu", "name": "a CPU"},
        "versions": {"torch": "2"},
        "differences": [],
        "setting": {"epochs": 3},
        "command": "flipguard study run",
        "runs": 10,
        "processes": 2,
        "seconds": 5.0,
        "written": "today",
    }
    given = changes.pop("given", ())
    result = as_in_the_paper("elodi.table6", seeds=seeds, facts=facts | changes)
    return dataclasses.replace(result, given=given)


def test_counts_are_added_and_what_differs_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    write_result(made_up((0, 1, 2)), path)
    both = joined_with(path, made_up((3, 4), seconds=2.5, processes=4))
    assert both.seeds == (0, 1, 2, 3, 4)
    assert (both.facts["runs"], both.facts["seconds"]) == (20, 7.5)
    assert "processes" not in both.facts
    assert all(len(v) == 5 for row in both.rows for v in row.values.values())


@pytest.mark.parametrize(
    ("seeds", "changes"),
    [
        ((3, 4), {"given": ("recipe.epochs=9",)}),
        ((3, 4), {"device": {"kind": "cuda", "name": "a GPU"}}),
        ((3, 4), {"versions": {"torch": "3"}}),
        ((3, 4), {"setting": {"epochs": 4}}),
        ((2, 3), {}),  # one of the seeds is there already, and one is not
        ((0, 1, 2, 3), {}),  # it has all that was there
    ],
)
def test_what_is_not_of_the_same_settings_stays_apart(
    seeds: tuple[int, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "before.json"
    write_result(made_up((0, 1, 2)), path)
    new = made_up(seeds, **changes)
    assert joined_with(path, new) is new
    assert joined_with(tmp_path / "none.json", new) is new
    assert read_result(path, new.study).seeds == (0, 1, 2)
