"""Results that differ in seeds alone become one, as if all had been run at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.studies.made_up import as_in_the_paper
from tests.studies.test_running import flipguard

from flipguard.studies.collect import differences
from flipguard.studies.document import CURVES
from flipguard.studies.merge_seeds import merge_with_existing
from flipguard.studies.plan import StudyPlan, plan_study
from flipguard.studies.read_study import study_of
from flipguard.studies.results import Result, Row, read_result, result_path, write_result
from flipguard.studies.scales import scale_of

ID = "elodi.table4"
SMALL = ["--set", "data=mnist1d:train=100,test=100", "--members", "1"]
SMALL += ["--set", "recipe.epochs=1", "--processes", "1"]


def document(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result_path(out, ID, "mnist1d").read_text())
    return found


def test_seeds_in_two_calls_are_the_table_of_one(tmp_path: Path) -> None:
    def run(out: str, *arguments: str) -> str:
        done = flipguard("run", ID, *SMALL, "--out", str(tmp_path / out), *arguments)
        assert done.code == 0, done.err
        return done.err

    run("once", "--seeds", "3")
    run("parts", "--seeds", "1", "--first-seed", "2")
    told = run("parts", "--seeds", "2")
    assert f"{ID} now has the seeds 0, 1, 2, with those of its result before" in told
    whole, parts = (document(tmp_path / out) for out in ("once", "parts"))
    assert parts["seeds"] == [0, 1, 2]
    for name in ("rows", "agreement", "setting", "set", "differences", "runs"):
        assert parts[name] == whole[name], name
    assert parts["command"].count("flipguard study run") == 2
    # Some of them again: they are taken, and nothing is lost or counted twice.
    run("parts", "--seeds", "1")
    again = document(tmp_path / "parts")
    assert {**again, "written": None} == {**parts, "written": None}
    assert not (tmp_path / "parts" / "results" / "earlier").exists()


Made = Callable[..., tuple[Result, StudyPlan]]
SETTING = {"data": "mnist1d", "epochs": 3, "models": {"small": "mlp:hidden=64"}}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Results of some seeds, whose values tell the seed, and their plans."""

    def make(
        *seeds: int, study: str = ID, scale: str = "mnist1d", **changes: Any
    ) -> tuple[Result, StudyPlan]:
        facts = {
            "device": {"kind": "cpu", "name": "a CPU"},
            "versions": {"torch": "2", "python": "3.11.7"},
            "command": "flipguard study run",
            "setting": {**SETTING, "samples": {"train": 5, "test": 5}},
            "runs": 10,
            "processes": 2,
            "seconds": 5.0,
            "written": "2026-01-31T12:00:00+00:00",
        }
        plan = plan_study(study_of(study), scale_of(scale), seeds=seeds, out=tmp_path, machine={})
        given, rows = changes.pop("given", ()), changes.pop("rows", {})
        result = as_in_the_paper(study, seeds=seeds, facts=facts | changes)

        def named(row: Row) -> Row:
            updates = [update for update in plan.updates if update.line == row.place]
            runs = {side: tuple(u.names[side] for u in updates) for side in ("old", "new")}
            rates = [[seed + 0.5, seed + 0.25] for seed in seeds]
            curves = {"test": dict.fromkeys(CURVES, rates)}
            return dataclasses.replace(row, **({"runs": runs, "curves": curves} | rows))

        return dataclasses.replace(result, given=given, rows=tuple(map(named, result.rows))), plan

    return make


def test_values_stay_with_their_seeds_and_counts_are_added(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    before, _ = made(0, 3, 4, versions={"torch": "2", "python": "3.12.1"})
    write_result(before, path)
    new, plan = made(1, 2, seconds=2.5, processes=4)
    joined = merge_with_existing(path, new, plan)
    both, (whole, _) = joined.result, made(0, 1, 2, 3, 4)
    assert both.seeds == whole.seeds
    assert both.rows == whole.rows
    assert (both.facts["runs"], both.facts["seconds"]) == (20, 7.5)
    assert "processes" not in both.facts
    assert joined.note == "now has the seeds 0, 1, 2, 3, 4, with those of its result before"
    assert not (tmp_path / "earlier").exists()


def test_samples_are_told_of_all_seeds_or_of_none(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    before, _ = made(0, 1, 2, setting=SETTING)  # from before they were noted
    write_result(before, path)
    new, plan = made(3, 4, setting={**SETTING, "samples": {"train": 5, "test": 5}})
    joined = merge_with_existing(path, new, plan).result
    assert joined.seeds == (0, 1, 2, 3, 4)
    assert joined.facts["setting"] == SETTING
    both, plan = made(0, 1, 2, 3, 4, setting=new.facts["setting"])
    assert merge_with_existing(path, both, plan).result.facts["setting"] == new.facts["setting"]


@pytest.mark.parametrize(
    ("seeds", "changes", "why"),
    [
        ((3, 4), {"given": ("recipe.epochs=9",)}, "of other settings"),
        ((0, 1, 2), {"given": ("recipe.epochs=9",)}, "of other settings"),
        ((3, 4), {"device": {"kind": "cuda", "name": "a GPU"}}, "of another device"),
        ((0, 1, 2), {"device": {"kind": "cuda", "name": "a GPU"}}, "of another device"),
        ((3, 4), {"versions": {"torch": "3"}}, "by another version of torch"),
        (
            (3, 4),
            {"setting": {**SETTING, "samples": {"train": 5, "test": 3}}},
            "of other data of that name",
        ),
        ((2, 3), {}, "of which some seeds are in this one, and some are not"),
        ((3, 4), {"rows": {"notes": ("Something.",)}}, "of another form"),
        ((3, 4), {"rows": {"values": {"negative_flip_rate": (0.1, 0.2)}}}, "of another form"),
    ],
)
def test_what_cannot_be_joined_is_put_aside(
    seeds: tuple[int, ...], changes: dict[str, Any], why: str, made: Made, tmp_path: Path
) -> None:
    path = tmp_path / "before.json"
    before, _ = made(0, 1, 2)
    write_result(before, path)
    written = path.read_bytes()
    new, plan = made(*seeds, **changes)
    joined = merge_with_existing(path, new, plan)
    (kept,) = (tmp_path / "earlier").iterdir()
    assert kept.read_bytes() == written
    assert joined.result is new
    assert joined.note == f"had a result {why}; it is now {kept}"


def test_runs_that_a_method_or_scale_makes_otherwise_now_are_not_joined(
    made: Made, tmp_path: Path
) -> None:
    path = tmp_path / "before.json"
    before, _ = made(0, 1, 2)
    other = {"old": before.rows[0].runs["old"], "new": ("a", "b", "c")}
    rows = (dataclasses.replace(before.rows[0], runs=other), *before.rows[1:])
    write_result(dataclasses.replace(before, rows=rows), path)
    for seeds in ((3, 4), (0,), (0, 1, 2, 3)):
        new, plan = made(*seeds)
        joined = merge_with_existing(path, new, plan)
        assert joined.result is new
        assert "of runs that would be others now" in (joined.note or "")
        write_result(dataclasses.replace(before, rows=rows), path)


def test_seeds_that_are_joined_may_be_as_many_as_the_scale_has(made: Made, tmp_path: Path) -> None:
    before, _ = made(0, 1, 2, study="churn.table6", scale="cifar10-450")
    path = tmp_path / "before.json"
    write_result(before, path)
    new, plan = made(3, 4, study="churn.table6", scale="cifar10-450")
    assert "seeds: 2 instead of 5" in differences(plan)
    joined = merge_with_existing(path, new, plan).result
    assert joined.seeds == (0, 1, 2, 3, 4)
    assert not [one for one in joined.facts["differences"] if " instead of " in one]


def test_histograms_are_not_joined(made: Made, tmp_path: Path) -> None:
    study = study_of("elodi.figure5")
    plan = plan_study(study, scale_of("mnist1d"), seeds=[1], out=tmp_path, machine={})
    earlier = plan_study(study, scale_of("mnist1d"), seeds=[0], out=tmp_path, machine={})

    def result(of: StudyPlan) -> Result:
        rows = tuple(
            Row(place=one.line, values={}, runs={side: (n,) for side, n in one.names.items()})
            for one in of.updates
        )
        return Result(
            study=study, scale="mnist1d", given=(), seeds=of.seeds, rows=rows, facts={"runs": 1}
        )

    path = tmp_path / "before.json"
    write_result(result(earlier), path)
    new = result(plan)
    joined = merge_with_existing(path, new, plan)
    assert joined.result is new
    assert "of other seeds, and histograms are not joined" in (joined.note or "")


def test_no_result_before_or_one_that_cannot_be_read(made: Made, tmp_path: Path) -> None:
    new, plan = made(0, 1)
    path = tmp_path / "before.json"
    assert merge_with_existing(path, new, plan).result is new
    for times in (1, 2):  # both are kept, under names of their own
        path.write_text("{" * times)
        joined = merge_with_existing(path, new, plan)
        assert joined.result is new
        assert "had a result that cannot be read; it is now" in (joined.note or "")
        kept = sorted((tmp_path / "earlier").iterdir())
        assert sorted(file.read_text() for file in kept) == ["{", "{{"][:times]
    fewer, _ = made(0)
    write_result(fewer, path)
    joined = merge_with_existing(path, new, plan)  # it has all that there was
    assert joined.result is new
    assert joined.note is None
    assert read_result(path, new.study).seeds == (0,)
