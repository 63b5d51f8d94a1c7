"""The way of a GPU: fused members on it, captured steps, memory. The first test needs none."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flipguard.fusion import CapturedStep, fuse, needs, teachers
from flipguard.fusion.graphs import WARM_UP
from flipguard.references import Ensemble
from flipguard.training import Config, Recipe
from flipguard.training.workshop import Together, optimizer_of
from tests.fusion.nets import apart, members_of, train_alone
from tests.training.tiny import history_of, images_file, tiny, trained

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SHAPE = (3, 16, 16)


def test_a_step_is_captured_once_and_then_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read and written by a replay, with a graph that is made of Python."""
    seen: list[tuple[str, list[float]]] = []
    state = {"capturing": False}

    class Graph:
        def replay(self) -> None:
            inputs, target = self.held
            seen.append(("replayed", [inputs.item(), target.item()]))

    class Stream:
        def wait_stream(self, _: object) -> None: ...

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        state["capturing"], state["graph"] = True, graph
        yield
        state["capturing"] = False

    def step(inputs: Tensor, target: Tensor) -> None:
        if state["capturing"]:
            state["graph"].held = (inputs, target)
        else:
            seen.append(("run", [inputs.item(), target.item()]))

    for name, fake in (("Stream", Stream), ("CUDAGraph", Graph), ("graph", capture)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    captured = CapturedStep(step)
    for number in range(WARM_UP + 3):
        captured(torch.tensor(float(number)), torch.tensor(number + 10))
    assert [values for _, values in seen] == [[n, n + 10] for n in range(WARM_UP + 3)]
    assert [how for how, _ in seen] == ["run"] * WARM_UP + ["replayed"] * 3


def batches_of(count: int, members: int) -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(members, 8, *SHAPE, generator=drawn).cuda(),
            torch.randint(0, 10, (members, 8), generator=drawn).cuda(),
        )
        for _ in range(count)
    ]


def on_cuda(spec: str) -> list:
    return [m.float().cuda().to(memory_format=torch.channels_last) for m in members_of(spec, SHAPE)]


@on_gpu
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("spec", ["conv2d:width=4", "resnet20:width=4", "lenet5"])
def test_captured_members_are_those_of_a_loop(spec: str, kind: Any) -> None:
    members, batches = on_cuda(spec), batches_of(WARM_UP + 8, 3)
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    rate = 3e-3 if kind == "adamw" else 0.02
    config = Config(recipe=Recipe(optimizer=kind, learning_rate=rate, weight_decay=0.05))
    optimizer = optimizer_of(config, fused, torch.device("cuda"), captured=True)
    on_device = torch.zeros((), device="cuda")
    for group in optimizer.param_groups:
        group["lr"] = on_device
    trainee = Together(fused, 0.1)

    def step(inputs: Tensor, target: Tensor) -> None:
        trainee(inputs, target).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    captured = CapturedStep(step)
    for inputs, target in batches:
        on_device.fill_(rate)
        captured(inputs, target)
    for index, state in enumerate(fused.split()):
        mine = [(inputs[index], target[index]) for inputs, target in batches]
        alone = train_alone(members[index], mine, kind=kind, smoothing=0.1)
        for name, tensor in alone.state_dict().items():
            assert apart(state[name], tensor) < 2e-3 * max(tensor.abs().max().item(), 1), name


@on_gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_on_a_gpu(compiled: bool, precision: Any, tmp_path: Path) -> None:
    data = images_file(tmp_path / "images.npz")
    recipe = {"optimizer": "sgd", "batch_size": 5, "augment": "crop-flip:padding=2"}
    found = {}
    for fuse_ in ("auto", "off"):
        machine = {"device": "cuda", "precision": precision, "fuse": fuse_}
        if fuse_ == "auto":
            machine["compile"] = compiled
        config = tiny(
            "elodi", model="resnet20:width=4", data=data, recipe=recipe, machine=machine, epochs=3
        )
        found[fuse_] = trained(config, tmp_path / fuse_ / "run").folder
    rows = zip(history_of(found["auto"]), history_of(found["off"]), strict=True)
    for row, other in rows:
        assert row["losses"] == pytest.approx(other["losses"], rel=0.1, abs=0.02)
    members = [sorted((tmp_path / way / "members").iterdir()) for way in ("auto", "off")]
    assert [run.name for run in members[0]] == [run.name for run in members[1]]
    assert not any((run / "checkpoints").exists() for run in members[0])


@on_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_teachers_on_a_gpu(compiled: bool) -> None:
    members = [member.eval() for member in on_cuda("resnet20:width=4")]
    inputs = torch.randn(7, *SHAPE, device="cuda")
    found = teachers(members, compiled=compiled)(inputs)
    assert apart(found.cpu(), Ensemble(members)(inputs).cpu()) < 1e-3


@on_gpu
def test_memory_is_about_what_was_told() -> None:
    members = on_cuda("resnet20:width=16")
    twin, batch = copy.deepcopy(members[0]), 256
    told = needs(twin, torch.zeros(2, *SHAPE), optimizer="sgd", half=False).of(3, batch)
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fused(torch.randn(3, batch, *SHAPE, device="cuda")).sum().backward()
    used = torch.cuda.max_memory_allocated() - before
    assert 0.4 * used < told < 3 * used
