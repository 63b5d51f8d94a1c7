"""Each refusal, once from Python and once by the command: one names arguments, the other flags."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard.cli.arguments import with_flags
from flipguard.errors import InputError
from flipguard.report.runs import assign_roles
from flipguard.runs.config import as_dict, fix_randomness, set_values
from flipguard.studies.job import prepare_job
from flipguard.studies.read_study import study_of
from flipguard.studies.results import read_result, result_path
from flipguard.training import Config, Run, adopt, predict, train
from tests.commands import flipguard
from tests.training.adopting import saved, small
from tests.training.tiny import images_file, make_old, tiny, trained

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# A command to type is the same wherever its reader is.
COMMAND = re.compile(r"`flipguard [^`]*`|with: flipguard .*")
OWN = "python:tests.training.adopting:small"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, data and weights; `{"old": "old"}` and the like name them."""
    folder = tmp_path_factory.mktemp("made")
    make_old(folder / "old")
    make_old(folder / "older", seed=8)
    begun = json.loads((folder / "old" / "run.json").read_text()) | {"status": "training"}
    (folder / "begun").mkdir()
    (folder / "begun" / "run.json").write_text(json.dumps(begun))
    (folder / "unknown").mkdir()
    (folder / "unknown" / "history.jsonl").write_text("")
    trained(tiny("ensemble", epochs=1), folder / "pair")
    images_file(folder / "images.npz")
    images_file(folder / "other.npz")
    trained(tiny(data=str(folder / "images.npz"), epochs=1, model="conv2d"), folder / "seeing")
    trained(tiny(data=str(folder / "other.npz"), epochs=1, model="conv2d"), folder / "changed")
    with np.load(folder / "other.npz") as arrays:
        held = dict(arrays)
    np.savez(folder / "other.npz", **{**held, "train_inputs": 255 - held["train_inputs"]})
    for split, text in (("train", "good"), ("test", "bad")):
        (folder / "texts").mkdir(exist_ok=True)
        rows = [json.dumps({"text": text, "label": label}) + "\n" for label in ("a", "b") * 3]
        (folder / "texts" / f"{split}.jsonl").write_text("".join(rows))
    for classes in (3, 5):
        saved(small(classes=classes, input_shape=None), folder / f"{classes}.safetensors")
    (folder / "two.txt").write_text("0\n1\n")
    (folder / "strange.txt").write_text("x\ny\nz\n")
    return folder


def toml_of(values: Mapping[str, Any]) -> str:
    """A configuration as a file; tables come last."""
    plain = {k: v for k, v in values.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    for table, inner in values.items():
        if isinstance(inner, Mapping):
            lines.append(f"[{table}]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in inner.items() if v is not None]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Refusal:
    """A call in Python, the command that does the same, and the flags that its error names."""

    python: Callable[[], object]
    command: tuple[str, ...]
    flags: tuple[str, ...]


def training(*flags: str, out: str = "new", resume: bool = False, **config: Any) -> Refusal:
    """A run that is refused, by the same configuration in Python and in a file."""
    chosen = tiny(config.pop("method", "none"), **config)
    more = ("--resume",) if resume else ()
    return Refusal(
        lambda: train(chosen, Path(out), resume=resume, report=lambda _: None),
        ("train", "--config", written(chosen), "--out", out, *more),
        flags,
    )


def written(config: Config) -> str:
    """The name of a file with this configuration, which is written when the test begins."""
    return toml_of(as_dict(config))


def adopting(*flags: str, data: str = "images.npz", model: str = OWN, **given: Any) -> Refusal:
    out = given.pop("out", "new")
    arguments: dict[str, Any] = {"device": "cpu", "allow_code": True, **given}
    command = ["adopt", "--model", model, "--data", data, "--out", out, "--device", "cpu"]
    for name, value in given.items():
        command += [f"--{name.replace('_', '-')}", str(value)] if value is not False else []
    if given.get("allow_code") is None:
        command.append("--allow-code")
    classes = arguments.get("classes")
    arguments |= {"classes": Path(classes)} if classes else {}
    return Refusal(
        lambda: adopt(model, data, Path(out), report=lambda _: None, **arguments),
        tuple(command),
        flags,
    )


def study(*flags: str, ids: str = "elodi.table1", **given: Any) -> Refusal:
    chosen = {"scale": "mnist1d", "out": Path("studies"), "plan_only": True, **given}
    command = ["study", "run", ids, *(["--plan"] if chosen["plan_only"] else [])]
    for name, value in chosen.items():
        if name == "settings":
            command += [word for one in value for word in ("--set", one)]
        elif name != "plan_only":
            command += [f"--{name.replace('_', '-')}", str(value)]
    return Refusal(lambda: prepare_job([ids], **chosen), tuple(command), flags)


CASES: dict[str, Refusal] = {
    "no old run": training("--old", method="fd-lm"),
    "two old runs": training("--old", method="l2-sp", old=("old", "older")),
    "an old run that is not finished": training("--old", method="fd-lm", old=("begun",)),
    "nothing to start from": training("--old", fine_tune=True),
    "a start from an ensemble": training("--old", fine_tune=True, method="l2-sp", old=("pair",)),
    "no legacy": training("--old", method="elodi", options={"legacy": 0.5}),
    "nothing to reuse": training("--old", method="elodi", options={"reuse": 1}),
    "no members to reuse": training("--old", method="elodi", options={"reuse": 1}, old=("old",)),
    "an old run of other inputs": training("--old", "--data", method="fd-lm", old=("seeing",)),
    "a folder with a run": training("--out", "--resume", out="old"),
    "a folder with other files": training("--out", out="unknown"),
    "a folder for members": training("--out", out="members"),
    "other settings": training("--out", out="older", resume=True, recipe={"epochs": 5}),
    "other data": training(
        "--out", out="changed", resume=True, data="other.npz", epochs=1, model="conv2d"
    ),
    "a model of vectors for texts": training("--model", data="texts"),
    "code": training("--allow-code", model=OWN, data="images.npz"),
    "no data": training("--set", data="cifar10", data_root="nowhere"),
    "a setting without a value": Refusal(
        lambda: set_values({}, ["epochs"]), ("train", "--set", "epochs", "--out", "new"), ("--set",)
    ),
    "an unknown source": Refusal(
        lambda: fix_randomness({}, ["dice"]), ("train", "--fix", "dice", "--out", "new"), ("--fix",)
    ),
    "an unknown split": Refusal(
        lambda: predict(Run.read(Path("old")), split="x", out=Path("p.npz")),
        ("predict", "old", "--split", "x", "--out", "p.npz"),
        ("--split",),
    ),
    "no validation split": Refusal(
        lambda: predict(Run.read(Path("old")), split="validation", out=Path("p.npz")),
        ("predict", "old", "--split", "validation", "--out", "p.npz"),
        ("--split",),
    ),
    "classes without names": adopting("--classes", weights="5.safetensors"),
    "too few classes": adopting(
        "--classes", model="python:tests.training.adopting:fixed", classes="two.txt"
    ),
    "classes that the data lack": adopting(
        "--classes", weights="3.safetensors", classes="strange.txt"
    ),
    "adopted code": adopting("--allow-code", weights="3.safetensors", allow_code=False),
    "a run in the way": adopting("--out", out="old"),
    "nothing published": adopting("--weights", model="resnet20"),
    "no named data": adopting("--data-root", data="cifar10", data_root="nowhere"),
    "a scale": study("--scale", scale="moon"),
    "a file for a folder": study("--out", out=Path("two.txt")),
    "seeds": study("--seeds", seeds=0),
    "a first seed": study("--first-seed", first_seed=-1),
    "too many seeds": study("--first-seed", "--seeds", first_seed=999, seeds=2),
    "members": study("--members", members=0),
    "processes": study("--processes", processes=0),
    "fusing": study("--fuse", fuse="maybe"),
    "a device": study("--device", device="abacus"),
    "devices": study("--devices", device="cpu", devices="0,1"),
    "no rows at a scale": study("--scale", ids="churn.table3", scale="imagenet"),
    "a setting of a study": study("--set", settings=["recipe=3"]),
    "a setting of a study alone": study("--set", settings=["recipe.epochs"]),
    "a number of classes": study("--set", settings=["classes=one"]),
    "a role": study("--set", settings=["roles.tiny=mlp"]),
    "a net in a role": study("--set", settings=["roles.small=nonet"]),
    "a model of texts": study("--set", ids="elodi.table4", scale="agnews"),
    "a folder without a model": study(
        "--set", ids="elodi.table4", scale="agnews", settings=["model=old"], plan_only=False
    ),
    "no result": Refusal(
        lambda: read_result(
            result_path(Path("none"), "elodi.table1", "mnist1d"), study_of("elodi.table1")
        ),
        ("study", "show", "elodi.table1", "--out", "none"),
        ("--scale", "--out"),
    ),
    "no old model of a report": Refusal(
        lambda: assign_roles(["old"], old=None, control=None),
        ("report", "old", "--out", "r.html"),
        ("--old",),
    ),
    "only files for a report": Refusal(
        lambda: assign_roles(["two.txt"], old=None, control=None),
        ("report", "two.txt", "--out", "r.html"),
        ("--old",),
    ),
}


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was made, as the current folder."""
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")
    monkeypatch.delenv("FLIPGUARD_DATA", raising=False)
    return tmp_path / "made"


@pytest.mark.parametrize("name", CASES)
def test_python_names_arguments_and_the_command_names_flags(name: str, folder: Path) -> None:
    case = CASES[name]
    with pytest.raises(InputError) as refused:
        case.python()
    said = str(refused.value)
    assert not FLAG.search(COMMAND.sub("", said)), said
    command = list(case.command)
    if command[:2] == ["train", "--config"]:
        (folder / "settings.toml").write_text(command[2])
        command[2] = "settings.toml"
    told = flipguard(*command, folder=folder)
    assert told.code == 2
    assert set(case.flags) <= set(FLAG.findall(COMMAND.sub("", told.err)))
    assert told.err == f"flipguard: {with_flags(said)}\n"


def test_lines_of_a_run_name_what_their_reader_typed(folder: Path) -> None:
    lines: list[str] = []
    given = {"device": "cpu", "allow_code": True, "weights": "3.safetensors"}
    done = adopt(OWN, "images.npz", Path("python"), report=lines.append, **given)
    assert "give `preprocessing.mean` and `preprocessing.std`" in done.notes[0]
    assert not FLAG.search("\n".join([*lines, json.dumps(dict(done.run.document))]))
    command = ("adopt", "--model", OWN, "--data", "images.npz", "--weights", "3.safetensors")
    told = flipguard(*command, "--allow-code", "--out", "typed", folder=folder)
    assert told.code == 0
    assert "give --mean and --std" in told.out


def test_a_plan_names_what_its_reader_typed(folder: Path) -> None:
    from flipguard.studies.job import plan_summary

    job = prepare_job(["elodi.table1"], scale="cifar100", out=Path("s"), plan_only=True)
    assert "`plan_only=True, timed=True` times" in plan_summary(job)
    command = ("study", "run", "elodi.table1", "--scale", "cifar100", "--plan", "--out", "s")
    assert "--plan --time times" in " ".join(flipguard(*command, folder=folder).out.split())
