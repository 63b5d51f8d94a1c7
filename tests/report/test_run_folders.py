"""Run folders as sides: they mean the predictions on the test set, in Python and in commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flipguard import InputError, compare, ensemble, matrix, read_predictions
from flipguard.run_document import predictions_of, run_name
from tests.report import made
from tests.test_cli import Run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs, and their predictions as files."""
    for name, predictions in made.models(300).items():
        made.write_run(tmp_path / "runs" / name, predictions)
    return tmp_path / "runs"


def table(runs: Path, name: str) -> Path:
    return runs / name / "predictions" / "test.npz"


def test_a_run_means_its_predictions_on_the_test_set(runs: Path) -> None:
    read, file = read_predictions(runs / "old"), read_predictions(table(runs, "old"))
    assert (read.name, read.path) == (str(runs / "old"), file.path)
    assert read.frame.collect().equals(file.frame.collect())


@pytest.mark.parametrize("kind", [str, Path, read_predictions])
def test_a_comparison_of_runs_is_that_of_their_files(runs: Path, kind) -> None:
    found = compare(
        old=kind(runs / "old"), new=kind(runs / "new"), control=kind(runs / "control")
    ).as_dict()
    files = {name: read_predictions(table(runs, name)) for name in ("old", "new", "control")}
    expected = compare(old=files["old"], new=files["new"], control=[files["control"]]).as_dict()
    assert (found.pop("old"), found.pop("new")) == (str(runs / "old"), str(runs / "new"))
    assert found["controls"][0].pop("name") == str(runs / "control")
    del expected["old"], expected["new"], expected["controls"][0]["name"]
    assert found == expected


def test_a_run_and_its_file_are_the_same_control(runs: Path) -> None:
    result = compare(
        old=runs / "old", new=runs / "new", control=[runs / "control", table(runs, "control")]
    )
    assert len(result.controls) == 1
    assert "counts once" in " ".join(result.notes)


def test_a_matrix_and_an_ensemble_of_runs(runs: Path) -> None:
    places = [runs / "old", str(runs / "new"), read_predictions(runs / "control")]
    found = matrix(places)
    assert found.names == ("old", "new", "control")
    expected = matrix([read_predictions(table(runs, name)) for name in found.names])
    assert (found.churn == expected.churn).all()
    (runs / "new").rename(runs / "v1.2")
    assert matrix([runs / "old", runs / "v1.2"]).names == ("old", "v1.2")
    averaged = ensemble([runs / "old", runs / "control"]).scores
    again = ensemble([read_predictions(table(runs, name)) for name in ("old", "control")]).scores
    assert averaged is not None
    assert again is not None
    assert (averaged.array == again.array).all()


def test_runs_on_the_command_line(run: Run, runs: Path, tmp_path: Path) -> None:
    given = ("runs/old", "runs/new/", "--control", "runs/control", "--json", "-")
    found = json.loads(run("compare", *given).out)
    assert (found["old"], found["new"]) == ("runs/old", "runs/new")
    assert found["controls"][0]["name"] == "runs/control"
    (tmp_path / "gate.toml").write_text(made.POLICY)
    gated = run("gate", *given[:2], "--policy", "gate.toml", "--json", "-")
    files = ("runs/old/predictions/test.npz", "runs/new/predictions/test.npz")
    judged = run("gate", *files, "--policy", "gate.toml", "--json", "-")
    assert gated.code == judged.code
    assert json.loads(gated.out)["rules"] == json.loads(judged.out)["rules"]
    assert json.loads(run("matrix", *given[:2], "--json", "-").out)["models"] == ["old", "new"]
    assert run("ensemble", *given[:2], "--out", "both.npz").code == 0
    assert run("compare", "runs/old", "both.npz").code == 0


def test_commands_say_which_files_they_wrote(run: Run, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "gate.toml").write_text(made.POLICY)
    sides, files = ("runs/old", "runs/new"), ("--json", "a.json", "--flips", "a.csv")
    for command in (("compare", *sides), ("gate", *sides, "--policy", "gate.toml")):
        ran = run(*command, *files, "--html", "a.html")
        assert ran.out.endswith("\nWritten: a.json, a.csv, a.html\n")
        assert ran.err == ""
        assert "Written" not in run(*command).out
        ran = run(*command, "--json", "-", "--flips", "a.csv")
        json.loads(ran.out)
        assert ran.err == ""
    assert run("matrix", *sides, "--json", "m.json").out.endswith("\nWritten: m.json\n")


@pytest.mark.parametrize("name", ["run.json", "predictions/test.npz", "history.jsonl"])
def test_no_file_of_a_run_is_overwritten(run: Run, runs: Path, name: str) -> None:
    before = (runs / "old" / name).read_bytes()
    ran = run("compare", "runs/old", "runs/new", "--json", f"runs/old/{name}")
    assert ran.code == 2
    assert ran.err.endswith("would be overwritten; write to another file.\n")
    assert (runs / "old" / name).read_bytes() == before


def test_a_run_that_is_not_finished(run: Run, runs: Path, tmp_path: Path) -> None:
    made.write_run(runs / "begun", made.models(300)["new"], status="stopped")
    told = (
        "Expected runs/begun to be a finished run, but it is stopped; continue it with: flipguard "
        "train --out runs/begun --resume."
    )
    for command in (("compare", "runs/old", "runs/begun"), ("matrix", "runs/begun", "runs/old")):
        ran = run(*command)
        assert (ran.code, ran.out, ran.err) == (2, "", f"flipguard: {told}\n")


def test_a_run_without_predictions(run: Run, runs: Path) -> None:
    made.write_run(runs / "bare", None)
    ran = run("compare", "runs/old", "runs/new", "--control", "runs/bare")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "flipguard: Expected runs/bare to hold predictions/test.npz, but it does not; write it "
        "with: flipguard predict runs/bare --split test --out runs/bare/predictions/test.npz.\n"
    )


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("{", "it is damaged (JSONDecodeError"),
        ("[]", "it is damaged (TypeError"),
        ('{"schema": "magic"}', "its schema is not flipguard.run/1"),
        ('{"schema": "flipguard.run/1"}', "it is damaged (KeyError"),
        ("[" * 100_000, "it is damaged (RecursionError"),
    ],
    ids=["half", "list", "schema", "status", "deep"],
)
def test_a_damaged_run_is_one_sentence(runs: Path, document: str, told: str) -> None:
    (runs / "old" / "run.json").write_text(document)
    with pytest.raises(InputError, match=re.escape(told)) as caught:
        compare(old=runs / "old", new=runs / "new")
    assert "\n" not in str(caught.value)


def test_the_name_of_a_run_in_this_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs / "new")
    assert (run_name("."), run_name("../new/"), run_name("..")) == ("new", "../new", "runs")
    assert matrix([".", "../old"]).names == ("new", "old")
    assert predictions_of(Path(".")).is_file()


def test_runs_are_compared_without_torch(runs: Path) -> None:
    code = (
        "import sys, flipguard as fg\n"
        f"fg.compare(old={str(runs / 'old')!r}, new={str(runs / 'new')!r})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
