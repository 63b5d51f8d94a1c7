"""What cannot be done is refused in one sentence, and what was there stays as it was."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard.errors import InputError
from flipguard.run_document import RUN
from flipguard.runs.config import as_dict, fix_randomness, from_dict, read_toml, set_values
from flipguard.runs.folder import CHECKPOINT, MODEL
from flipguard.training import Config, Machine, Run, Seeds, predict
from flipguard.training.checks import complete_config
from tests.training.tiny import (
    bytes_of,
    everything_in,
    images_file,
    make_old,
    tiny,
    trained,
    with_old,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def olds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("olds")
    return {
        "old": make_old(folder / "old"),
        "older": make_old(folder / "older", seed=8),
        "narrow": make_old(folder / "narrow", classes=8),
        "other": make_old(folder / "other", model="mlp:hidden=12"),
    }


def sentence(problem: pytest.ExceptionInfo[InputError]) -> str:
    """What was said, which is one sentence."""
    said = str(problem.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert not re.search(r"\. [A-Z]", said), said
    return said


def refused(config: Config, out: Path, *, resume: bool = False) -> str:
    """The sentence of a refusal that leaves everything as it was."""
    before = everything_in(out.parent)
    with pytest.raises(InputError) as problem:
        trained(config, out, resume=resume)
    assert everything_in(out.parent) == before
    return sentence(problem)


@pytest.mark.parametrize(
    ("method", "old", "said"),
    [
        ("fd-lm", [], "given an old run with `old=`"),
        ("bct", ["narrow"], "have the old model's classes"),
        ("bu-cr", ["narrow"], "have the old model's classes"),
        ("l2-sp", ["other"], "the old model's architecture"),
        ("ewc", ["other"], "the old model's architecture"),
        ("mixout", ["narrow"], "the old model's architecture"),
        ("l2-sp", ["old", "older"], "one `old=`"),
        ("bct", ["old", "older"], "one `old=`"),
    ],
)
def test_impossible_combinations(
    method: str, old: list[str], said: str, olds: dict[str, Run], tmp_path: Path
) -> None:
    config = with_old(tiny(method), *(olds[name] for name in old))
    assert said in refused(config, tmp_path / "run")


def test_legacy_needs_an_old_before_members_are_trained(tmp_path: Path) -> None:
    said = refused(tiny("elodi", options={"legacy": 0.5}), tmp_path / "run")
    assert "`old=`" in said
    assert not list(tmp_path.iterdir())


def test_fine_tuning_needs_one_old_of_the_same_architecture(
    olds: dict[str, Run], tmp_path: Path
) -> None:
    assert "one `old=`" in refused(tiny(fine_tune=True), tmp_path / "run")
    config = with_old(tiny("elodi", fine_tune=True), olds["other"])
    assert "fine-tuning" in refused(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "magic"}, "'magic'"),
        ({"method": "none+entropy"}, "+entropy"),
        ({"method": "codistill-skl+magic"}, "+magic"),
        ({"options": {"magic": 1}}, "magic"),
        ({"method": "fd-lm", "options": {"filter": "magic"}}, "'magic'"),
        ({"method": "fd-lm", "options": {"focus": "much"}}, "'much'"),
        ({"method": "elodi", "options": {"members": 0}}, "members"),
        ({"method": "ensemble", "options": {"members": -1}}, "members"),
        ({"method": "elodi", "options": {"members": 2, "k": "many"}}, "`k`"),
        ({"method": "elodi", "options": {"alpha": 2.0}}, "`alpha`"),
        ({"method": "elodi", "options": {"p": -1.0}}, "`p`"),
        ({"method": "entropy", "options": {"k": 1.5}}, "`k`"),
        ({"data": "magic"}, "magic"),
        ({"model": "magic"}, "magic"),
        ({"model": "mlp:magic=1"}, "magic"),
        ({"recipe": {"epochs": 0}}, "recipe.epochs"),
        ({"recipe": {"batch_size": 0}}, "recipe.batch_size"),
        ({"recipe": {"accumulate": 0}}, "recipe.accumulate"),
        ({"recipe": {"linear_scaling": 0}}, "recipe.linear_scaling"),
        ({"recipe": {"learning_rate": -1.0}}, "recipe.learning_rate"),
        ({"recipe": {"learning_rate": float("nan")}}, "recipe.learning_rate"),
        ({"recipe": {"label_smoothing": 2.0}}, "recipe.label_smoothing"),
        ({"recipe": {"augment": "magic"}}, "magic"),
        ({"machine": {"processes": 0}}, "machine.processes"),
        ({"machine": {"threads": 0}}, "machine.threads"),
        ({"machine": {"threads": 100_000}}, "machine.threads"),
        ({"machine": {"device": "magic"}}, "magic"),
    ],
)
def test_nonsense(changes: dict[str, Any], said: str, olds: dict[str, Run], tmp_path: Path) -> None:
    config = tiny(**changes)
    if config.method == "fd-lm":
        config = with_old(config, olds["old"])
    assert said in refused(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"magic": 1}, "'magic'"),
        ({"recipe": {"magic": 1}}, "'recipe.magic'"),
        ({"recipe": 1}, "`recipe"),
        ({"recipe": {"epochs": "ten"}}, "a whole number"),
        ({"recipe": {"epochs": True}}, "a whole number"),
        ({"recipe": {"learning_rate": "high"}}, "a number"),
        ({"recipe": {"optimizer": "magic"}}, "'adamw'"),
        ({"recipe": {"nesterov": 1}}, "true or false"),
        ({"recipe": {"milestones": 3}}, "a list"),
        ({"model": 3}, "text"),
        ({"old": "run"}, "a list"),
        ({"options": [1]}, "a table"),
    ],
)
def test_configurations_that_are_none(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as problem:
        from_dict(values)
    assert said in sentence(problem)


def test_assignments_that_are_none() -> None:
    for text in ("model", "=3", ""):
        with pytest.raises(InputError) as problem:
            set_values({}, [text])
        assert "key=value" in sentence(problem)
    with pytest.raises(InputError) as problem:
        set_values({"model": "mlp"}, ["model.width=3"])
    assert "a table" in sentence(problem)
    with pytest.raises(InputError) as problem:
        fix_randomness({}, ["weather"])
    assert "'weather'" in sentence(problem)


def test_configuration_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[[")
    for name in ("none.toml", "bad.toml"):
        with pytest.raises(InputError) as problem:
            read_toml(tmp_path / name)
        assert name in sentence(problem)


@pytest.mark.parametrize(
    ("recipe", "samples", "least"),
    [
        ({"batch_size": 300}, 2, 2),  # an incomplete step
        ({"batch_size": 100, "accumulate": 3}, 200, 66),
    ],
)
def test_batches_smaller_than_processes(
    recipe: dict[str, int], samples: int, least: int, tmp_path: Path
) -> None:
    data = f"mnist1d:train={samples},test=10"
    machine = {"processes": least + 1}
    config = tiny(data=data, recipe=recipe, machine=machine)
    assert f"make a batch of {least} for {least + 1} processes" in refused(config, tmp_path / "run")


def test_old_runs_and_guides_that_take_other_inputs(tmp_path: Path) -> None:
    old = str(trained(tiny(epochs=1), tmp_path / "old").folder)
    for data, shape in (("digits", "(1, 8, 8)"), ("images", "(3, 8, 8)")):
        spec = images_file(tmp_path / "images.npz") if data == "images" else data
        config = tiny("fd-lm", data=spec, old=(old,))
        told = f"{old} takes inputs of shape (40,) and the data have shape {shape}; give the"
        assert told in refused(config, tmp_path / "run")
    mean = tiny("ensemble", data="digits", guides=(old,), options={"members": 1})
    assert "`guides` to take the inputs of the data, but" in refused(mean, tmp_path / "run")


def stopped_run(out: Path, **changes: Any) -> Config:
    """A run that was stopped after one epoch, and the configuration to go on with."""
    config = tiny(epochs=3, **changes)
    hurried = dataclasses.replace(config, machine=Machine(threads=1, device="cpu", minutes=1e-9))
    assert trained(hurried, out).status == "stopped"
    return config


def test_folder_in_use(tmp_path: Path) -> None:
    config = stopped_run(tmp_path / "run")
    assert "`resume=True`" in refused(config, tmp_path / "run")
    changed = dataclasses.replace(config, seeds=Seeds(seed=5))
    assert "'seeds.seed' changed" in refused(changed, tmp_path / "run", resume=True)
    assert trained(config, tmp_path / "run", resume=True).finished
    assert "'seeds.seed' changed" in refused(changed, tmp_path / "run", resume=True)


def test_state_without_a_description(tmp_path: Path) -> None:
    config = stopped_run(tmp_path / "run")
    (tmp_path / "run" / RUN).unlink()
    assert RUN in refused(config, tmp_path / "run", resume=True)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage", "altered"])
def test_damaged_checkpoint(damage: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = stopped_run(out)
    checkpoint = out / CHECKPOINT
    good = checkpoint.read_bytes()
    if damage == "missing":
        checkpoint.unlink()
    else:
        middle = len(good) // 2
        checkpoint.write_bytes(
            {
                "empty": b"",
                "cut": good[:middle],
                "garbage": b"garbage" * 100,
                "altered": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
            }[damage]
        )
    before = everything_in(out)
    with pytest.raises(InputError) as problem:
        trained(config, out, resume=True)
    assert "last.pt" in sentence(problem)
    after = everything_in(out)
    assert {k: v for k, v in after.items() if k != RUN} == {
        k: v for k, v in before.items() if k != RUN
    }
    # The state as it was is all that it takes.
    checkpoint.write_bytes(good)
    whole = trained(config, tmp_path / "whole")
    assert bytes_of(trained(config, out, resume=True).folder) == bytes_of(whole.folder)


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "altered"])
def test_damaged_old(damage: str, tmp_path: Path) -> None:
    old = make_old(tmp_path / "old")
    path = old.folder / MODEL
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(good[:-100])
    elif damage == "garbage":
        path.write_bytes(b"garbage")
    else:
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert MODEL in refused(with_old(tiny("fd-lm"), old), tmp_path / "run")
    with pytest.raises(InputError) as problem:
        predict(Run.read(old.folder), split="test", out=tmp_path / "out.npz")
    assert MODEL in sentence(problem)
    assert not (tmp_path / "out.npz").exists()


def test_olds_that_are_none(tmp_path: Path) -> None:
    config = stopped_run(tmp_path / "stopped")
    config = dataclasses.replace(tiny("fd-lm"), old=(str(tmp_path / "stopped"),))
    assert "finished" in refused(config, tmp_path / "run")
    config = dataclasses.replace(tiny("fd-lm"), old=(str(tmp_path / "nothing"),))
    assert RUN in refused(config, tmp_path / "run")
    for text in ("", "[]", "{}", '{"config": 3}', "\0"):
        (tmp_path / "stopped" / RUN).write_text(text)
        config = dataclasses.replace(tiny("fd-lm"), old=(str(tmp_path / "stopped"),))
        refused(config, tmp_path / "run")


def test_loss_that_is_not_finite(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError) as problem:
        trained(tiny(recipe={"learning_rate": 1e30, "optimizer": "sgd"}), out)
    assert "finite" in sentence(problem)
    assert not (out / MODEL).exists()
    assert not (out / CHECKPOINT).exists()
    assert not (out / "predictions").exists()


def test_weights_that_are_not_finite_after_the_last_step(tmp_path: Path) -> None:
    """The one step has a finite loss, and ruins the weights."""
    recipe = {"learning_rate": 1e38, "optimizer": "sgd", "batch_size": 200, "momentum": 0.0}
    config = tiny(epochs=1, recipe={**recipe, "weight_decay": 100.0, "schedule": "constant"})
    with pytest.raises(InputError) as problem:
        trained(config, tmp_path / "run")
    assert "finite" in sentence(problem)
    assert not (tmp_path / "run" / MODEL).exists()


def test_divergence_leaves_the_last_good_state(tmp_path: Path) -> None:
    out = tmp_path / "run"
    recipe = {"optimizer": "sgd", "schedule": "steps", "milestones": (1,), "decay": 1e32}
    config = tiny(epochs=3, recipe=recipe)
    with pytest.raises(InputError) as problem:
        trained(config, out)
    assert "in epoch 2" in sentence(problem)
    before = everything_in(out)
    assert len((out / "history.jsonl").read_text().splitlines()) == 1
    with pytest.raises(InputError):
        trained(config, out, resume=True)
    assert everything_in(out) == before


FULL = """
import json, resource, sys
from pathlib import Path
from tests.training.tiny import tiny, trained
from flipguard.errors import InputError

out = Path(sys.argv[1])
trained(tiny(), out.parent / "before")  # so that all is imported

def attempt(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        trained(tiny(epochs=3), out, resume=True)
        print("done", flush=True)
    except InputError as problem:
        said = str(problem)
        assert "could not (" in said, said
        assert chr(10) not in said, said
        assert not [p for p in out.rglob(".*") if p.is_file()]
        print(Path(said.split(",")[0].split()[-1]).name, flush=True)

for limit in (0, 300, 3_000, 20_000, 10**9):
    attempt(limit)
# As if killed after the last epoch: now there is room for its state, but for nothing more.
document = json.loads((out / "run.json").read_text())
(out / "run.json").write_text(json.dumps({**document, "status": "training"}))
(out / "model.safetensors").unlink()
(out / "predictions" / "test.npz").unlink()
for limit in (3_000, 5_500, 10**9):
    attempt(limit)
"""


def test_full_disk(tmp_path: Path) -> None:
    """No file may grow beyond a limit, which is raised until all fits."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first = ["run.json", "run.json", "last.pt", "last.pt", "done"]
    assert done.stdout.split() == [*first, "model.safetensors", "test.npz", "done"]
    whole = trained(tiny(epochs=3), tmp_path / "whole")
    assert bytes_of(tmp_path / "run") == bytes_of(whole.folder)


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "could not" in refused(tiny(), tmp_path / "file" / "run")


def test_data_that_changed(tmp_path: Path) -> None:
    data = images_file(tmp_path / "images.npz")
    run = trained(tiny(data=data), tmp_path / "run")
    config = stopped_run(tmp_path / "stopped", data=data)
    predict(run, split="train", out=tmp_path / "train.npz")
    with np.load(data) as archive:
        arrays = dict(archive)
    arrays["test_inputs"][0, 0, 0, 0] ^= 1
    np.savez(data, **arrays)
    with pytest.raises(InputError) as problem:
        predict(run, split="test", out=tmp_path / "test.npz")
    assert "changed" in sentence(problem)
    assert not (tmp_path / "test.npz").exists()
    assert "changed" in refused(config, tmp_path / "stopped", resume=True)


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_damaged_data(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    data = images_file(path)
    run = trained(tiny(data=data), tmp_path / "run")
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(good[: len(good) // 2] if damage == "cut" else b"garbage")
    refused(tiny(data=data), tmp_path / "other")
    with pytest.raises(InputError) as problem:
        predict(run, split="test", out=tmp_path / "test.npz")
    sentence(problem)
    assert not (tmp_path / "test.npz").exists()


def test_label_outside_the_classes(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    data = images_file(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    for label in (3, -1):
        arrays["test_targets"] = np.array([label] * 20)
        np.savez(path, **arrays, class_names=np.array(["a", "b", "c"]))
        assert "classes" in refused(tiny(data=data), tmp_path / "run")


def test_predictions_of_no_split(olds: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(InputError) as problem:
        predict(olds["old"], split="magic", out=tmp_path / "out.npz")
    assert "'magic'" in sentence(problem)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as problem:
        predict(olds["old"], split="test", out=tmp_path / "file" / "out.npz")
    sentence(problem)


def test_run_is_read_as_it_was_written(olds: dict[str, Run]) -> None:
    document = json.loads((olds["old"].folder / RUN).read_text())
    assert document["status"] == "finished"
    assert from_dict(document["config"]) == olds["old"].config
    assert as_dict(olds["old"].config)["model"] == "mlp:hidden=16"


def test_a_process_without_a_sample(tmp_path: Path) -> None:
    config = tiny(recipe={"batch_size": 2}, machine={"processes": 3})
    assert "every process" in refused(config, tmp_path / "run")


def test_a_preset_that_is_none():
    with pytest.raises(InputError, match=r"Expected `recipe\.preset` to be one of pct-imagenet, "):
        from_dict({"recipe": {"preset": "imagenet"}})


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ({"cuda_graphs": "on"}, "but got the device cpu; leave it at auto"),
        ({"precision": "16-mixed"}, "on a CPU, but got 16-mixed, which needs a GPU"),
        ({"checkpointing": True, "compile": "parts"}, "but got `machine.compile=parts`; leave one"),
    ],
)
def test_what_a_machine_cannot_do(machine: dict[str, Any], told: str, tmp_path: Path) -> None:
    config = tiny("none", model="resnet20:width=4", data=images_file(tmp_path / "images.npz"))
    config = dataclasses.replace(config, machine=Machine(device="cpu", **machine))
    assert told in refused(config, tmp_path / "runs" / "run")


def test_dropout_has_one_rate() -> None:
    model = "mlp:hidden=16,dropout=0.2"
    with pytest.raises(InputError, match=r"mlp:hidden=16,dropout=0\.2 has 0\.2, and `options\.rat"):
        complete_config(tiny("dropout", model=model, options={"rate": 0.7}))
    _, config = complete_config(tiny("dropout", model=model))
    assert (config.model, config.options["rate"]) == (model, 0.2)
    assert complete_config(config)[1] == config
    assert complete_config(tiny("dropout", model="mlp"))[1].model == "mlp:dropout=0.1"
    for model in ("torchvision:alexnet", "timm:resnet18", "hf:models/a=b"):
        _, config = complete_config(tiny("dropout", model=model, options={"preset": "paper"}))
        assert config.model == f"{model}:dropout=0.2"
        assert complete_config(config)[1] == config
    with pytest.raises(InputError, match="can be set, but got 'python:nets:make'; choose such"):
        complete_config(tiny("dropout", model="python:nets:make"))
