"""The way of a GPU: fused members on it, captured steps, memory. The first test needs none."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flipguard.fusion import CapturedStep, fuse, needs, teachers, tune
from flipguard.fusion.graphs import WARM_UP
from flipguard.references import Ensemble
from flipguard.training import Config, Recipe
from flipguard.training.optimizers import optimizer_of
from flipguard.training.workshop import Together
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


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("spec", ["conv2d:width=4", "resnet20:width=4", "lenet5", "mlp:hidden=32"])
@pytest.mark.parametrize(
    ("device", "tuned"),
    [
        ("cpu", False),
        pytest.param("cuda", False, marks=on_gpu),
        pytest.param("cuda", True, marks=on_gpu),
    ],
)
def test_in_float32_members_are_those_of_a_loop(
    device: str, spec: str, kind: Any, tuned: bool
) -> None:
    """After 50 steps they are as near to the exact ones as members of a loop in float32 are."""
    where, rate = torch.device(device), 1e-3 if kind == "adamw" else 1e-2
    members, batches = on_device(spec, device), batches_of(50, 3, device)
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    if tuned:
        tune(fused, batches[0][0])
    config = Config(recipe=Recipe(optimizer=kind, learning_rate=rate, weight_decay=0.05))
    optimizer = optimizer_of(config, *fused.decaying(), where, captured=device == "cuda")
    rate_there = torch.full((), rate, device=device)
    if device == "cuda":
        for group in optimizer.param_groups:
            group["lr"] = rate_there
    trainee = Together(fused, 0.1)

    def step(inputs: Tensor, target: Tensor) -> None:
        trainee(inputs, target).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    take = CapturedStep(step) if device == "cuda" else step
    for inputs, target in batches:
        take(inputs, target)
    for index, state in enumerate(fused.split()):
        mine = [(inputs[index], target[index]) for inputs, target in batches]
        doubled = [(inputs.double(), target) for inputs, target in mine]
        member = members[index]
        how = {"kind": kind, "smoothing": 0.1, "rate": rate}
        exactly = train_alone(copy.deepcopy(member).double(), doubled, **how).state_dict()
        alone = train_alone(member, mine, **how).state_dict()
        assert _off(state, exactly) < 5 * _off(alone, exactly) + 1e-6


def _off(state: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The distance of all weights from the exact ones."""
    return sum(apart(state[name], tensor) ** 2 for name, tensor in exact.items()) ** 0.5


@on_gpu
@pytest.mark.parametrize("spec", ["conv2d:width=4", "resnet20:width=4", "lenet5", "mlp:hidden=32"])
def test_one_step_in_float64(spec: str) -> None:
    members = on_device(spec, exactly=True)
    ((inputs, target),) = [(x.double(), y) for x, y in batches_of(1, 3)]
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    tune(fused, inputs)
    Together(fused, 0.1)(inputs, target).sum().backward()
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
    told = needs(twin, torch.zeros(2, *SHAPE), optimizer="sgd", half=False).of(3, batch)
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fused(torch.randn(3, batch, *SHAPE, device="cuda")).sum().backward()
    used = torch.cuda.max_memory_allocated() - before
    assert 0.4 * used < told < 3 * used
