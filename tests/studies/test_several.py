"""Several studies at once: one graph of runs, one pool, one result per study, one agreement."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.studies.made_up import as_in_the_paper
from tests.studies.test_running import Ran, flipguard

from flipguard.errors import InputError
from flipguard.studies import collect, run, train
from flipguard.studies.collect import Updates
from flipguard.studies.job import prepare_job
from flipguard.studies.plan import NotAtScaleError, StudyPlan, plan_study
from flipguard.studies.read_study import studies, study_of
from flipguard.studies.results import Result, Row, read_result
from flipguard.studies.run_graph import PlannedRun
from flipguard.studies.scales import scale_of
from flipguard.studies.sentences import verdict_lines
from flipguard.studies.show import PairTally, overview_line

# Few runs each, and none in common.
TWO = ["pct.table3", "pct.table4b"]
SMALL = ["--set", "recipe.epochs=2", "--set", "data=mnist1d:train=200,test=300", "--seeds", "2"]


TRAIN, COLLECTED = train.train_runs, collect.collect_rows
COMMON: dict[str, Any] = {"scale": "mnist1d", "seeds": 2}


def results_in(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "results").glob("*.json"))


@pytest.fixture(scope="module")
def stopped_and_ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran, list[str], Ran]:
    """Called twice, the first time with hardly any time."""
    out = tmp_path_factory.mktemp("studies")
    command = ["run", *TWO, *SMALL, "--processes", "2", "--out", str(out)]
    first = flipguard(*command, "--minutes", "0.0001")
    there = results_in(out)
    return out, first, there, flipguard(*command, "--minutes", "10")


def test_time_that_is_up_is_neither_done_nor_a_failure(
    stopped_and_ended: tuple[Path, Ran, list[str], Ran],
) -> None:
    _, first, there, _ = stopped_and_ended
    assert first.code == 3
    assert there == []
    assert "time limit reached with " in first.err
    assert f"of {', '.join(TWO)}; run the same command again to continue." in first.err


def test_all_tables_are_printed_and_counted_together(
    stopped_and_ended: tuple[Path, Ran, list[str], Ran],
) -> None:
    out, _, _, done = stopped_and_ended
    assert done.code == 0, done.err
    assert "time limit reached" not in done.err
    assert results_in(out) == [f"{study}.mnist1d.json" for study in TWO]
    for study in TWO:
        assert f"{study} at mnist1d: " in done.out
    documents = [
        json.loads((out / "results" / f"{study}.mnist1d.json").read_text())["agreement"]
        for study in TWO
    ]
    clear, agree, undecided = (
        sum(document[name] for document in documents) for name in ("clear", "agree", "undecided")
    )
    told = " ".join(done.out.split())
    share = "undecided" if undecided == clear else f"{100 * agree / clear:.0f} %"
    assert f"2 studies: {share}. Of {clear} pairs of rows" in told


def test_a_run_that_fails_spares_the_studies_that_are_complete(
    stopped_and_ended: tuple[Path, Ran, list[str], Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, *_ = stopped_and_ended
    shutil.rmtree(out / "results")

    def fails(*_: object, **__: object) -> int:
        raise InputError("A run could not be trained: Expected this, but got that.")

    monkeypatch.setattr(run, "train_runs", fails)
    done = flipguard("run", *TWO, "pct.figure6", *SMALL, "--out", str(out))
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert last.endswith("but got that. There is no result of pct.figure6.")
    assert results_in(out) == [f"{study}.mnist1d.json" for study in TWO]
    assert "pct.table4b at mnist1d: " in done.out


@pytest.fixture
def lacking_one(
    stopped_and_ended: tuple[Path, Ran, list[str], Ran],
) -> Iterator[tuple[Path, Path]]:
    """A folder without results, whose first study lacks a run, and that run."""
    out, *_ = stopped_and_ended
    shutil.rmtree(out / "results")
    settings = [SMALL[1], SMALL[3]]
    of_first, of_second = (
        {node.folder for node in prepare_job([study], **COMMON, out=out, settings=settings).nodes}
        for study in TWO
    )
    missing = max(of_first - of_second)
    shutil.rmtree(missing)
    yield out, missing
    with pytest.MonkeyPatch.context() as patch:  # the other tests look at what was there
        patch.setattr(run, "train_runs", TRAIN)
        patch.setattr(run, "collect_rows", COLLECTED)
        assert flipguard("run", *TWO, *SMALL, "--out", str(out)).code == 0


def test_a_result_is_written_before_all_is_trained(
    lacking_one: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, missing = lacking_one
    there: list[list[str]] = []

    def stopped_after_one(nodes: Sequence[PlannedRun], *args: Any, **more: Any) -> int:
        there.append(results_in(out))
        TRAIN([node for node in nodes if node.folder == missing], *args, **more)
        there.append(results_in(out))
        return 1

    monkeypatch.setattr(run, "train_runs", stopped_after_one)
    done = flipguard("run", *TWO, *SMALL, "--out", str(out))
    assert done.code == 0, done.err
    # What was complete, before anything is trained; the other, once it is.
    first, second = (f"{study}.mnist1d.json" for study in TWO)
    assert there == [[second], [first, second]]


@pytest.mark.parametrize("problem", [InputError("It cannot be."), KeyError("a bug")])
def test_what_cannot_be_measured_stops_no_training(
    problem: Exception, lacking_one: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, missing = lacking_one

    def fails_of_second(plan: StudyPlan, measured: Updates) -> tuple[Row, ...]:
        if plan.study.id == TWO[1]:
            raise problem
        return COLLECTED(plan, measured)

    monkeypatch.setattr(run, "collect_rows", fails_of_second)
    done = flipguard("run", *TWO, *SMALL, "--out", str(out))
    assert done.code != 0
    assert (missing / "run.json").exists()
    assert results_in(out) == [f"{TWO[0]}.mnist1d.json"]
    if isinstance(problem, InputError):
        assert f"It cannot be. There is no result of {TWO[1]}." in done.err
        assert f"{TWO[0]} at mnist1d: " in done.out
    else:
        assert "this is a bug" in done.err


def test_runs_are_shared_and_those_of_the_first_come_first(tmp_path: Path) -> None:
    two = ["pct.table2a", "pct.table4b"]  # which share the untreated runs of the small model
    task = prepare_job(two, scale="mnist1d", out=tmp_path, seeds=2)
    again = prepare_job([*two, two[0]], scale="mnist1d", out=tmp_path, seeds=2)
    folders = [node.folder for node in task.nodes]
    assert folders == [node.folder for node in again.nodes]
    assert len(folders) == len(set(folders)) < sum(len(plan.nodes) for plan in task.plans)
    assert folders[: len(task.plans[0].nodes)] == [n.folder for n in task.plans[0].nodes]
    place = {folder: i for i, folder in enumerate(folders)}
    assert all(place[needed] < place[node.folder] for node in task.nodes for needed in node.after)


def test_one_plan_for_all(tmp_path: Path) -> None:
    done = flipguard("run", *TWO, "--plan", "--out", str(tmp_path / "none"))
    assert done.out.startswith(f"2 studies at mnist1d, 5 seeds: {', '.join(TWO)}.")
    assert done.out.count("runs, 0 of them finished: about") == 1
    assert not (tmp_path / "none").exists()


def test_all_leaves_out_what_the_scale_has_not(tmp_path: Path) -> None:
    task = prepare_job(["all"], scale="cifar10-450", out=tmp_path, seeds=1, plan_only=True)
    ids = [plan.study.id for plan in task.plans]
    assert sorted([*ids, *task.left_out]) == sorted(studies())
    assert task.left_out["elodi.table6"] == "It has no rows of CIFAR-10."
    done = flipguard("run", "all", "--scale", "cifar10-450", "--seeds", "1", "--plan")
    assert "Left out: elodi.table6. It has no rows of CIFAR-10." in done.out
    whole = dataclasses.replace(scale_of("svhn"), exact=False)
    with pytest.raises(NotAtScaleError, match="svhn has no model for the role large"):
        plan_study(study_of("elodi.table6"), whole, seeds=[0], out=tmp_path, machine={})
    everything = prepare_job(["all"], scale="mnist1d", out=tmp_path, seeds=1)
    assert (len(everything.plans), everything.left_out) == (len(studies()), {})


def test_all_of_mnist1d_is_an_evening_on_two_cores(tmp_path: Path) -> None:
    task = prepare_job(["all"], scale="mnist1d", out=tmp_path, seeds=1, device="cpu")
    seeds, cores = 10, 2
    assert seeds * sum(map(task.seconds_of, task.nodes)) / cores < 2 * 3600


def test_studies_of_curves_have_runs_of_their_own(tmp_path: Path) -> None:
    """Others leave epochs out of the history."""
    task = prepare_job(["pct.table2a", "pct.figure6"], scale="mnist1d", out=tmp_path, seeds=1)
    rows, curves = ({node.folder: node for node in plan.nodes} for plan in task.plans)
    assert {node.config.machine.measure_every for node in rows.values()} == {25}
    assert {node.config.machine.measure_every for node in curves.values()} == {1}
    assert not rows.keys() & curves.keys()
    # Elsewhere all epochs are measured, and the runs are the same.
    two = ["pct.table2a", "pct.figure6"]
    task = prepare_job(two, scale="fashion", out=tmp_path, seeds=1, plan_only=True)
    rows, curves = ({node.folder: node for node in plan.nodes} for plan in task.plans)
    assert rows.keys() >= curves.keys()


def made_up(flips: list[list[float]]) -> Result:
    rows = tuple(
        Row(place=place, values={"negative_flip_rate": tuple(values)})
        for place, values in enumerate(flips)
    )
    study = study_of("pct.table4b")
    return Result(study=study, scale="mnist1d", given=(), seeds=(0, 1), rows=rows, facts={})


def test_the_total_counts_pairs_and_not_studies() -> None:
    good = made_up([[0.10, 0.11], [0.08, 0.09], [0.05, 0.06], [0.05, 0.06]])
    bad = made_up([[0.05, 0.06], [0.08, 0.09], [0.10, 0.11], [0.10, 0.11]])
    alone = [PairTally.of([good]), PairTally.of([bad])]
    total = PairTally.of([good, bad])
    assert (alone[0].disagree, alone[1].agree) == (0, 0)
    assert total.clear == alone[0].clear + alone[1].clear
    assert total.share == alone[0].agree / total.clear
    told = overview_line([good, bad])
    assert told.startswith(f"2 studies: {total.percent}. Of {total.clear} ")
    assert re.search(rf", {total.disagree} the other order, \d of them explained by a test, ", told)
    assert f", 0 the other order, and {alone[0].undecided} are" in overview_line([good])
    decided = total.agree / (total.agree + total.disagree)
    assert total.undecided
    assert f" Of those that the seeds decide, {100 * decided:.0f} % agree." in told
    # Nothing decided is not the same as nothing right.
    assert PairTally.of(
        [made_up([[0.10, 0.01], [0.01, 0.10], [0.1, 0.1], [0.1, 0.1]])]
    ).percent == ("undecided")


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (None, "Here: agnews, 3 epochs; "),
        (34_476, "Here: agnews (34,476 of its 120,000 training samples, 7,600 test samples), "),
        (120_000, "Here: agnews (120,000 training samples, 7,600 test samples), 3 epochs; "),
    ],
)
def test_a_part_of_a_public_set_is_called_a_part(samples: int | None, told: str) -> None:
    setting: dict[str, Any] = {"data": "agnews", "epochs": 3, "models": {"small": "m"}}
    if samples is not None:
        setting["samples"] = {"train": samples, "test": 7600}
    result = as_in_the_paper("elodi.table4", facts={"setting": setting})
    assert any(line.startswith(told) for line in verdict_lines(result))


def test_nothing_to_count_is_no_zero() -> None:
    figure = Result(
        study=study_of("pct.figure6"), scale="mnist1d", given=(), seeds=(0,), rows=(), facts={}
    )
    assert math.isnan(PairTally.of([figure]).share)
    assert overview_line([figure]) == "1 study: there is no pair of rows to count."


def test_claims_that_were_not_run_are_not_counted() -> None:
    study = study_of("elodi.figure2")
    run = {"negative_flip_rate": (0.1, 0.11, 0.12)}
    rows = tuple(
        Row(place=place, values=run)
        if line.group == "one architecture"
        else Row(place=place, values={}, why_not="It has no model for that.")
        for place, line in enumerate(study.lines)
    )
    result = Result(study=study, scale="x", given=(), seeds=(0, 1, 2), rows=rows, facts={})
    assert [found.verdict for _, found in result.claims()] == [
        *("undecided", "not run", "not run", "not run")
    ]
    assert PairTally.of([result]).in_words == "0/1"
    assert "Of 1 claims in words, 0 hold, 0 do not, and 1 are undecided." in overview_line([result])
    assert any(line.endswith("Here it was not run.") for line in verdict_lines(result))


def test_results_are_read_as_they_were_written(
    stopped_and_ended: tuple[Path, Ran, list[str], Ran],
) -> None:
    out, *_ = stopped_and_ended
    for study in TWO:
        result = read_result(out / "results" / f"{study}.mnist1d.json", study_of(study))
        assert all(len(row.values["churn"]) == 2 for row in result.rows)
