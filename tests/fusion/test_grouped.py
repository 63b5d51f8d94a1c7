"""Merged groups give what the groups give: values, gradients, and no leak from one to another."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flipguard.fusion import fuse
from flipguard.fusion.layers import ManyConv, merged
from flipguard.fusion.tuning import GroupingChoice, choices, each_layer
from tests.fusion.nets import drawn, members_of

CASES = [
    # channels in and out of a group, stride, padding, dilation
    (3, 5, 1, 1, 1),
    (4, 4, 2, 1, 1),
    (2, 6, 1, 2, 2),
    (1, 1, 1, 0, 1),
]


def passes(case: tuple[int, ...], merge: int, *, last: bool = False) -> list[Tensor]:
    """Result and gradients of a convolution of four groups."""
    inside, out, stride, padding, dilation = case
    values, kernel = drawn((2, 4 * inside, 7, 7)), drawn((4 * out, inside, 3, 3), seed=1)
    if last:
        values = values.contiguous(memory_format=torch.channels_last)
        kernel = kernel.contiguous(memory_format=torch.channels_last)
    values.requires_grad_()
    kernel.requires_grad_()
    wide = merged(kernel, 4, merge)
    result = F.conv2d(values, wide, None, stride, padding, dilation, 4 // merge)
    result.backward(torch.cos(result.detach()))
    assert values.grad is not None
    assert kernel.grad is not None
    return [result.detach(), values.grad, kernel.grad]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("merge", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_merged_groups(case: tuple[int, ...], merge: int, last: bool) -> None:
    mine, theirs = passes(case, merge, last=last), passes(case, 1, last=last)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    if last:
        assert mine[0].is_contiguous(memory_format=torch.channels_last)


def test_a_group_that_diverged_leaves_the_kernels_of_others_alone() -> None:
    kernel = torch.ones(4, 1, 1, 1)
    kernel[1] = torch.inf
    assert merged(kernel, 4, 4)[[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize(
    "way",
    [
        GroupingChoice(2),
        GroupingChoice(4),
        GroupingChoice(1, spread=True),
        GroupingChoice(2, spread=True),
    ],
)
@pytest.mark.parametrize("spec", ["conv2d:width=4", "resnet20:width=4"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_network_in_every_way(spec: str, shared: bool, way: GroupingChoice) -> None:
    members = members_of(spec, (3, 16, 16), count=4)
    inputs = drawn((*(() if shared else (4,)), 5, 3, 16, 16))
    found = []
    for one in (GroupingChoice(), way):
        fused = fuse(members, example=torch.zeros(1, 3, 16, 16)).train()
        for layer in fused.modules():
            if isinstance(layer, ManyConv):
                layer.merge, layer.spread = one
        logits = fused(inputs)
        logits.square().sum().backward()
        gradients = [p.grad for p in fused.parameters() if p.grad is not None]
        found.append([logits.detach(), *gradients, *fused.buffers()])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_every_layer_is_asked_with_what_it_is_given(
    shared: bool, learns: bool, kind: torch.dtype
) -> None:
    members = [net.to(kind) for net in members_of("resnet20:width=4", (3, 16, 16), count=4)]
    fused = fuse(members, example=torch.zeros(1, 3, 16, 16)).train().requires_grad_(learns)
    before = [buffer.clone() for buffer in fused.buffers()]
    seen: list[tuple[ManyConv, Tensor, bool]] = []

    def choose(layer: ManyConv, values: Tensor, flag: bool) -> GroupingChoice:
        seen.append((layer, values, flag))
        layer(values, shared=flag)  # which is not asked about again
        return GroupingChoice(2)

    each_layer(fused, torch.zeros(*(() if shared else (4,)), 2, 3, 16, 16), choose)
    layers = [layer for layer in fused.modules() if isinstance(layer, ManyConv)]
    assert [layer for layer, _, _ in seen] == layers
    assert [flag for _, _, flag in seen] == [shared] + [False] * 18
    # Nobody asks for the gradient of the images.
    assert [values.requires_grad for _, values, _ in seen] == [False] + [learns] * 18
    assert {values.dtype for _, values, _ in seen} == {kind}
    assert tuple(seen[0][1].shape) == (2, 3 if shared else 12, 16, 16)
    assert {layer.merge for layer in layers} == {2}
    assert fused.training
    for now, then in zip(fused.buffers(), before, strict=True):
        assert torch.equal(now, then)


def test_the_ways_that_are_tried() -> None:
    members = members_of("resnet20:width=16", (3, 16, 16), count=8)
    fused = fuse(members, example=torch.zeros(1, 3, 16, 16))
    layers = [layer for layer in fused.modules() if isinstance(layer, ManyConv)]
    assert list(choices(layers[0], shared=True)) == [
        GroupingChoice(),
        GroupingChoice(2, spread=True),
        GroupingChoice(4, spread=True),
        GroupingChoice(8, spread=True),
    ]
    assert [way.merge for way in choices(layers[1], shared=False)] == [1, 2, 4, 8]
    assert [way.merge for way in choices(layers[-1], shared=False)] == [1, 2]
