"""Fused networks side by side: what they compute is what one of all members computes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flipguard.acceleration import memory, regions
from flipguard.acceleration.memory import checkpoint_segments
from flipguard.acceleration.regions import compile_parts
from flipguard.errors import InputError
from flipguard.fusion import fuse, tune
from flipguard.fusion.fused import FusedStreams
from flipguard.references import Ensemble
from flipguard.runs.folder import CHECKPOINT, MODEL, Run
from flipguard.training.fused_group import CannotFuse
from flipguard.training.group_setup import _refuse_on_gpu
from flipguard.training.teachers import teacher_layout, teachers
from flipguard.training.trainee import GroupTrainee
from tests.fusion.nets import apart, attending, drawn, members_of
from tests.training.tiny import tiny, trained

SHAPE = (3, 8, 8)
THREE = {"members": 3}
SIZES = {2: [2, 3], 3: [1, 2, 2], 5: [1] * 5, 9: [1] * 5}
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("streams", [2, 3, 5, 9])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_members_are_those_of_one_network(streams: int, shared: bool, device: str) -> None:
    members = [m.to(device) for m in members_of("resnet20:width=4", SHAPE, count=5)]
    one = fuse(members).train()
    several = fuse(members, streams=streams).train()
    assert isinstance(several, FusedStreams)
    assert several.count == 5
    assert [part.count for part in several.parts()] == SIZES[streams]
    inputs = drawn((6, *SHAPE) if shared else (5, 6, *SHAPE)).to(device)
    target = torch.arange(6, device=device).expand(5, 6)
    for fused in (one, several):
        tune(fused, inputs)
        GroupTrainee(fused, 0.1)(inputs, target)["task"].sum().backward()
    assert apart(several.gradient_norms(), one.gradient_norms()) < 1e-9
    for fused in (one, several):
        fused.clip(0.5)
    mine = [p.grad for part in several.parts() for p in part.parameters()]
    sizes = [p.grad.square().sum().item() for p in one.parameters()]
    assert sum(g.square().sum().item() for g in mine) == pytest.approx(sum(sizes), rel=1e-9)
    with torch.no_grad():
        for fused in (one, several):
            for parameter in fused.parameters():
                parameter.sub_(parameter.grad)
    for state, expected in zip(several.split(), one.split(), strict=True):
        assert list(state) == list(expected)
        for name, tensor in expected.items():
            assert apart(state[name], tensor) < 1e-9, name
    assert several.finite().tolist() == [True] * 5
    one.eval()
    several.eval()
    assert apart(several(inputs), one(inputs)) < 1e-9


def test_a_copy_is_one_of_its_own() -> None:
    several = fuse(members_of("mlp:hidden=8", (40,)), streams=2)
    twin = copy.deepcopy(several)
    with torch.no_grad():
        next(twin.parameters()).fill_(torch.nan)
    assert twin.finite().tolist() == [False, True, True]
    assert several.finite().tolist() == [True] * 3
    assert several.state_dict().keys() == twin.state_dict().keys()
    inputs = drawn((4, 40))
    assert twin(inputs).isnan().any(2).any(1).tolist() == [True, False, False]
    assert not several(inputs).isnan().any()


def test_each_computes_again_and_is_compiled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    members = members_of("resnet20:width=4", SHAPE)
    plain, several = fuse(members).train(), fuse(members, streams=2).train()
    checkpoint_segments(several)
    inputs, entered = drawn((3, 4, *SHAPE)), []
    whole = memory._contexts
    monkeypatch.setattr(memory, "_contexts", lambda s: entered.append(s) or whole(s))
    for fused in (plain, several):
        fused(inputs).square().sum().backward()
    assert len(entered) >= 2 * len(several.parts())
    assert apart(several.gradient_norms(), plain.gradient_norms()) < 1e-9
    for state, expected in zip(several.split(), plain.split(), strict=True):
        assert all(apart(state[name], tensor) < 1e-9 for name, tensor in expected.items())

    called = []

    def between(*args: object) -> torch.Tensor:
        called.append(args)
        return regions.norm_add_relu(*args)

    monkeypatch.setattr(regions, "_between", lambda: between)
    compiled = fuse(members, streams=2).train()
    compile_parts(compiled)
    again = fuse(members).train()
    assert apart(compiled(inputs), again(inputs)) < 1e-9
    assert called


def test_a_run_on_streams_ends_in_the_same_members(tmp_path: Path) -> None:
    found = {}
    for streams in (1, 2):
        machine = {"fuse": "on", "streams": streams, "precision": "64-true"}
        trained(tiny("ensemble", options=THREE, machine=machine), tmp_path / str(streams) / "run")
        members = [path.parent for path in (tmp_path / str(streams) / "members").rglob("run.json")]
        found[streams] = {run.name: load_file(run / MODEL) for run in members}
    assert len(found[1]) == 3
    assert found[1].keys() == found[2].keys()
    for name, weights in found[1].items():
        for key, tensor in weights.items():
            assert apart(found[2][name][key], tensor) < 1e-9


def test_members_go_on_as_they_were_begun(tmp_path: Path) -> None:
    def go(streams: int, minutes: float | None, *, resume: bool = False) -> Run:
        machine = {"fuse": "on", "streams": streams, "minutes": minutes}
        config = tiny("ensemble", options=THREE, machine=machine)
        return trained(config, tmp_path / "run", resume=resume)

    assert not go(2, 1e-9).finished
    (state,) = (tmp_path / "members").glob(f".together-*/{CHECKPOINT}")
    begun = set(torch.load(state, weights_only=True)["members"])
    assert {name.partition(".")[0] for name in begun} == {"0", "1"}
    assert go(1, None, resume=True).finished  # another machine may go on with it


def test_there_is_one_network_at_least() -> None:
    with pytest.raises(InputError, match="`streams` to be at least 1, but got 0"):
        fuse(members_of("mlp:hidden=8", (40,)), streams=0)


def test_only_training_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere batches have many sizes."""
    several = fuse(members_of("mlp:hidden=8", (40,)), streams=2).train()
    called = []
    for part in several.parts():
        plain = part._call_impl
        monkeypatch.setattr(
            part, "_compiled_call_impl", lambda *args, plain=plain: called.append(1) or plain(*args)
        )
    several(drawn((4, 40)))
    assert len(called) == 2
    several.eval()
    several.forward(drawn((4, 40)))
    assert len(called) == 2


def test_wide_members_are_side_by_side_where_there_are_streams() -> None:
    wide, gpu = members_of("conv2d:width=64", SHAPE), torch.device("cuda")
    two = tiny("elodi", machine={"streams": 2})
    with pytest.raises(CannotFuse, match="channels, which are faster in one network") as caught:
        _refuse_on_gpu(two, fuse(wide, streams=2), gpu)
    assert caught.value.fitting == caught.value.streams == 2
    _refuse_on_gpu(two, fuse(wide[:2], streams=2), gpu)


def test_wide_members_are_four_at_a_time_unless_it_is_said() -> None:
    wide, gpu = members_of("conv2d:width=64", SHAPE), torch.device("cuda")
    with pytest.raises(CannotFuse) as caught:
        _refuse_on_gpu(tiny("elodi"), fuse(wide), gpu)
    assert caught.value.fitting == caught.value.streams == 4
    with pytest.raises(CannotFuse) as caught:
        _refuse_on_gpu(tiny("elodi", machine={"streams": 1}), fuse(wide), gpu)
    assert caught.value.fitting == 1


@pytest.mark.parametrize(
    ("model", "machine", "asked"),
    [
        ("conv2d:width=8", {}, (1, False)),
        ("conv2d:width=8", {"streams": 2}, (2, False)),
        ("conv2d:width=8", {"streams": 2, "compile": "whole"}, (1, False)),
        ("conv2d:width=64", {}, (4, True)),
        ("conv2d:width=64", {"streams": 2}, (2, True)),
        ("conv2d:width=64", {"streams": 1}, None),
        ("conv2d:width=64", {"compile": "whole"}, None),
        ("conv2d:width=64", {"fuse": "on"}, (1, False)),
        ("conv2d:width=8", {"fuse": "off"}, None),
    ],
)
def test_how_teachers_are_asked(
    model: str, machine: dict[str, Any], asked: tuple[int, bool] | None
) -> None:
    models = members_of(model, SHAPE)[:3]
    told = tiny("elodi", machine=machine).machine
    assert teacher_layout(told, torch.device("cuda"), models) == asked
    assert teacher_layout(told, torch.device("cuda"), models[:1]) is None


def test_transformers_are_not_asked_apart() -> None:
    """Mapped over one member each, they would be slower than they are by themselves."""
    with pytest.raises(InputError, match="on several streams, but got some whose calls are mapped"):
        teachers(attending(), example=torch.zeros(1, 5, 8), streams=2, apart=True)


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_teachers_apart_say_what_an_ensemble_says(streams: int) -> None:
    models = [model.double().eval() for model in members_of("conv2d:width=4", SHAPE)]
    batch = drawn((6, *SHAPE))
    asked = teachers(models, streams=streams, apart=True)
    assert apart(asked(batch), Ensemble(models)(batch)) < 1e-12


def test_more_networks_than_streams() -> None:
    members = members_of("mlp:hidden=8", (40,), count=5)
    fused = fuse(members, streams=2, networks=5)
    assert isinstance(fused, FusedStreams)
    assert [part.count for part in fused.parts()] == [1] * 5
    assert fused._at_most == copy.deepcopy(fused)._at_most == 2
    assert apart(fused(drawn((3, 40))), fuse(members)(drawn((3, 40)))) < 1e-12
