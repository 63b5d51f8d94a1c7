"""flipguard's own networks: sizes, shapes, gradients, seeds, and weights that travel."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flipguard.models import MODELS, build_model
from flipguard.models.registry import NETS

SHAPES = [
    ("mlp", (40,)),
    ("mlp:hidden=8,depth=1", (2, 3, 4)),
    ("mlp:depth=4", (1,)),
    ("mlp-bn:hidden=8,depth=1", (2, 3, 4)),
    ("conv1d", (40,)),
    ("conv1d:width=3", (2, 41)),
    ("conv1d", (3,)),
    ("conv2d", (3, 32, 32)),
    ("conv2d:width=4", (28, 28)),
    ("conv2d:width=4", (2, 4, 7)),
    ("lenet5", (1, 32, 32)),
    ("lenet5", (1, 28, 28)),
    ("lenet5", (3, 40, 33)),
    ("lenet5", (9, 31)),
    ("resnet9:width=8", (3, 32, 32)),
    ("resnet9:width=2", (8, 8)),
    ("resnet20", (3, 32, 32)),
    ("resnet20:width=4", (8, 8)),
    ("resnet32:width=4", (1, 9, 5)),
    ("resnet56:width=4", (3, 16, 16)),
    ("resnet18:width=4", (3, 16, 16)),
]


def build(spec: str, shape: tuple[int, ...], *, seed: int | None = 0) -> nn.Module:
    return build_model(spec, classes=10, input_shape=shape, seed=seed)


def batch(shape: tuple[int, ...], *, samples: int = 4) -> Tensor:
    return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(1))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("spec", "shape", "parameters"),
    [
        # He et al. (2016), table 6: 0.27 M, 0.46 M, 0.85 M; to the unit as option A counts.
        ("resnet9", (3, 32, 32), 6_573_130),
        ("resnet20", (3, 32, 32), 269_722),
        ("resnet32", (3, 32, 32), 464_154),
        ("resnet56", (3, 32, 32), 853_018),
        ("resnet18", (3, 32, 32), 11_173_962),
        ("lenet5", (1, 32, 32), 61_706),
        ("lenet5", (28, 28), 61_706),
        ("lenet5", (3, 32, 32), 62_006),
        ("conv1d", (40,), 5_210),
        ("mlp", (40,), 15_210),
        ("mlp", (1, 8, 5), 15_210),
        ("mlp-bn", (40,), 15_210 + 2 * 2 * 100),
    ],
)
def test_sizes_are_those_of_the_papers(spec: str, shape: tuple[int, ...], parameters: int) -> None:
    assert count(build(spec, shape)) == parameters


@pytest.mark.parametrize(("depth", "blocks"), [(20, 3), (32, 5), (56, 9)])
def test_resnets_have_as_many_layers_as_their_name_says(depth: int, blocks: int) -> None:
    model = build(f"resnet{depth}:width=2", (3, 8, 8))
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth
    body: Any = model.body
    assert [block.second.out_channels for block in body] == [2] * blocks + [4] * blocks + [
        8
    ] * blocks
    strided = [place for place, block in enumerate(body) if block.stride == 2]
    assert strided == [blocks, 2 * blocks]


def test_a_shortcut_without_parameters_keeps_what_came_in() -> None:
    block: Any = build("resnet20:width=2", (3, 8, 8)).body[3]
    inputs = batch((2, 8, 8))
    kept = block._kept(inputs)
    assert kept.shape == (4, 4, 4, 4)
    assert torch.equal(kept[:, :2], inputs[:, :, ::2, ::2])
    assert not kept[:, 2:].any()


@pytest.mark.parametrize(("spec", "shape"), SHAPES)
def test_a_forward_pass_gives_a_score_a_class(spec: str, shape: tuple[int, ...]) -> None:
    model = build(spec, shape)
    assert model.training
    logits = model(batch(shape))
    assert logits.shape == (4, 10)
    assert logits.isfinite().all()


@pytest.mark.parametrize(("spec", "shape"), SHAPES)
def test_gradients_reach_every_parameter(spec: str, shape: tuple[int, ...]) -> None:
    model = build(spec, shape)
    model(batch(shape, samples=16)).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    "spec", ["mlp", "mlp-bn", "conv1d", "conv2d", "lenet5", "resnet9", "resnet20", "resnet18"]
)
def test_dropout_is_random_in_training_alone(spec: str) -> None:
    shape = (40,) if spec == "conv1d" else (3, 16, 16)
    model = build(f"{spec}:dropout=0.5", shape)
    inputs = batch(shape)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eval()
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))


@pytest.mark.parametrize(("spec", "shape"), SHAPES)
def test_the_first_weights_depend_on_the_seed_alone(spec: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    first = build(spec, shape, seed=3).state_dict()
    torch.manual_seed(6)
    torch.rand(7)
    same, other = build(spec, shape, seed=3).state_dict(), build(spec, shape, seed=4).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_other_streams_are_left_where_they_were() -> None:
    in_torch, in_python = torch.get_rng_state(), random.getstate()
    in_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    build("mlp", (4,), seed=2**63 - 1)
    build_model("python:tests.models.factories:linear", classes=3, input_shape=(4,), seed=2**40 + 1)
    assert torch.equal(torch.get_rng_state(), in_torch)
    assert random.getstate() == in_python
    now = np.random.get_state(legacy=False)  # noqa: NPY002
    assert now["state"]["pos"] == in_numpy["state"]["pos"]
    assert (now["state"]["key"] == in_numpy["state"]["key"]).all()


def test_streams_are_left_where_they_were_by_a_failure_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(TypeError, match="on purpose"):
        build_model("python:tests.models.factories:fails", classes=3, input_shape=(4,), seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_weights_come_from_the_stream() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first, second = (build("mlp", (4,), seed=None).state_dict() for _ in range(2))
        torch.manual_seed(3)
        again = build("mlp", (4,), seed=None).state_dict()
    assert torch.equal(first["head.weight"], again["head.weight"])
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_models_are_built_on_the_host_whatever_the_default() -> None:
    with torch.device("meta"):
        model = build("mlp", (4,), seed=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(("spec", "shape"), SHAPES)
def test_weights_travel_through_a_file(spec: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model, other = build(spec, shape, seed=0), build(spec, shape, seed=1)
    model(batch(shape))  # batch normalisation has seen something
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        inputs = batch(shape)
        assert torch.equal(model.eval()(inputs), other.eval()(inputs))


@pytest.mark.parametrize("name", NETS)
def test_rows_say_the_options_that_nets_take(name: str) -> None:
    row = MODELS[name]
    shape = (40,) if row.inputs == "signal" else (3, 8, 8)
    options = {option.name: option.default for option in row.options}
    told = NETS[name](classes=2, input_shape=shape, **options)
    plain = NETS[name](classes=2, input_shape=shape)
    assert repr(told) == repr(plain)
    assert count(told) == count(plain)
