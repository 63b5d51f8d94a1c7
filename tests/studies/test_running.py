"""Small studies that are really trained, shown, resumed, and compared with the paper."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.main
from rich.cells import cell_len
from tests import commands
from tests.commands import Ran

import flipguard as fg
from flipguard.cli.commands import app
from flipguard.locks import alone_in
from flipguard.studies.document import CURVES
from flipguard.studies.read_study import study_of
from flipguard.studies.results import Result, Row, as_document, read_result, write_result
from flipguard.studies.run_graph import key_in_name

ID = "pct.table2a"
SMALL = ["--set", "recipe.epochs=2", "--set", "data=mnist1d:train=200,test=300"]
SMALL += ["--seeds", "2", "--members", "2"]
NEWS = ("--scale", "agnews", "--set", "model=.", "--plan")
# Old, five updates, and two members and their mean on both sides; for each of two seeds.
RUNS = 2 * (1 + 5 + 2 * (2 + 1))


def flipguard(*arguments: str, columns: int = 100) -> Ran:
    """A command of `flipguard study`."""
    return commands.flipguard("study", *arguments, columns=columns)


def numbers_of(done: Ran) -> str:
    """What is printed, but for how long it took and by which command."""
    return done.out.partition(" runs, ")[0].rpartition("\n")[0]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    out = tmp_path_factory.mktemp("studies")
    return out, flipguard("run", ID, *SMALL, "--processes", "2", "--out", str(out))


def models(out: Path) -> dict[Path, tuple[int, bytes]]:
    found = out.rglob("model.safetensors")
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_a_study_is_trained_and_printed_with_the_paper(ran: tuple[Path, Ran]) -> None:
    out, done = ran
    assert done.code == 0, done.err
    assert f"{RUNS} runs, 0 of them finished" in done.err
    assert len(models(out)) == RUNS
    lines = done.out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("FD-LM"))
    assert lines[place].split() == ["FD-LM", "30.24", "30.47", "2.35", "11.06", "0.36"]
    assert lines[place + 1].split()[0] == "here"
    assert any(line.startswith("Agreement: ") for line in lines)
    here = "Here: mnist1d:train=200,test=300 (200 training samples, 300 test samples), 2 epochs"
    assert f"{here}; ResNet-18 is mlp:hidden=64." in " ".join(lines)
    assert any(line.startswith(f"{RUNS} runs, 2 at a time, ") for line in lines)
    assert [line for line in lines if cell_len(line) > 100] == []


def test_a_study_with_a_validation_split_is_measured_on_it(tmp_path: Path) -> None:
    settings = [*SMALL, "--seeds", "1", "--set", "scope.validation=0.2"]
    done = flipguard("run", ID, *settings, "--processes", "2", "--out", str(tmp_path))
    assert done.code == 0, done.err
    told = (
        "161 training samples; all rates are of a validation split of 39 samples, and the 300 test"
    )
    assert told in " ".join(done.out.split())
    path = tmp_path / "results" / f"{ID}.mnist1d.json"
    document = json.loads(path.read_text())
    assert document["setting"]["samples"] == {"train": 161, "validation": 39, "test": 300}
    assert "scope.validation=0.2" in document["set"]
    for row in read_result(path, study_of(ID)).rows:
        files = [
            fg.read_predictions(
                tmp_path / "runs" / row.runs[side][0] / "predictions" / "validation.npz"
            )
            for side in ("old", "new")
        ]
        compared = fg.compare(old=files[0], new=files[1])
        assert compared.n == 39
        value = compared["negative_flip_rate"].value
        assert row.values["negative_flip_rate"][0] == pytest.approx(value, abs=1e-9)


def test_values_are_those_of_compare(ran: tuple[Path, Ran]) -> None:
    out, _ = ran
    result = read_result(out / "results" / f"{ID}.mnist1d.json", study_of(ID))
    assert result.seeds == (0, 1)
    for row in result.rows:
        for seed, (old, new) in enumerate(zip(row.runs["old"], row.runs["new"], strict=True)):
            files = [
                fg.read_predictions(out / "runs" / name / "predictions" / "test.npz")
                for name in (old, new)
            ]
            compared = fg.compare(old=files[0], new=files[1])
            for metric in (*result.study.metrics, "churn", "surrogate_churn"):
                value = compared[metric].value
                assert row.values[metric][seed] == pytest.approx(value, abs=1e-9)


def test_the_document(ran: tuple[Path, Ran]) -> None:
    out, _ = ran
    document = json.loads((out / "results" / f"{ID}.mnist1d.json").read_text())
    assert document["schema"] == "flipguard.study/1"
    assert document["set"] == ["recipe.epochs=2", "data=mnist1d:train=200,test=300"]
    assert (document["runs"], document["processes"]) == (RUNS, 2)
    assert document["setting"] == {
        "data": "mnist1d:train=200,test=300",
        "samples": {"train": 200, "test": 300},
        "epochs": 2,
        "recipe": {
            "optimizer": "adamw",
            "learning_rate": 0.02,
            "warmup": 3.0,
            "clip": 1.0,
            "augment": "shift-scale-noise",
        },
        "models": {"ResNet-18": "mlp:hidden=64"},
    }
    assert set(document["versions"]) == {"flipguard", "torch", "python"}
    found = document["agreement"]
    assert found["agree"] + found["disagree"] + found["undecided"] == found["clear"] > 10
    one = document["rows"][0]["metrics"]["negative_flip_rate"]
    assert one["mean"] == pytest.approx(sum(one["values"]) / 2)


def test_runs_have_the_keys_that_were_planned(ran: tuple[Path, Ran]) -> None:
    paths = list(ran[0].rglob("run.json"))
    assert len(paths) == RUNS
    for path in paths:
        assert json.loads(path.read_text())["key"] == key_in_name(path.parent)


def test_what_is_finished_is_never_trained_again(ran: tuple[Path, Ran]) -> None:
    out, first = ran
    before = models(out)
    planned = flipguard("run", ID, *SMALL, "--plan", "--out", str(out))
    assert f"{RUNS} runs, {RUNS} of them finished: nothing to train." in planned.out
    # One run is lost; it is the only one that is trained again, and becomes what it was.
    document = json.loads((out / "results" / f"{ID}.mnist1d.json").read_text())
    name = document["rows"][1]["runs"]["new"][0]
    shutil.rmtree(out / "runs" / name)
    again = flipguard("run", ID, *SMALL, "--out", str(out))
    assert f"{RUNS - 1} of them finished" in again.err
    after = models(out)
    assert {path for path in before if before[path] != after[path]} == {
        out / "runs" / name / "model.safetensors"
    }
    assert {path: found[1] for path, found in before.items()} == {
        path: found[1] for path, found in after.items()
    }
    assert numbers_of(again) == numbers_of(first)


def test_runs_of_data_that_changed_make_no_table(ran: tuple[Path, Ran], tmp_path: Path) -> None:
    out, _ = ran
    shutil.copytree(out / "runs", tmp_path / "runs")
    changed = sorted((tmp_path / "runs").glob("*/run.json"))[0]
    document = json.loads(changed.read_text())
    document["data"]["fingerprint"] = "0" * 64
    changed.write_text(json.dumps(document))
    done = flipguard("run", ID, *SMALL, "--out", str(tmp_path))
    assert done.code == 2
    assert f"Expected the data that {changed.parent} was started with" in " ".join(done.err.split())
    assert not (tmp_path / "results" / f"{ID}.mnist1d.json").exists()


def test_it_is_shown_again_drawn_and_written(ran: tuple[Path, Ran], tmp_path: Path) -> None:
    out, first = ran
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    shown = flipguard(
        "show", ID, "--out", str(out), "--markdown", str(page), "--plot", str(picture)
    )
    assert shown.code == 0, shown.err
    assert numbers_of(shown) == numbers_of(first)
    text = page.read_text()
    assert "| FD-LM | paper | 30.24 | 30.47 | 2.35 | 11.06 | 0.36 |  |" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    aside = tmp_path / "aside.json"
    shutil.copy(next((out / "results").glob("*.json")), aside)
    assert flipguard("show", str(aside)).out == shown.out
    document = json.loads(aside.read_text())
    for broken, told in (
        ({}, f"Expected {aside} to be a study's result, as"),
        ({**document, "rows": [{**document["rows"][0], "place": 99}]}, "it is damaged or of"),
        ({**document, "rows": [{**document["rows"][0], "metrics": []}]}, "it is damaged or of"),
        ({key: document[key] for key in document if key != "command"}, "by which command"),
    ):
        aside.write_text(json.dumps(broken))
        refused = flipguard("show", str(aside), columns=1000)
        assert refused.code == 2
        assert told in refused.err
    narrow = flipguard("show", ID, "--out", str(out), columns=80)
    assert [line for line in narrow.out.splitlines() if cell_len(line) > 80] == []


def test_a_result_of_other_settings_is_kept(tmp_path: Path) -> None:
    small = ["--set", "data=mnist1d:train=100,test=100", "--members", "1", "--out", str(tmp_path)]
    small += ["--seeds", "1", "--processes", "1"]

    def ran(*arguments: str) -> tuple[Ran, dict[str, bytes]]:
        done = flipguard("run", "elodi.table4", *small, *arguments)
        assert done.code == 0, done.err
        folder = tmp_path / "results" / "earlier"
        return done, {path.name: path.read_bytes() for path in folder.glob("*")}

    place = tmp_path / "results" / "elodi.table4.mnist1d.json"
    _, none = ran("--set", "recipe.epochs=1")
    assert none == {}
    before = place.read_bytes()
    other, kept = ran("--set", "recipe.epochs=2")
    assert list(kept.values()) == [before]
    assert "elodi.table4 had a result of other settings; it is now" in other.err
    assert f"{tmp_path}/results/earlier/{next(iter(kept))}" in other.err
    shown = flipguard("show", "elodi.table4", "--out", str(tmp_path))
    assert "recipe.epochs=2" in shown.out


def test_a_plan_trains_nothing(tmp_path: Path) -> None:
    done = flipguard("run", "elodi.table1", "--plan", "--out", str(tmp_path / "new"))
    assert done.code == 0
    assert "160 runs, 0 of them finished: about" in done.out
    assert "(a guess, for a core of a CPU)" in done.out
    assert not (tmp_path / "new").exists()
    large = flipguard("run", "elodi.table1", "--scale", "imagenet", "--plan")
    assert "timm:resnet50" in large.out
    told = " ".join(large.out.split())
    assert "an unknown time; with the data, --plan --time times a few steps of each model" in told
    guessed = flipguard("run", ID, "--scale", "tinyimagenet", "--plan")
    assert re.search(
        r"about \S+ \w+ on a large GPU; "
        r"with \d+ process(es)? on cpu far longer, for an unknown time",
        " ".join(guessed.out.split()),
    )
    assert "Data is missing: Expected `imagenet` to be " in told
    there = flipguard("run", ID, "--plan", "--out", str(tmp_path / "new"))
    assert "something is missing" not in there.out


def test_a_plan_for_a_gpu_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = str(tmp_path / "new")
    for more in ([], ["--devices", "0,1"]):
        done = flipguard("run", ID, "--plan", "--device", "cuda", *more, "--out", out)
        assert done.code == 0, done.err
        assert " on cuda (" in " ".join(done.out.split())
    refused = flipguard("run", ID, "--device", "cuda", "--out", out)
    assert refused.code == 2
    assert "Expected a GPU for --device cuda" in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "elodi.table99"], "Expected a study"),
        (["run", ID, "--scale", "moon"], "but got 'moon'; there are waves, mnist1d, "),
        (["run", ID, "--seeds", "0"], "--seeds to be at least 1"),
        (["run", ID, "--first-seed", "-1"], "--first-seed to be at least 0, but got -1"),
        (["run", ID, "--first-seed", "999", "--seeds", "2"], "seeds below 1000"),
        (["run", ID, "--members", "0"], "--members to be at least 1"),
        (["run", ID, "--minutes", "0"], "`--minutes` to be above 0"),
        (["run", ID, "elodi.table99"], "Expected a study"),
        (["run", ID, "elodi.table6", *NEWS], "Expected elodi.table6 to have"),
        (["run", "all", "--scale", "agnews"], "Expected model=… in --set"),
        (
            ["run", "elodi.table4", "--scale", "agnews", "--set", "model=no/such"],
            "Expected model in --set to be a folder with a pretrained model of Transformers, but "
            "'no/such' has no config.json",
        ),
        (
            ["run", "pct.table3", "--scale", "cifar100", "--set", "data_root=no/such"],
            "Expected `cifar100` to be at ",
        ),
        (["run", "pct.table3", "--scale", "mnist"], "did you mean mnist1d?"),
        (["show", "pct.table3", "--scale", "mnist"], "did you mean mnist1d?"),
        (["run", ID, "--fuse", "maybe"], "--fuse to be auto, on or off"),
        (["run", ID, "--device", "abacus"], "--device to be auto, cpu or cuda"),
        (["run", ID, "--devices", "0,1", "--device", "cpu"], "--devices to be numbers of GPUs"),
        (["run", ID, "--set", "recipe.epoch=3"], "but got 'recipe.epoch'"),
        (["run", ID, "--plan", "--set", "recipe.epochs=-3"], "`recipe.epochs` to be from 1 on"),
        (["run", ID, "--plan", "--set", "recipe.learning_rate=nan"], "but got nan"),
        (["run", ID, "--plan", "--set", "data=mnist1d:train=40x"], "`train` to be a whole number"),
        (["run", ID, "--plan", "--set", "data=cifar"], "but got 'cifar'"),
        (["run", ID, "--set", "classes=abc"], "classes in --set to be a whole number from 2 on"),
        (["run", ID, "--plan", "--out", __file__], f"but {__file__} is a file; name another one."),
        (["show", ID, "--out", __file__], f"but {__file__} is a file; name another one."),
        (["run", "churn.table3", "--scale", "imagenet"], "stands for ImageNet"),
        (["run", "elodi.table6", "--scale", "cifar10-450"], "stands for CIFAR-10"),
        (["run", "elodi.table6", *NEWS], "none can be trained"),
        (["run", ID, "--time"], "Expected `--time` together with `--plan`"),
        (["show", ID, "--out", "nowhere"], "Expected the result nowhere/results"),
        (["show", "elodi.figure1b"], "there is none of elodi.figure1b"),
        (["show", ID, "--markdown", "no/such/page.md"], "is no folder"),
        (["show", "nowhere.json"], "Expected nowhere.json to be a study's result, but there is no"),
        (
            ["show", "nowhere.json", "--scale", "mnist1d"],
            "Expected no `--scale` with a result file",
        ),
        (["show", "nowhere.json", "--out", "there"], "Expected no `--out` with a result file"),
    ],
)
def test_refusals_are_one_sentence(
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = flipguard(*arguments)
    assert told.code == 2
    assert says in told.err
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    with alone_in(tmp_path, report=lambda _: None):
        done = flipguard("run", ID, *SMALL, "--out", str(tmp_path))
    assert done.code == 2
    assert "the only process that writes to" in done.err
    (tmp_path / "file").write_text("")
    done = flipguard("run", ID, *SMALL, "--out", str(tmp_path / "file" / "below"))
    assert done.code == 2
    assert "choose another --out" in done.err


# -- the surface ---------------------------------------------------------------------------------

FLAGS = {
    "list": {"--json"},
    "run": {
        *("--scale", "--seeds", "--out", "--members", "--set", "--processes", "--device"),
        *("--devices", "--fuse", "--minutes", "--plan", "--time", "--first-seed"),
    },
    "show": {"--scale", "--out", "--markdown", "--plot"},
}


def test_the_parts_of_the_command_and_their_flags() -> None:
    study = typer.main.get_command(app).commands["study"]  # type: ignore[attr-defined]
    found = {
        name: {o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"}
        for name, command in study.commands.items()
    }
    assert found == FLAGS


@pytest.mark.parametrize("part", FLAGS)
def test_help_shows_an_example(part: str) -> None:
    done = flipguard(part, "--help", columns=80)
    assert f"Example: flipguard study {part}" in done.out
    assert [flag for flag in FLAGS[part] if flag not in done.out] == []


# -- a result that was made up -------------------------------------------------------------------


def made_up(tmp_path: Path) -> Result:
    study = study_of("pct.table4b")
    flips = ([0.09, 0.1, 0.11], [0.12, 0.13, 0.14], [0.05, 0.06, 0.07], [0.05, 0.055, 0.08])
    rows = tuple(
        Row(place=place, values={"negative_flip_rate": tuple(values)})
        for place, values in enumerate(flips)
    )
    result = Result(
        study=study, scale="mnist1d", given=(), seeds=(0, 1, 2), rows=rows, facts={"device": {}}
    )
    path = tmp_path / "results" / "pct.table4b.mnist1d.json"
    write_result(result, path)
    return read_result(path, study)


def test_agreement_is_counted_and_contradictions_are_listed(tmp_path: Path) -> None:
    result = made_up(tmp_path)
    done = flipguard("show", "pct.table4b", "--out", str(tmp_path))
    # In the paper, naive is below none and both distillations below both; here naive is above.
    # Of three metrics five pairs each are clear; only negative flips have values.
    assert "Of 15 pairs of rows" in done.out
    assert "4 have the same order here, 1 the other order" in " ".join(done.out.split())
    told = " ".join(done.out.split())
    assert (
        "NFR: Naive is above No Treatment here, 13.00 against 10.00 % (difference +2.49 to +3.51), "
        "and below it in the paper, 3.28 against 4.03" in told
    )
    assert "1.30" in done.out  # naive over the control
    assert as_document(result)["agreement"]["disagree"] == 1


def test_a_series_is_drawn_and_what_the_paper_says_is_checked(tmp_path: Path) -> None:
    study = study_of("elodi.figure2")
    rows = tuple(
        Row(
            place=place,
            values={
                metric: tuple(0.3 / (1 + (line.x or 0)) + 0.001 * seed for seed in range(3))
                for metric in study.metrics
            },
        )
        for place, line in enumerate(study.lines)
    )
    result = Result(study=study, scale="mnist1d", given=(), seeds=(0, 1, 2), rows=rows, facts={})
    write_result(result, tmp_path / "results" / "elodi.figure2.mnist1d.json")
    picture = tmp_path / "picture.svg"
    done = flipguard("show", "elodi.figure2", "--out", str(tmp_path), "--plot", str(picture))
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "With one architecture, larger ensembles have fewer flips. Here it holds." in told
    assert "Agreement" not in told  # the paper prints no number
    assert "one architecture" in picture.read_text()


def test_curves_are_drawn_epoch_by_epoch(tmp_path: Path) -> None:
    study = study_of("pct.figure6")
    curve = {metric: [[0.5, 0.4, 0.3], [0.6, 0.5, None]] for metric in CURVES}
    values = dict.fromkeys(study.metrics, (0.3, 0.4))
    rows = (Row(place=0, values=values, curves={"train": curve, "test": curve}),)
    result = Result(study=study, scale="mnist1d", given=(), seeds=(0, 1), rows=rows, facts={})
    write_result(result, tmp_path / "results" / "pct.figure6.mnist1d.json")
    picture = tmp_path / "picture.png"
    done = flipguard("show", "pct.figure6", "--out", str(tmp_path), "--plot", str(picture))
    assert done.code == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    done = flipguard("show", "pct.figure6", "--out", str(tmp_path), "--plot", "picture.bmp")
    assert done.code == 2
    assert "use .png, .svg or .pdf" in done.err


def test_a_damaged_result_is_refused(tmp_path: Path) -> None:
    made_up(tmp_path)
    path = tmp_path / "results" / "pct.table4b.mnist1d.json"
    for text in ("{", '{"schema": "flipguard.study/9"}', path.read_text().replace("Naive", "Nave")):
        path.write_text(text)
        done = flipguard("show", "pct.table4b", "--out", str(tmp_path))
        assert done.code == 2
        assert "damaged or of another version" in done.err


# -- slow ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "id",
    [
        *("pct.table5b", "pct.table7", "pct.figure2", "pct.figure4", "pct.figure5", "pct.figure6"),
        *(
            "elodi.figure2",
            "elodi.figure4",
            "elodi.figure5",
            "churn.figure2",
            "elodi.table7",
            "elodi.table8",
            "elodi.table10",
            "elodi.table11",
            "elodi.figure6",
        ),
        *("churn.table1", "churn.table2", "churn.table6"),
    ],
)
def test_studies_of_every_kind(id: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    small = [*SMALL[:-4], "--seeds", "1", "--members", "2"]
    done = flipguard("run", id, *small, "--out", out)
    assert done.code == 0, done.err
    picture = tmp_path / "picture.svg"
    shown = flipguard("show", id, "--out", out, "--plot", str(picture))
    assert shown.code == 0, shown.err
    assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_fused_runs_are_the_same_to_rounding(ran: tuple[Path, Ran], tmp_path: Path) -> None:
    out, _ = ran
    done = flipguard("run", ID, *SMALL, "--fuse", "on", "--out", str(tmp_path))
    assert done.code == 0, done.err
    one, other = (
        read_result(folder / "results" / f"{ID}.mnist1d.json", study_of(ID))
        for folder in (out, tmp_path)
    )
    for first, second in zip(one.rows, other.rows, strict=True):
        assert first.runs == second.runs
        assert first.mean("churn") == pytest.approx(second.mean("churn"), abs=0.05)


@pytest.mark.slow
def test_interrupted_it_goes_on_and_ends_as_if_it_had_not_been(
    ran: tuple[Path, Ran], tmp_path: Path
) -> None:
    out, _ = ran
    command = [
        sys.executable,
        "-m",
        "flipguard",
        "study",
        "run",
        ID,
        *SMALL,
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.rglob("model.safetensors"))) < 3:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped; run the same command again to continue" in told
    done = flipguard("run", ID, *SMALL, "--out", str(tmp_path))
    assert done.code == 0, done.err
    weights = {path.relative_to(out): found[1] for path, found in models(out).items()}
    assert weights == {
        path.relative_to(tmp_path): found[1] for path, found in models(tmp_path).items()
    }
