"""What lies between convolutions, as regions: the same numbers, and found wherever it should be."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.acceleration import regions
from flipguard.acceleration.regions import compile_parts
from flipguard.fusion import fuse
from flipguard.fusion.packed import Packed
from flipguard.training.teachers import fold_batch_norm
from tests.fusion.nets import drawn, members_of

SHAPE, SIGNAL = (3, 16, 16), (40,)
NETS = [
    ("resnet20:width=4", SHAPE),
    ("conv2d:width=4", SHAPE),
    ("resnet18:width=4", SHAPE),
    ("conv1d:width=5", SIGNAL),
]


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions as they are written: compiling them is torch's affair."""
    monkeypatch.setattr(regions, "_compiled", [regions.norm_add_relu])


def passes(net: nn.Module, inputs: Tensor) -> list[Tensor]:
    logits = net(inputs)
    logits.square().sum().backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return [logits.detach(), *gradients, *net.buffers()]


def alike(mine: list[Tensor], theirs: list[Tensor], *, off: float) -> None:
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=off, atol=off)


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize(("spec", "shape"), NETS)
@pytest.mark.parametrize("shared", [True, False])
def test_fused_members(spec: str, shape: tuple[int, ...], shared: bool) -> None:
    fused = fuse(members_of(spec, shape), example=torch.zeros(1, *shape)).train()
    other = copy.deepcopy(fused)
    compile_parts(other)
    inputs = drawn((5, *shape) if shared else (3, 5, *shape))
    alike(passes(other, inputs), passes(fused, inputs), off=1e-12)
    # Nothing is added to what is saved, and answering is as it was.
    assert list(other.state_dict()) == list(fused.state_dict())
    alike([other.eval()(inputs)], [fused.eval()(inputs)], off=1e-12)


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize(("spec", "shape"), NETS)
def test_a_net_alone(spec: str, shape: tuple[int, ...]) -> None:
    net = members_of(spec, shape)[0].train()
    other = copy.deepcopy(net)
    compile_parts(other)
    assert other._compiled_call_impl is not None
    assert copy.deepcopy(other)._compiled_call_impl is None
    inputs = drawn((5, *shape))
    alike(passes(other, inputs), passes(net, inputs), off=1e-12)
    alike([other.eval()(inputs)], [net.eval()(inputs)], off=1e-12)


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize(("spec", "shape"), NETS)
def test_teachers_whose_norms_are_folded(spec: str, shape: tuple[int, ...]) -> None:
    members = [
        fold_batch_norm(net.eval(), torch.zeros(2, *shape).double())
        for net in members_of(spec, shape)
    ]
    fused = fuse(members, example=torch.zeros(1, *shape)).eval()
    other = copy.deepcopy(fused)
    compile_parts(other)
    inputs = drawn((5, *shape))
    alike([other(inputs)], [fused(inputs)], off=1e-12)


@pytest.mark.usefixtures("plainly")
def test_every_norm_and_activation_of_a_resnet_is_in_a_region() -> None:
    fused = fuse(members_of("resnet20:width=4", SHAPE), example=torch.zeros(1, *SHAPE)).train()
    assert isinstance(fused, Packed)
    compile_parts(fused)
    net = next(iter(fused._rewritten.values()))
    names = [str(node.target) for node in net.graph.nodes]
    assert sum(name.startswith("region") for name in names) == 19
    assert not any("norm" in name or "relu" in name for name in names)


class Net(nn.Module):
    """Two convolutions and two norms, put together in odd ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)


class UsedTwice(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        added = F.relu(hidden + hidden + hidden)
        normed = self.other(self.second(added)) + 1.0
        return (normed.relu() + torch.tanh(hidden)).mean((2, 3))


class Doubled(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        hidden = F.relu(hidden + hidden)
        hidden = self.second(hidden)
        return F.relu(hidden + hidden).mean((2, 3))


class SharedNorm(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        first = self.norm(self.first(inputs))
        return F.relu(self.norm(self.second(first.tanh())) + first).mean((2, 3))


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("kind", [UsedTwice, Doubled, SharedNorm])
def test_chains_of_other_shapes(kind: type[Net]) -> None:
    torch.manual_seed(0)
    net = kind().double().train()
    other = copy.deepcopy(net)
    compile_parts(other)
    inputs = drawn((5, *SHAPE))
    alike(passes(other, inputs), passes(net, inputs), off=1e-12)


@pytest.mark.parametrize("what", ["hooks", "momentum"])
def test_what_cannot_be_in_regions_is_compiled_as_a_whole(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: called.append(self))
    net = UsedTwice()
    if what == "hooks":
        net.second = torch.nn.utils.spectral_norm(net.second)
    else:
        net.norm.momentum = None
    compile_parts(net)
    assert called == [net]


@pytest.mark.slow
def test_compiled_for_real() -> None:
    fused = fuse(
        [net.float() for net in members_of("conv2d:width=4", SHAPE)], example=torch.zeros(1, *SHAPE)
    ).train()
    other = copy.deepcopy(fused)
    compile_parts(other)
    inputs = drawn((3, 5, *SHAPE)).float()
    alike(passes(other, inputs), passes(fused, inputs), off=1e-4)
