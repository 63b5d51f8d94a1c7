"""Activations that are computed again: the same gradients and statistics, and less memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from flipguard.acceleration.memory import CheckpointedNet, checkpoint_segments
from flipguard.errors import InputError
from flipguard.fusion import fuse
from flipguard.fusion.packed import Packed
from tests.fusion.nets import drawn, members_of

SHAPE = (3, 16, 16)


def passes(net: nn.Module, inputs: Tensor) -> tuple[list[Tensor], int]:
    """What a step leaves, and the bytes that were kept for it."""
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)
        return tensor

    own = sum(p.numel() * p.element_size() for p in net.parameters())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = net(inputs)
        size = sum(kept.values()) - own
    logits.square().sum().backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return [logits.detach(), *gradients, *net.buffers()], size


@pytest.mark.parametrize("spec", ["resnet20:width=4", "resnet18:width=4", "conv2d:width=4"])
@pytest.mark.parametrize("shared", [True, False])
def test_segments_give_what_the_whole_gives(spec: str, shared: bool) -> None:
    fused = fuse(members_of(spec, SHAPE), example=torch.zeros(1, *SHAPE)).train()
    other = copy.deepcopy(fused)
    checkpoint_segments(other)
    inputs = drawn((20, *SHAPE) if shared else (3, 20, *SHAPE))
    (mine, less), (theirs, more) = passes(other, inputs), passes(fused, inputs)
    for one, another in zip(mine, theirs, strict=True):
        assert torch.equal(one, another)
    assert less < 0.3 * more


def test_the_segments_of_a_resnet_are_its_blocks() -> None:
    fused = fuse(members_of("resnet20:width=4", SHAPE), example=torch.zeros(1, *SHAPE)).train()
    assert isinstance(fused, Packed)
    checkpoint_segments(fused)
    net = next(iter(fused._rewritten.values()))
    assert isinstance(net, CheckpointedNet)
    layers = [
        [str(node.target) for node in segment.graph.nodes if str(node.target).endswith(".first")]
        for segment in net._segments[0]
    ]
    assert max(map(len, layers)) == 1
    assert [name for some in layers for name in some] == [f"body.{b}.first" for b in range(9)]


def test_members_that_are_mapped_cannot() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            found: Tensor = self.head(self.layer(inputs).mean(1))
            return found

    torch.manual_seed(0)
    fused = fuse([Attends().double() for _ in range(2)], example=torch.zeros(2, 4, 8))
    with pytest.raises(InputError, match=r"packed as groups.*but got stacked ones; leave"):
        checkpoint_segments(fused)


def test_what_is_computed_for_nobody_is_left_out() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
            self.head, self.beside = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.second(self.first(inputs).relu()).relu().mean((2, 3))
            found: Tensor = self.head(hidden)
            self.beside(hidden)
            return found

    torch.manual_seed(0)
    members = [Beside().double() for _ in range(2)]
    fused = fuse(members, example=torch.zeros(1, *SHAPE)).train()
    other = copy.deepcopy(fused)
    checkpoint_segments(other)
    inputs = drawn((4, *SHAPE))
    for one, another in zip(passes(other, inputs)[0], passes(fused, inputs)[0], strict=True):
        assert torch.equal(one, another)
