"""Fused networks side by side: what they compute is what one of all members computes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flipguard.errors import InputError
from flipguard.fusion import checkpoint_segments, compile_parts, fuse, tune
from flipguard.fusion.beside import Beside
from flipguard.training.folder import MODEL, Run
from flipguard.training.fusing import CannotFuse
from flipguard.training.workshop import Together, _refuse_on_gpu
from tests.fusion.nets import apart, drawn, members_of
from tests.training.tiny import tiny, trained

SHAPE = (3, 8, 8)
THREE = {"members": 3}
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("streams", [2, 3, 5, 9])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_members_are_those_of_one_network(streams: int, shared: bool, device: str) -> None:
    members = [m.to(device) for m in members_of("resnet20:width=4", SHAPE, count=5)]
    one = fuse(members).train()
    several = fuse(members, streams=streams).train()
    assert isinstance(several, Beside)
    assert several.count == 5
    assert len(several.parts()) == {2: 2, 3: 3, 5: 5, 9: 5}[streams]
    inputs = drawn((6, *SHAPE) if shared else (5, 6, *SHAPE)).to(device)
    target = torch.arange(6, device=device).expand(5, 6)
    for fused in (one, several):
        tune(fused, inputs)
        Together(fused, 0.1)(inputs, target).sum().backward()
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
    assert twin.finite().tolist() == [False, False, True]
    assert several.finite().tolist() == [True] * 3
    assert several.state_dict().keys() == twin.state_dict().keys()
    inputs = drawn((4, 40))
    assert twin(inputs).isnan().any(2).any(1).tolist() == [True, True, False]
    assert not several(inputs).isnan().any()


def test_each_computes_again_and_is_compiled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    members = members_of("resnet20:width=4", SHAPE)
    plain, several = fuse(members).train(), fuse(members, streams=2).train()
    checkpoint_segments(several)
    inputs = drawn((3, 4, *SHAPE))
    assert apart(several(inputs), plain(inputs)) < 1e-9
    from flipguard.fusion import regions

    called = []

    def between(*args: object) -> torch.Tensor:
        called.append(args)
        return regions.between(*args)

    monkeypatch.setattr(regions, "_between", lambda: between)
    compiled = fuse(members, streams=2).train()
    compile_parts(compiled)
    again = fuse(members).train()
    assert apart(compiled(inputs), again(inputs)) < 1e-9
    assert called


def test_a_run_on_streams_ends_in_the_same_members(tmp_path: Path) -> None:
    """And goes on only as it was begun."""
    found = {}
    for streams in (1, 2):
        machine = {"fuse": "on", "streams": streams, "precision": "64-true"}
        trained(tiny("ensemble", options=THREE, machine=machine), tmp_path / str(streams) / "run")
        members = sorted((tmp_path / str(streams) / "members").iterdir())
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
    with pytest.raises(InputError, match=r"begun, on 2 streams, but got 1; set `machine.streams="):
        go(1, None, resume=True)
    assert go(2, None, resume=True).finished


def test_wide_members_are_side_by_side_where_there_are_streams() -> None:
    wide, gpu = members_of("conv2d:width=64", SHAPE), torch.device("cuda")
    two = tiny("elodi", machine={"streams": 2})
    with pytest.raises(CannotFuse, match="channels to gain from being one network") as caught:
        _refuse_on_gpu(two, fuse(wide, streams=2), gpu)
    assert caught.value.fitting == 2
    _refuse_on_gpu(two, fuse(wide[:2], streams=2), gpu)
