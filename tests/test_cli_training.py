"""The commands `train`, `predict` and `methods`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flipguard import compare, read_predictions
from flipguard.methods import METHODS
from tests import commands
from tests.commands import Ran

TINY = (
    "--data",
    "mnist1d:train=200,test=100",
    "--model",
    "mlp:hidden=16",
    "--set",
    "recipe.epochs=2",
)


def flipguard(folder: Path, *arguments: str) -> Ran:
    return commands.flipguard(*arguments, folder=folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with an old run and an update of it."""
    folder = tmp_path_factory.mktemp("runs")
    for arguments in (
        ("--out", "v1"),
        ("--out", "v2", "--method", "fd-lm", "--old", "v1", "--seed", "2"),
    ):
        done = flipguard(folder, "train", *TINY, *arguments)
        assert done.code == 0, done.err
        assert done.err == ""
    return folder


def test_training_tells_how_far_it_is(runs):
    command = ("train", *TINY, "--out", "v3", "--old", "v1", "--seed", "3")
    done = subprocess.run(
        [sys.executable, "-m", "flipguard", *command], cwd=runs, capture_output=True, text=True
    )
    assert done.stderr == ""
    first, second, last = done.stdout.splitlines()
    assert first.startswith("epoch 1/2  task ")
    assert "test error" in second
    assert "NFR" in second
    assert last == "v3: finished; predictions of the test set are in v3/predictions/test.npz"


def test_a_run_can_be_compared(runs):
    old, new = (read_predictions(runs / v / "predictions" / "test.npz") for v in ("v1", "v2"))
    result = compare(old=old, new=new)
    history = [
        json.loads(line) for line in (runs / "v2" / "history.jsonl").read_text().splitlines()
    ]
    last = history[-1]["test"]
    assert result["error_rate_new"].value == pytest.approx(last["error_rate"])
    (against,) = last["old"].values()
    assert result["negative_flip_rate"].value == pytest.approx(against["negative_flip_rate"])
    assert result["churn"].value == pytest.approx(against["churn"])


def test_a_validation_split(tmp_path):
    scope = ("--set", "scope.validation=0.2")
    first, second, last, more = flipguard(
        tmp_path, "train", *TINY, *scope, "--out", "run"
    ).out.splitlines()
    assert "validation error" in first
    assert "validation error" in second
    assert last == "run: finished; predictions of the test set are in run/predictions/test.npz"
    assert more == "predictions of the validation set are in run/predictions/validation.npz"
    done = flipguard(tmp_path, "predict", "run", "--split", "validation", "--out", "held.csv")
    assert done.out == "held.csv: predictions of run on its validation set\n"
    assert len((tmp_path / "held.csv").read_text().splitlines()) == 1 + 39


def test_predictions_of_a_split(runs):
    done = flipguard(runs, "predict", "v2", "--split", "train", "--out", "train.npz")
    assert done.code == 0, done.err
    assert read_predictions(runs / "train.npz").columns is not None
    test = flipguard(runs, "predict", "v2", "--out", "test.npz")
    assert test.code == 0
    assert (runs / "test.npz").read_bytes() == (runs / "v2/predictions/test.npz").read_bytes()


@pytest.mark.parametrize("name", ["v2.csv", "v2.parquet", "v2.jsonl.gz"])
def test_predictions_are_of_the_kind_that_their_name_says(runs, name):
    done = flipguard(runs, "predict", "v2", "--out", name)
    assert done.code == 0, done.err
    old, new = (read_predictions(runs / run / "predictions" / "test.npz") for run in ("v1", "v2"))
    found, whole = compare(old=old, new=read_predictions(runs / name)), compare(old=old, new=new)
    for rate in ("error_rate_new", "negative_flip_rate", "churn"):
        assert found[rate].value == whole[rate].value


def test_predictions_of_no_known_kind_are_refused(runs):
    done = flipguard(runs, "predict", "v2", "--out", "v2.xyz")
    assert done.code == 2
    assert "this is a bug" not in done.err
    assert done.err.count("\n") == 1
    assert not (runs / "v2.xyz").exists()


def test_what_is_said_at_resume_is_all_that_may_differ(runs):
    stopped = flipguard(runs, "train", *TINY, "--out", "late", "--set", "machine.minutes=0")
    assert "time limit reached" in stopped.out
    refused = flipguard(runs, "train", "--out", "late", "--resume", "--set", "recipe.epochs=5")
    assert "but 'recipe.epochs' changed" in refused.err
    done = flipguard(runs, "train", "--out", "late", "--resume", "--set", "machine.minutes=9")
    assert "late: finished" in done.out


def test_the_printed_way_on_does_not_stop_in_time_again(runs):
    stopped = flipguard(runs, "train", *TINY, "--out", "on", "--set", "machine.minutes=0")
    assert stopped.code == 3
    (way_on,) = re.findall("continue with: flipguard (.*)", stopped.out)
    finished = flipguard(runs, *way_on.split())
    assert (finished.code, "on: finished" in finished.out) == (0, True)


def test_an_interrupted_run_says_how_it_goes_on(runs):
    more = ("--set", "recipe.epochs=1000000", "--set", "machine.threads=1", "--out", "long")
    running = subprocess.Popen(
        [sys.executable, "-m", "flipguard", "train", *TINY, *more],
        cwd=runs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    running.stdout.readline()  # after an epoch
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert said == (
        "interrupted: finishing this epoch first; press Ctrl-C again to stop at once\n"
        "long: interrupted; continue from the last checkpoint with: flipguard train --out long "
        "--resume\n"
    )


def test_a_file_and_flags_and_settings_come_together(runs):
    (runs / "run.toml").write_text(
        'model = "mlp:hidden=8"\n[recipe]\nepochs = 9\nbatch_size = 20\n'
    )
    done = flipguard(
        runs, "train", "--config", "run.toml", "--data", "mnist1d:train=100,test=50",
        "--set", "recipe.epochs=1", "--seed", "5", "--fix", "init", "--out", "v4",
    )  # fmt: skip
    assert done.code == 0, done.err
    config = json.loads((runs / "v4" / "run.json").read_text())["config"]
    assert config["model"] == "mlp:hidden=8"
    assert (config["recipe"]["epochs"], config["recipe"]["batch_size"]) == (1, 20)
    assert (config["seeds"]["seed"], config["seeds"]["init"]) == (5, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "fd-ml"), "Expected a method, but got 'fd-ml'; did you mean fd-lm"),
        (("--method", "fd-lm"), "to be given an old run with `--old`, but got none"),
        (("--set", "recipe.epoch=3"), "known keys, but got 'recipe.epoch'; did you mean epochs"),
        (("--set", "weight=1", "--method", "fd-lm"), "got 'weight'; write options.weight."),
        (("--set", "recipe.epochs=many"), "Expected `recipe.epochs` to be a whole number"),
        (("--fix", "luck"), "Expected `--fix` to name sources of randomness"),
        (("--old", "nowhere"), "to be a run, but there is no run.json in it"),
        (
            ("--model", "mpl"),
            "Expected `model` to name a net, with options after a colon, but got 'mpl'; did you "
            "mean mlp?",
        ),
        (
            ("--model", "resnet20"),
            "Expected images for 'resnet20', with or without a channel axis, but got "
            "vectors of 40 numbers; ",
        ),
        (("--model", "mlp:hiden=3"), "but got 'hiden'; did you mean hidden?"),
        (
            ("--method", "elodi", "--set", "options.members=two"),
            "Expected `members` of `elodi` to be a whole number, such as 8, but got 'two'.",
        ),
        (
            ("--method", "elodi", "--set", "options.member=2"),
            "but got 'member'; did you mean members? `flipguard methods elodi` lists all.",
        ),
        (("--set", "options.weight=2"), "Expected no options, because `none` has none, but got"),
        (("--data", "mnist"), "mnist"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(runs, arguments, said):
    done = flipguard(runs, "train", *TINY, "--out", "refused", *arguments)
    assert done.code == 2
    assert done.err.startswith("flipguard: ")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not (runs / "refused").exists()


@pytest.mark.parametrize("name", ["members", "views"])
def test_names_of_shared_folders_are_refused_for_runs(runs, name):
    for more in ((), ("--resume",)):
        done = flipguard(runs, "train", *TINY, "--out", name, *more)
        assert done.code == 2
        assert done.err == (
            f"flipguard: Expected --out to be a folder for a run, but got {name}, and flipguard "
            f"uses the name '{name}' for the folder of {name} next to the runs that use them; "
            "choose another name.\n"
        )
        assert not (runs / name).exists()


def test_a_finished_run_is_not_trained_again(runs):
    done = flipguard(runs, "train", *TINY, "--out", "v1")
    assert done.code == 2
    assert "there is a run in it; resume it with --resume" in done.err
    done = flipguard(runs, "train", "--out", "v1", "--resume")
    assert done.code == 0
    assert "is finished; nothing to do" in done.out


def test_methods_are_listed():
    done = flipguard(Path.cwd(), "methods", "--json")
    assert [row["name"] for row in json.loads(done.out)] == list(METHODS)
    plain = flipguard(Path.cwd(), "methods").out
    assert all(name in plain for name in METHODS)


def test_one_method_is_shown_with_its_options():
    elodi = commands.flipguard("methods", "elodi", columns=80).out
    assert elodi.startswith(f"elodi: {METHODS['elodi'].sentence}\n")
    assert "needs  ensemble members, which it trains\n" in elodi
    for option in METHODS["elodi"].options:
        assert any(line.startswith(f"{option.name} ") for line in elodi.splitlines())
    assert "alpha            0.8          Weight of the pull to the ensemble; the task's" in elodi
    assert "online           true         " in elodi
    assert elodi.endswith("--method elodi --set options.NAME=VALUE\n")
    assert max(map(len, elodi.splitlines())) <= 80
    none = flipguard(Path.cwd(), "methods", "none").out
    assert none.endswith("needs  nothing but data\n\nIt has no options.\n")
    (row,) = json.loads(flipguard(Path.cwd(), "methods", "elodi", "--json").out)
    assert row["options"]["members"] == 8
    refused = flipguard(Path.cwd(), "methods", "eldi")
    assert refused.code == 2
    assert refused.err == (
        "flipguard: Expected a method, but got 'eldi'; did you mean elodi? `flipguard methods` "
        "lists all.\n"
    )


def test_predictions_are_refused_before_the_work_where_they_cannot_be_written(runs):
    for name, words in (
        ("nowhere/test.npz", "nowhere is no folder; create it first."),
        ("v2/predictions/test.npz", "would be overwritten; write to another file."),
        ("test.docx", "is of no format known by its name"),
    ):
        done = flipguard(runs, "predict", "v2", "--out", name)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
    assert not (runs / "nowhere").exists()
    done = flipguard(runs, "predict", "v2/predictions/test.npz", "--out", "test.npz")
    assert "to be a run, but there is no run.json in it" in done.err
