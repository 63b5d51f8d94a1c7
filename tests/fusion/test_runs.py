"""Whole runs whose members are one network, against the same runs with members one by one."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from flipguard.cli.commands import app
from flipguard.errors import InputError
from flipguard.fusion import fuse
from flipguard.runs.folder import CHECKPOINT, MODEL
from flipguard.runs.history import HISTORY, TIMING
from flipguard.training import Config, Run, Seeds, group_setup, train
from flipguard.training.fused_group import CannotFuse, FusedGroup
from flipguard.training.members import member_config, member_folder
from tests.fusion.nets import apart, attending, members_of
from tests.training.tiny import (
    bytes_of,
    everything_in,
    history_of,
    images_file,
    tiny,
    trained,
    with_old,
)

ROOT = Path(__file__).resolve().parents[2]
THREE = {"members": 3}


@pytest.fixture(autouse=True)
def code_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some configurations name networks of this module."""
    monkeypatch.setenv("FLIPGUARD_ALLOW_CODE", "1")


class Sorts(nn.Module):
    """Does something else for every input: no graph, and nothing to map."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(40, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs) if inputs.sum().item() > 0 else -self.head(inputs)


def sorts(*, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    return Sorts(classes)


def fused(method: str = "elodi", fuse: str = "on", **changes: Any) -> Config:
    """A run of three members, in float64."""
    options = {**THREE, **changes.pop("options", {})}
    machine = {"fuse": fuse, "precision": "64-true", **changes.pop("machine", {})}
    return tiny(method, options=options, machine=machine, **changes)


def members_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "members").glob("*/run.json"))


def files_in(folder: Path) -> set[str]:
    return {name for name in everything_in(folder) if name != CHECKPOINT}


def same_weights(first: Path, second: Path, within: float) -> None:
    one, other = load_file(first / MODEL), load_file(second / MODEL)
    assert list(one) == list(other)
    for name, tensor in other.items():
        assert one[name].dtype == tensor.dtype
        assert apart(one[name], tensor) <= within, name


def same_history(first: Path, second: Path) -> None:
    rows, others = history_of(first), history_of(second)
    assert len(rows) == len(others)
    for row, other in zip(rows, others, strict=True):
        assert list(row) == list(other)
        assert row["losses"] == pytest.approx(other["losses"], abs=1e-6)
        assert {**row, "losses": 0} == {**other, "losses": 0}


def same_document(first: Path, second: Path) -> None:
    one, other = (json.loads((folder / "run.json").read_text()) for folder in (first, second))
    assert list(one) == list(other)
    for document in (one, other):
        document.pop("weights")
        document["config"].pop("machine")
    assert one == other


MODELS = [
    ("mlp:hidden=16", {"augment": "shift-scale-noise", "label_smoothing": 0.1}),
    ("conv1d:width=4", {"clip": 0.3, "accumulate": 2, "batch_size": 25}),
    ("resnet20:width=4", {"optimizer": "sgd", "batch_size": 15, "augment": "crop-flip:padding=2"}),
]


@pytest.mark.parametrize(("model", "recipe"), MODELS)
def test_members_and_student_are_those_of_a_loop(
    model: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"model": model, "recipe": recipe, "epochs": 3}
    if model.startswith("resnet"):
        changes["data"] = images_file(tmp_path / "images.npz")
    for way in ("on", "off"):
        assert trained(fused(fuse=way, **changes), tmp_path / way / "run").finished
    on, off = tmp_path / "on", tmp_path / "off"
    assert [run.name for run in members_in(on)] == [run.name for run in members_in(off)]
    for first, second in zip(members_in(on), members_in(off), strict=True):
        same_weights(first, second, 1e-9)
        same_history(first, second)
        same_document(first, second)
        assert files_in(first) == files_in(second)
        # It was trained together: there is no state of its own.
        assert not (first / CHECKPOINT).exists()
        keys = [
            set(json.loads((run / TIMING).read_text().splitlines()[0])) for run in (first, second)
        ]
        assert keys[0] == keys[1]
        logits = [np.load(run / "predictions" / "test.npz")["logits"] for run in (first, second)]
        np.testing.assert_allclose(*logits, atol=1e-6)
    same_weights(on / "run", off / "run", 1e-7)
    same_history(on / "run", off / "run")
    assert all(load_file(run / MODEL) for run in members_in(on))
    first, second = (load_file(run / MODEL) for run in members_in(on)[:2])
    assert any(apart(first[name], second[name]) > 1e-3 for name in first)


def test_later_students_use_fused_members_again(tmp_path: Path) -> None:
    trained(fused(), tmp_path / "first")
    held = everything_in(tmp_path / "members")
    assert trained(fused(options={"alpha": 0.5}), tmp_path / "second").finished
    assert trained(fused("ensemble", fuse="off"), tmp_path / "paragon").finished
    assert everything_in(tmp_path / "members") == held
    # One more member is one more run, alone: there is nobody to train it with.
    assert trained(fused(options={"members": 4}), tmp_path / "third").finished
    assert held.items() <= everything_in(tmp_path / "members").items()
    assert len(members_in(tmp_path)) == 4


def hurried(config: Config) -> Config:
    return dataclasses.replace(config, machine=dataclasses.replace(config.machine, minutes=1e-9))


@pytest.mark.parametrize("model", ["mlp:hidden=16,dropout=0.5", "resnet20:width=4"])
def test_stopped_and_resumed_equals_uninterrupted(model: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": model, "epochs": 3, "machine": {"precision": "32-true"}}
    if model.startswith("resnet"):
        changes["data"] = images_file(tmp_path / "images.npz")
        changes["recipe"] = {"optimizer": "sgd", "batch_size": 20}
    config = fused(**changes)
    trained(config, tmp_path / "whole" / "run")
    stopped = tmp_path / "stopped"
    for _ in range(2):
        assert trained(hurried(config), stopped / "run", resume=True).status == "stopped"
    states = list(stopped.rglob("last.pt"))
    assert len(states) == 1
    assert torch.load(states[0], weights_only=True)["epoch"] == 2
    # What was begun together goes on together, whatever is asked for now.
    other = dataclasses.replace(config.machine, fuse="off")
    assert trained(
        dataclasses.replace(config, machine=other), stopped / "run", resume=True
    ).finished
    for first, second in zip(members_in(tmp_path / "whole"), members_in(stopped), strict=True):
        assert first.name == second.name
        assert bytes_of(first) == bytes_of(second)
        assert len(bytes_of(first)) == 3
    assert not list(stopped.rglob(".together*"))
    # Two runs of one configuration are equal.
    trained(config, tmp_path / "again" / "run")
    assert bytes_of(tmp_path / "again" / "run") == bytes_of(tmp_path / "whole" / "run")


def kill(folder: Path, moments: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fusion.killing", str(folder), str(moments), "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{moments} of {moments} equal\n", done.stdout + done.stderr


def test_killed_at_two_moments(tmp_path: Path) -> None:
    kill(tmp_path, 2)


@pytest.mark.slow
def test_killed_at_twenty_moments(tmp_path: Path) -> None:
    kill(tmp_path, 20)


def test_a_member_that_was_begun_alone_goes_on_alone(tmp_path: Path) -> None:
    config = fused(epochs=3)
    out = tmp_path / "run"
    assert trained(hurried(fused(fuse="off", epochs=3)), out).status == "stopped"
    (begun,) = members_in(tmp_path)
    assert (begun / CHECKPOINT).exists()
    assert trained(config, out, resume=True).finished
    alone = [run.name for run in members_in(tmp_path) if (run / CHECKPOINT).exists()]
    assert alone == [begun.name]
    # To its end, from the state that it had.
    assert torch.load(begun / CHECKPOINT, weights_only=True)["epoch"] == 3
    assert len(members_in(tmp_path)) == 3


def test_members_in_groups(tmp_path: Path) -> None:
    lines: list[str] = []
    config = fused(options={"members": 5}, machine={"fuse_chunk": 2})
    train(config, tmp_path / "groups" / "run", report=lines.append)
    assert [line for line in lines if "as one network" in line] == [
        "2 members as one network (packed)"
    ] * 2
    trained(fused(options={"members": 5}, fuse="off"), tmp_path / "off" / "run")
    pairs = zip(members_in(tmp_path / "groups"), members_in(tmp_path / "off"), strict=True)
    assert sum((first / CHECKPOINT).exists() for first in members_in(tmp_path / "groups")) == 1
    for first, second in pairs:
        same_weights(first, second, 1e-9)


def test_one_order_for_all_members(tmp_path: Path) -> None:
    recipe = {"member_order": "shared", "augment": "shift-scale-noise"}
    for way in ("on", "off"):
        trained(fused(fuse=way, recipe=recipe), tmp_path / way / "run")
    for first, second in zip(
        members_in(tmp_path / "on"), members_in(tmp_path / "off"), strict=True
    ):
        same_weights(first, second, 1e-9)
    seeds = [member_config(fused(recipe=recipe), index).seeds for index in range(3)]
    for source in ("order", "augment"):
        assert len({one.of(source, 4) for one in seeds}) == 1
    for source in ("init", "dropout"):
        assert len({one.of(source) for one in seeds}) == 3
    # The seeds of a member decide its folder; who asked for it does not.
    first = member_config(fused(recipe=recipe), 0)
    asked = dataclasses.replace(fused(recipe={"augment": recipe["augment"]}), seeds=first.seeds)
    named = dataclasses.replace(asked, method="none", options={})
    assert member_folder(named, tmp_path) == member_folder(first, tmp_path)
    # Members with orders of their own are other members.
    trained(fused(recipe={"augment": "shift-scale-noise"}), tmp_path / "on" / "other")
    assert len(members_in(tmp_path / "on")) == 6


@pytest.mark.parametrize("method", ["none", "ensemble"])
def test_members_start_from_old_weights(method: str, tmp_path: Path) -> None:
    """All from those of one model, or each from those of a member of old's."""
    options = THREE if method == "ensemble" else {}
    config = tiny(method, options=options, seeds=Seeds(seed=7))
    old = trained(config, tmp_path / "olds" / "old")
    student = "elodi" if method == "none" else "ensemble"
    for way in ("on", "off"):
        config = fused(student, fuse=way, fine_tune=True, machine={"precision": "32-true"})
        trained(with_old(config, old), tmp_path / way / "run")
    for first, second in zip(
        members_in(tmp_path / "on"), members_in(tmp_path / "off"), strict=True
    ):
        same_weights(first, second, 1e-6)
        same_history(first, second)
        assert "negative_flip_rate" in (first / HISTORY).read_text()


def test_activations_that_are_computed_again_change_nothing(tmp_path: Path) -> None:
    data = images_file(tmp_path / "images.npz")
    changes = {"model": "resnet20:width=4", "data": data, "recipe": {"batch_size": 20}}
    trained(fused(**changes), tmp_path / "all" / "run")
    trained(fused(machine={"checkpointing": True}, **changes), tmp_path / "again" / "run")
    for first, second in zip(
        members_in(tmp_path / "all"), members_in(tmp_path / "again"), strict=True
    ):
        assert (first / MODEL).read_bytes() == (second / MODEL).read_bytes()


def test_a_cpu_trains_members_one_by_one_unless_told(tmp_path: Path) -> None:
    trained(fused(fuse="auto"), tmp_path / "run")
    assert all((run / CHECKPOINT).exists() for run in members_in(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "python:tests.fusion.test_runs:sorts"}, "has a graph that depends on its input"),
        ({"machine": {"fuse_chunk": 0}}, "`machine.fuse_chunk` to be from 1 on"),
        ({"machine": {"fuse": "always"}}, "to be one of 'auto', 'on', 'off'"),
    ],
)
def test_what_cannot_be_one_network(changes: Any, said: str, tmp_path: Path) -> None:
    from flipguard.runs.config import as_dict, from_dict

    with pytest.raises(InputError) as refusal:
        trained(from_dict(as_dict(fused(**changes))), tmp_path / "run")
    assert said in str(refusal.value)
    assert re.fullmatch(r"Expected [^\n]*\.", str(refusal.value))
    assert not list(tmp_path.rglob(MODEL))


def test_members_that_diverge_say_which(tmp_path: Path) -> None:
    config = fused(recipe={"learning_rate": 1e38, "optimizer": "sgd"})
    with pytest.raises(InputError, match=r"of members? 1.* in epoch 1; lower the learning rate"):
        trained(config, tmp_path / "run")


def test_the_command_says_it_in_one_sentence(tmp_path: Path) -> None:
    given = ["train", "--method", "elodi", "--data", tiny().data, "--set", "recipe.epochs=1"]
    given += ["--set", "options.members=2", "--set", "machine.device=cpu"]
    ran = CliRunner().invoke(
        app, [*given, "--fuse", "on", "--model", "mlp:hidden=8", "--out", str(tmp_path / "run")]
    )
    assert ran.exit_code == 0, ran.output
    assert "2 members as one network (packed)" in ran.output
    assert Run.read(tmp_path / "run").config.machine.fuse == "on"
    assert Run.read(tmp_path / "run").finished
    seeds = {Run.read(run).config.seeds.seed for run in members_in(tmp_path)}
    assert len(seeds) == 2
    assert Seeds(seed=0).seed not in seeds


def too_many(
    config: Config,
    member: nn.Module,
    example: Tensor,
    count: int,
    device: Any,
    *,
    way_out: str | None,
) -> None:
    if count > 2 and way_out is None:
        raise CannotFuse(f"Expected {count} members to fit, but 2 do; use fewer.", fitting=2)


def test_where_memory_is_short_as_many_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flipguard.training.group_setup.refuse_memory", too_many)
    monkeypatch.setattr("flipguard.training.strategies.fuses", lambda *_: True)
    lines: list[str] = []
    train(fused(fuse="auto", options={"members": 4}), tmp_path / "auto", report=lines.append)
    assert sum("2 members as one network" in line for line in lines) == 2
    assert any(line.startswith("at most 2 members at once: Expected") for line in lines)
    with pytest.raises(InputError, match="Expected 5 members to fit, but 2 do"):
        trained(fused(options={"members": 5}, seeds=Seeds(seed=1)), tmp_path / "on")


def test_a_begun_group_that_no_longer_fits_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = fused(options={"members": 3}, machine={"minutes": 1e-9})
    assert not trained(short, tmp_path / "run").finished
    (begun,) = (tmp_path / "members").rglob(".together-*")
    real = group_setup.refuse_memory

    def on_a_small_gpu(*given: Any, way_out: str | None) -> None:
        real(*given[:4], torch.device("cuda"), way_out=way_out)

    monkeypatch.setattr(group_setup, "refuse_memory", on_a_small_gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    for way in ("on", "auto", "off"):
        config = fused(fuse=way, options={"members": 3})
        with pytest.raises(InputError, match=rf"remove {begun} to start the members again\.$"):
            trained(config, tmp_path / "run", resume=True)
    shutil.rmtree(begun)
    monkeypatch.setattr(group_setup, "refuse_memory", real)
    assert trained(fused(options={"members": 3}), tmp_path / "run", resume=True).finished


@pytest.mark.parametrize(
    ("count", "machine", "networks"),
    [
        (2, {}, ["2 members as 2"]),
        (4, {}, ["4 members as 4"]),
        (5, {}, ["4 members as 4"]),  # and one alone
        (6, {}, ["4 members as 4", "2 members as 2"]),
        (4, {"fuse_chunk": 2}, ["2 members as 2", "2 members as 2"]),
        (4, {"streams": 2}, ["2 members as 2", "2 members as 2"]),
        (2, {"streams": 1}, []),
    ],
)
def test_wide_members_have_a_stream_each(
    count: int,
    machine: dict[str, Any],
    networks: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a GPU would decide: here its refusals are asked, and its streams are none."""
    real = group_setup._refuse_on_gpu
    monkeypatch.setattr("flipguard.training.strategies.fuses", lambda *_: True)
    monkeypatch.setattr(group_setup, "WIDEST", 4)
    monkeypatch.setattr(
        group_setup,
        "_refuse_on_gpu",
        lambda config, made, _, *, insisted: real(
            config, made, torch.device("cuda"), insisted=insisted
        ),
    )
    data = images_file(tmp_path / "images.npz")
    config = fused(
        fuse="auto", model="conv2d:width=2", data=data, options={"members": count}, machine=machine
    )
    lines: list[str] = []
    assert train(config, tmp_path / "run", report=lines.append).finished
    told = [line.split(" networks")[0] for line in lines if "side by side" in line]
    assert told == networks
    assert any("members one by one" in line for line in lines) == (not networks)
    assert len(members_in(tmp_path)) == count


def test_a_network_that_cannot_be_fused_is_trained_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flipguard.training.strategies.fuses", lambda *_: True)
    lines: list[str] = []
    config = fused(fuse="auto", model="python:tests.fusion.test_runs:sorts")
    assert train(config, tmp_path / "run", report=lines.append).finished
    assert any(line.startswith("members one by one: Expected a network") for line in lines)


def test_members_that_do_not_fit_or_do_not_gain_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    (member,) = members_of("resnet20:width=16", (3, 16, 16), count=1)
    example, config = torch.zeros(2, 3, 16, 16), fused(recipe={"batch_size": 500})
    for free, said in (
        (2**30, r"set `machine.fuse_chunk=\d`"),
        (2**20, "use `machine.fuse=off`"),
        (2**40, None),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, free))
        if said is None:
            group_setup.refuse_memory(config, member.float(), example, 8, gpu)
        else:
            with pytest.raises(CannotFuse, match=rf"Expected 8 members at once to fit .*; {said}"):
                group_setup.refuse_memory(config, member.float(), example, 8, gpu)
    wide = fuse(members_of("conv2d:width=64", (3, 8, 8), count=2))
    with pytest.raises(CannotFuse, match=r"up to 128 channels, .* but got 256"):
        group_setup._refuse_on_gpu(fused(fuse="auto"), wide, gpu)
    group_setup._refuse_on_gpu(fused(fuse="on"), wide, gpu)
    group_setup._refuse_on_gpu(fused(fuse="auto"), wide, torch.device("cpu"))
    mapped = fuse(attending(), example=torch.zeros(1, 5, 8))
    with pytest.raises(CannotFuse, match=r"one whose calls are mapped; use `machine.fuse=on`"):
        group_setup._refuse_on_gpu(fused(fuse="auto"), mapped, gpu)
    half = {"precision": "bf16-mixed", "fuse": "on"}
    with pytest.raises(CannotFuse, match=r"to be compiled in bf16-mixed, but got `machine.compile"):
        group_setup._refuse_on_gpu(tiny("elodi", machine=half), mapped, gpu)
    group_setup._refuse_on_gpu(tiny("elodi", machine={**half, "compile": "parts"}), mapped, gpu)
    narrow = fuse(members_of("conv2d:width=16", (3, 8, 8), count=2))
    group_setup._refuse_on_gpu(fused(fuse="auto"), narrow, gpu)


def test_what_a_killed_process_was_removing_is_removed(tmp_path: Path) -> None:
    config = fused()
    folders = [member_folder(member_config(config, i), tmp_path / "run") for i in range(3)]
    (folders[0].parent / ".together-0123456789abcdef").mkdir(parents=True)
    group = FusedGroup(configs=(config,) * 3, folders=tuple(folders))
    group.begin()
    assert trained(config, tmp_path / "run").finished
    assert len(members_in(tmp_path)) == 3


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    config = fused(epochs=3)
    trained(hurried(config), tmp_path / "run")
    (state,) = tmp_path.rglob("last.pt")
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 0xFF
    state.write_bytes(content)
    with pytest.raises(InputError, match=r"to resume from, but it is damaged .*; rem"):
        trained(config, tmp_path / "run", resume=True)
