"""Every layer and operation that can be packed, alone: logits, gradients, buffers, both modes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.fusion import Fused, fuse
from flipguard.fusion.rules import ELEMENTWISE_LAYERS, POOLING_LAYERS
from tests.fusion.nets import apart, drawn

COUNT, SAMPLES = 3, 6
IMAGE, SIGNAL, VECTOR = (4, 6, 5), (4, 9), (7,)


class Does(nn.Module):
    """A network of one convolution and one operation."""

    def __init__(self, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 1)
        self.operation = operation

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.operation(hidden, self.second(hidden)).flatten(1)


def pooling(kind: type[nn.Module]) -> nn.Module:
    if kind.__name__.startswith("Adaptive"):
        return kind(2)
    return kind(1) if "Pad" in kind.__name__ else kind(2)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(7, 5), VECTOR),
    "linear without bias": (lambda: nn.Linear(7, 5, bias=False), VECTOR),
    "linear of rows": (lambda: nn.Sequential(nn.Linear(9, 5), nn.Flatten()), SIGNAL),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), SIGNAL),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, dilation=2), IMAGE),
    "conv2d of groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), IMAGE),
    "conv2d reflecting": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE),
    "conv2d of the same size": (lambda: nn.Conv2d(4, 6, 3, padding="same"), IMAGE),
    "conv2d twice": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 3, groups=2)),
        IMAGE,
    ),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3)),
    "batchnorm1d": (lambda: nn.BatchNorm1d(7), VECTOR),
    "batchnorm1d between": (
        lambda: nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
        VECTOR,
    ),
    "batchnorm1d of signals": (lambda: nn.BatchNorm1d(4), SIGNAL),
    "batchnorm2d": (lambda: nn.BatchNorm2d(4, momentum=0.3), IMAGE),
    "batchnorm2d bare": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6, affine=False, track_running_stats=False)
        ),
        IMAGE,
    ),
    "groupnorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "layernorm": (lambda: nn.LayerNorm(7), VECTOR),
    "layernorm of images": (lambda: nn.LayerNorm([6, 5]), IMAGE),
    "dropout of nothing": (lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(7, 5)), VECTOR),
    **{
        kind.__name__: (lambda kind=kind: nn.Sequential(nn.Conv2d(4, 6, 1), kind()), IMAGE)
        for kind in ELEMENTWISE_LAYERS
    },
    **{
        kind.__name__: (
            lambda kind=kind: nn.Sequential(nn.Conv2d(4, 6, 1), pooling(kind)),
            IMAGE,
        )
        for kind in POOLING_LAYERS
        if not kind.__name__.endswith("1d")
    },
    **{
        kind.__name__: (
            lambda kind=kind: nn.Sequential(nn.Conv1d(4, 6, 1), pooling(kind)),
            SIGNAL,
        )
        for kind in POOLING_LAYERS
        if kind.__name__.endswith("1d")
    },
}
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, y: x + y,
    "sum in place": lambda x, y: y.add_(x),
    "difference and product": lambda x, y: (x - y) * y,
    "number": lambda x, _: 2 * x + 1 - x / 3,
    "gate": lambda x, y: x * torch.sigmoid(y.mean((2, 3), keepdim=True)),
    "one channel": lambda x, y: x * y[:, :1],
    "mean of places": lambda x, _: x.mean((2, 3)),
    "mean of channels": lambda x, _: x.mean(1),
    "negative axes": lambda x, _: x.mean(dim=(-2, -1), keepdim=True),
    "largest": lambda x, _: torch.amax(x, (2, 3)),
    "total": lambda x, _: x.sum(dim=-1),
    "option A": lambda x, _: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 3)),
    "channels on both sides": lambda x, _: F.pad(x, (1, 0, 0, 2, 2, 1)),
    "padding": lambda x, _: F.pad(x, (1, 2, 1, 0)),
    "padding by a number": lambda x, _: F.pad(x, (1, 2, 1, 0), value=1.5),
    "some channels": lambda x, _: x[:, 2:5],
    "one row": lambda x, _: x[:, :, 1],
    "side by side": lambda x, y: torch.cat([x, y, x], 1),
    "below": lambda x, y: torch.cat([x, y], dim=2),
    "flat from the places on": lambda x, _: x.flatten(2),
    "rows by view": lambda x, _: x.reshape(x.shape[0], -1),
    "rows by size": lambda x, _: x.contiguous().view(x.size(0), -1),
    "new axis": lambda x, _: x.unsqueeze(2),
    "functions": lambda x, y: F.gelu(x) + F.max_pool2d(F.pad(y, (1, 1, 1, 1)), 3, stride=1),
}


def cases() -> list:
    layers = [pytest.param(make, shape, id=name) for name, (make, shape) in LAYERS.items()]
    return layers + [
        pytest.param(lambda operation=one: Does(operation), IMAGE, id=f"op: {name}")
        for name, one in OPERATIONS.items()
    ]


def made(make: Callable[[], nn.Module]) -> list[nn.Module]:
    members = []
    for seed in range(COUNT):
        torch.manual_seed(seed)
        member = nn.Sequential(make()).double()
        for tensor in [*member.parameters(), *member.buffers()]:
            # Not ones and zeros: what is forgotten must show.
            if tensor.is_floating_point():
                tensor.data.add_(torch.rand_like(tensor))
        members.append(member)
    return members


def agree(fused: Fused, members: list[nn.Module], inputs: Tensor, *, shared: bool) -> None:
    each = [inputs] * COUNT if shared else list(inputs)
    for training in (True, False):
        twins = [copy.deepcopy(member).train(training) for member in members]
        net = copy.deepcopy(fused).train(training)
        expected = torch.stack([m(one) for m, one in zip(twins, each, strict=True)])
        found = net(inputs)
        assert apart(found, expected) < 1e-12
        weights = drawn(tuple(expected.shape), seed=9)
        if found.requires_grad:
            (found * weights).sum().backward()
            (expected * weights).sum().backward()
        for index, state in enumerate(net.split()):
            for name, tensor in twins[index].state_dict().items():
                assert apart(state[name], tensor) < 1e-12, name
        for name, parameter in net.body.named_parameters():
            for index, twin in enumerate(twins):
                one = twin.get_parameter(name).grad
                assert (one is None) == (parameter.grad is None)
                if one is not None and parameter.grad is not None:
                    assert apart(parameter.grad[index], one) < 1e-10, name


@pytest.mark.parametrize(("make", "shape"), cases())
def test_a_layer_of_many_is_many_layers(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    members = made(make)
    fused = fuse(members, example=torch.zeros(1, *shape))
    assert fused.way == "packed"
    agree(fused, members, drawn((SAMPLES, *shape)), shared=True)
    agree(fused, members, drawn((COUNT, SAMPLES, *shape)), shared=False)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_members_drop_for_themselves(kind: type[nn.Module]) -> None:
    members = [nn.Sequential(kind(0.5), nn.Conv2d(4, 4, 1)) for _ in range(2)]
    members[1].load_state_dict(members[0].state_dict())
    fused = fuse(members, example=torch.zeros(1, 4, 6, 5)).train()
    first, second = fused(torch.ones(SAMPLES, 4, 6, 5))
    assert not torch.allclose(first, second)
    first, second = fused.eval()(torch.ones(SAMPLES, 4, 6, 5))
    assert torch.allclose(first, second)


def test_dropout_keeps_what_it_must() -> None:
    net = nn.Sequential(nn.Linear(7, 2000), nn.Dropout(0.25))
    fused = fuse([net, net], example=torch.zeros(1, 7)).train()
    torch.manual_seed(0)
    dropped = (fused(torch.ones(4, 7)) == 0).double().mean((1, 2))
    assert dropped.tolist() == pytest.approx([0.25, 0.25], abs=0.03)


def test_channels_stay_last() -> None:
    members = [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
        for _ in range(2)
    ]
    fused = fuse(members, example=torch.zeros(1, 3, 8, 8))
    kernel = dict(fused.body.named_parameters())["0.weight"]
    assert kernel.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert kernel.flatten(0, 1).data_ptr() == kernel.data_ptr()
    for state in fused.split():
        assert state["0.weight"].is_contiguous(memory_format=torch.channels_last)
    fused(torch.zeros(2, 5, 3, 8, 8)).sum().backward()
    assert kernel.grad is not None
    assert kernel.grad.stride() == kernel.stride()
