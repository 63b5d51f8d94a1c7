"""Recomputing activations changes memory use only."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flipguard.errors import InputError
from flipguard.models import build_model, checkpoint_blocks, classify

SPECS = {
    "resnet20": (3, 16, 16),
    "resnet20:dropout=0.3": (3, 16, 16),
    "timm:resnet10t": (3, 64, 64),
    "timm:vit_tiny_patch16_224": (3, 224, 224),
    "torchvision:resnet18": (3, 64, 64),
}


def trained(
    model: nn.Module, inputs: torch.Tensor, target: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for step in range(2):
        torch.manual_seed(step)
        F.cross_entropy(classify(model, inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_bytes(spec: str) -> None:
    shape = SPECS[spec]
    inputs, target = torch.rand(4, *shape), torch.arange(4)
    plain = build_model(spec, classes=4, input_shape=shape, seed=0)
    sparing = copy.deepcopy(plain)
    assert checkpoint_blocks(sparing) >= 4
    one, other = trained(plain, inputs, target), trained(sparing, inputs, target)
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert differing == []


def held(model: nn.Module, inputs: torch.Tensor) -> int:
    """Bytes that the graph of a forward pass keeps."""
    sizes: dict[int, int] = {}

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        output = classify(model.train(), inputs)
    del output
    return sum(sizes.values())


def test_less_is_held() -> None:
    model = build_model("resnet20", classes=4, input_shape=(3, 16, 16), seed=0)
    inputs = torch.rand(8, 3, 16, 16)
    before = held(model, inputs)
    checkpoint_blocks(model)
    assert held(model, inputs) < before / 2


def test_a_copy_is_a_model_of_its_own() -> None:
    model = build_model("resnet20", classes=4, input_shape=(3, 16, 16), seed=0)
    checkpoint_blocks(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    inputs = torch.rand(2, 3, 16, 16)
    assert twin.train()(inputs).abs().sum() == 0
    assert model.train()(inputs).abs().sum() > 0


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(InputError, match=r"repeated blocks.*machine\.checkpointing"):
        checkpoint_blocks(build_model("mlp", classes=4, input_shape=(40,), seed=0))
