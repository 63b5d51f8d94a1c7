"""The way of a GPU: fused members on it, captured steps, memory. The first test needs none."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flipguard.acceleration.cuda_graphs import WARM_UP, CapturedStep
from flipguard.acceleration.memory import memory_need
from flipguard.fusion import fuse, tune
from flipguard.references import Ensemble
from flipguard.training import Config, Recipe
from flipguard.training.teachers import teachers
from flipguard.training.trainee import GroupTrainee, optimizer_of
from tests.fusion.nets import apart, members_of, train_alone
from tests.training.tiny import history_of, images_file, tiny, trained

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SHAPE = (3, 16, 16)
SPECS = ["conv2d:width=4", "resnet9:width=4", "resnet20:width=4", "lenet5", "mlp:hidden=32"]


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

    _stand_in(monkeypatch, Stream, Graph, capture)
    captured = CapturedStep(step)
    for number in range(WARM_UP + 3):
        captured(torch.tensor(float(number)), torch.tensor(number + 10))
    assert [values for _, values in seen] == [[n, n + 10] for n in range(WARM_UP + 3)]
    assert [how for how, _ in seen] == ["run"] * WARM_UP + ["replayed"] * 3


@pytest.mark.parametrize("told", [True, False])
def test_a_step_that_cannot_be_captured_goes_on_as_it_is(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    said: list[str] = []
    state = {"capturing": False}

    class Stream:
        def wait_stream(self, _: object) -> None: ...

    @contextmanager
    def capture(_: object) -> Iterator[None]:
        state["capturing"] = True
        try:
            yield
        finally:
            state["capturing"] = False

    def step(number: Tensor) -> None:
        if state["capturing"]:
            try:
                raise RuntimeError("operation not permitted\nwhen a stream is capturing")
            finally:
                raise RuntimeError("what ending a capture says then")
        taken.append(int(number))

    _stand_in(monkeypatch, Stream, object, capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    captured = CapturedStep(step, otherwise=said.append if told else None)
    for number in range(WARM_UP):
        captured(torch.tensor(number))
    if not told:
        with pytest.raises(RuntimeError, match="ending a capture"):
            captured(torch.tensor(WARM_UP))
        return
    for number in range(WARM_UP, WARM_UP + 3):
        captured(torch.tensor(number))
    assert taken == list(range(WARM_UP + 3))
    assert said == ["operation not permitted"]


def _stand_in(monkeypatch: pytest.MonkeyPatch, stream: type, graph: type, capture: Any) -> None:
    for name, fake in (("Stream", stream), ("CUDAGraph", graph), ("graph", capture)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


@pytest.fixture
def exact() -> Iterator[None]:
    """Products of float32 as float32, and not of fewer digits as a GPU prefers them."""
    was = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = was


def batches_of(count: int, members: int, device: str = "cuda") -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(members, 8, *SHAPE, generator=drawn).to(device),
            torch.randint(0, 10, (members, 8), generator=drawn).to(device),
        )
        for _ in range(count)
    ]


def on_device(spec: str, device: str = "cuda", *, exactly: bool = False) -> list:
    kind, last = torch.float64 if exactly else torch.float32, torch.channels_last
    return [m.to(device, kind).to(memory_format=last) for m in members_of(spec, SHAPE)]


@on_gpu
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("tuned", "streams"), [(False, 1), (True, 1), (True, 2), (True, 3)])
def test_in_float64_members_end_where_a_loop_ends(
    spec: str, kind: Any, tuned: bool, streams: int
) -> None:
    """After 50 steps, most of them replayed."""
    rate = 1e-3 if kind == "adamw" else 1e-2
    members = on_device(spec, exactly=True)
    batches = [(inputs.double(), target) for inputs, target in batches_of(50, 3)]
    fused = fuse(members, example=torch.zeros(1, *SHAPE), streams=streams).train()
    if tuned:
        tune(fused, batches[0][0])
    config = Config(recipe=Recipe(optimizer=kind, learning_rate=rate, weight_decay=0.05))
    optimizer = optimizer_of(config, *fused.decaying(), torch.device("cuda"), captured=True)
    for group in optimizer.param_groups:
        group["lr"] = torch.full((), rate, device="cuda")
    trainee = GroupTrainee(fused, 0.1)

    def step(inputs: Tensor, target: Tensor) -> None:
        trainee(inputs, target)["task"].sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    take = CapturedStep(step)
    for inputs, target in batches:
        take(inputs, target)
    for index, state in enumerate(fused.split()):
        mine = [(inputs[index], target[index]) for inputs, target in batches]
        alone = train_alone(members[index], mine, kind=kind, smoothing=0.1, rate=rate).state_dict()
        # AdamW divides by the size of gradients: of those that are nearly zero, rounding decides.
        assert _off(state, alone) < (1e-5 if kind == "adamw" else 1e-7)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("device", "tuned"),
    [
        ("cpu", False),
        pytest.param("cuda", False, marks=on_gpu),
        pytest.param("cuda", True, marks=on_gpu),
    ],
)
def test_in_float32_a_step_rounds_as_a_loop_does(device: str, spec: str, tuned: bool) -> None:
    """At 50 steps of a training, gradients are as near to the exact ones as those of a loop.

    They are compared at each step and not at the end: where a unit is within rounding of zero, it
    may pass a gradient in one computation and none in the other, whoever computes it.
    """
    members, batches = on_device(spec, device), batches_of(50, 3, device)
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    if tuned:
        tune(fused, batches[0][0])
    trainee = GroupTrainee(fused, 0.1)
    optimizers = [torch.optim.SGD(m.train().parameters(), lr=0.01, momentum=0.9) for m in members]
    found, expected = [], []
    for inputs, target in batches:
        with torch.no_grad():
            for name, stacked in fused.body.named_parameters():
                stacked.copy_(torch.stack([m.get_parameter(name) for m in members]))
        fused.zero_grad()
        trainee(inputs, target)["task"].sum().backward()
        together = {name: p.grad for name, p in fused.body.named_parameters()}
        for index, member in enumerate(members):
            exact = copy.deepcopy(member).double()
            alone, exactly = (
                _gradients(model, inputs[index].to(kind), target[index])
                for model, kind in ((member, torch.float32), (exact, torch.float64))
            )
            mine = {name: gradient[index] for name, gradient in together.items()}
            found.append(_off(mine, exactly))
            expected.append(_off(alone, exactly))
            optimizers[index].step()
    assert max(expected) > 0  # float32 rounds: there is something to compare
    assert statistics.median(found) < 5 * statistics.median(expected)


def _gradients(model: torch.nn.Module, inputs: Tensor, target: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    F.cross_entropy(model(inputs), target, label_smoothing=0.1).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _off(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The distance of all numbers from the exact ones."""
    return sum(apart(found[name], tensor) ** 2 for name, tensor in exact.items()) ** 0.5


@on_gpu
@pytest.mark.parametrize("spec", SPECS)
def test_one_step_in_float64(spec: str) -> None:
    members = on_device(spec, exactly=True)
    ((inputs, target),) = [(x.double(), y) for x, y in batches_of(1, 3)]
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    tune(fused, inputs)
    GroupTrainee(fused, 0.1)(inputs, target)["task"].sum().backward()
    gradients = dict(fused.body.named_parameters())
    for index, member in enumerate(members):
        member.train()
        loss = F.cross_entropy(member(inputs[index]), target[index], label_smoothing=0.1)
        loss.backward()
        for name, parameter in member.named_parameters():
            whole = gradients[name].grad
            assert whole is not None
            assert parameter.grad is not None
            assert apart(whole[index], parameter.grad) < 1e-10, name


@on_gpu
@pytest.mark.parametrize("compiled", ["off", "parts"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_on_a_gpu(compiled: Any, precision: Any, tmp_path: Path) -> None:
    data = images_file(tmp_path / "images.npz")
    recipe = {"optimizer": "sgd", "batch_size": 5, "augment": "crop-flip:padding=2"}
    found = {}
    for fuse_ in ("auto", "off"):
        machine = {"device": "cuda", "precision": precision, "fuse": fuse_}
        if fuse_ == "auto":
            machine["compile"] = compiled
        else:
            machine["cuda_graphs"] = "off"
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
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("compiled", ["off", "parts"])
def test_teachers_on_a_gpu(compiled: Any) -> None:
    members = [member.eval() for member in on_device("resnet20:width=4")]
    inputs = torch.randn(7, *SHAPE, device="cuda")
    found = teachers(members, compiled=compiled, batch_size=7)(inputs)
    assert apart(found.cpu(), Ensemble(members)(inputs).cpu()) < 1e-3


@on_gpu
def test_memory_is_about_what_was_told() -> None:
    members = on_device("resnet20:width=16")
    twin, batch = copy.deepcopy(members[0]), 256
    told = memory_need(twin, torch.zeros(2, *SHAPE), optimizer="sgd", half=False).of(3, batch)
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fused(torch.randn(3, batch, *SHAPE, device="cuda")).sum().backward()
    used = torch.cuda.max_memory_allocated() - before
    assert 0.4 * used < told < 3 * used
