"""Choose the fastest grouping of every convolution of fused members by measuring it on the GPU.

It takes a few milliseconds per convolution, once. A fixed table of fast kernels would be wrong for
the next version of the library or another device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flipguard.fusion.fused import Fused
from flipguard.fusion.layers import ManyConv

# Groups are not merged beyond this number of channels: the zeros would cost more than they save.
WIDEST = 128
TRIES = 5


class GroupingChoice(NamedTuple):
    """The way in which a convolution of all members is computed."""

    merge: int = 1
    spread: bool = False


Key = tuple[Any, ...]
# Measured choices, because the same network is often fused again for another seed.
_known: dict[Key, GroupingChoice] = {}


def tune(
    fused: Fused,
    example: Tensor,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Choose the fastest way of every convolution for batches like the example, on its device.

    For members that train, the time of a forward and backward pass counts; for others, that of a
    forward pass.
    """
    if example.device.type != "cuda":
        return
    device = torch.cuda.get_device_name(example.device)
    if len(fused.parts()) > 1:  # one after the other, so that nothing disturbs the measurement
        for part in fused.parts():
            own = example if example.dim() == fused.sample_dims else example[: part.count]
            tune(part, own, autocast)
        return

    def choose(layer: ManyConv, values: Tensor, shared: bool) -> GroupingChoice:
        needs = (shared, values.requires_grad, layer.weight.requires_grad)
        key = (*layer.settings(values), *needs, torch.is_autocast_enabled("cuda"), device)
        if key not in _known:
            _known[key] = _fastest(layer, values, shared)
        return _known[key]

    each_layer(fused, example, choose, autocast)


def each_layer(
    fused: Fused,
    example: Tensor,
    choose: Callable[[ManyConv, Tensor, bool], GroupingChoice],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Set the way of every convolution that can be computed in several ways, as `choose` says.

    `choose` is called during a forward pass with the layer's inputs, so that only one layer's
    values are in memory.
    """
    layers = [layer for layer in fused.modules() if isinstance(layer, ManyConv)]
    if not layers:
        return
    ways: dict[ManyConv, GroupingChoice] = {}

    def watch(layer: ManyConv, values: Tensor, shared: bool) -> None:
        # The gradient of the first layer's inputs, the images, is not needed.
        learns = bool(ways) and layer.weight.requires_grad
        layer.watch = None  # it is called again, in one way after the other
        ways[layer] = choose(layer, values.detach().requires_grad_(learns), shared)

    training, kind = fused.training, next(p.dtype for p in fused.parameters())
    if example.dim() == 4:
        example = example.contiguous(memory_format=torch.channels_last)
    try:
        for layer in layers:
            layer.watch = partial(watch, layer)
        # Eval mode changes no statistics; the shapes are those of training.
        fused.eval()
        with torch.no_grad(), autocast():
            fused.forward(example.to(kind))
    finally:
        for layer in layers:
            layer.watch = None
        fused.train(training)
    for layer, way in ways.items():
        layer.merge, layer.spread = way


def choices(layer: ManyConv, shared: bool) -> Iterator[GroupingChoice]:
    """Yield the ways that may be fast."""
    members, channels = layer.weight.shape[0], layer.weight.shape[2]
    if shared:
        yield GroupingChoice()
    for merge in merges(members, channels):
        # Repeated shared values are only tried with merged groups, because they have few channels.
        if not shared or merge > 1:
            yield GroupingChoice(merge, spread=shared)


def merges(groups: int, channels: int) -> Iterator[int]:
    """Yield how many of the groups may be merged into one, given the channels of each.

    >>> list(merges(groups=8, channels=32))
    [1, 2, 4]
    """
    merge = 1
    while groups % merge == 0 and (merge == 1 or merge * channels <= WIDEST):
        yield merge
        merge *= 2


def _fastest(layer: ManyConv, values: Tensor, shared: bool) -> GroupingChoice:
    was = layer.merge, layer.spread

    def time(way: GroupingChoice) -> float:
        layer.merge, layer.spread = way
        return milliseconds(partial(_pass, layer, values, shared))

    try:
        return min(choices(layer, shared), key=time)
    except torch.OutOfMemoryError:
        return GroupingChoice()  # needs the least memory
    finally:
        layer.merge, layer.spread = was


def _pass(layer: ManyConv, values: Tensor, shared: bool) -> None:
    """Run a forward pass, and a backward pass if needed, without changing the layer's gradients."""
    learned = [tensor for tensor in (values, layer.weight) if tensor.requires_grad]
    with torch.set_grad_enabled(bool(learned)):
        found = layer(values, shared=shared)
    if learned:
        torch.autograd.grad(found, learned, torch.empty_like(found))


def milliseconds(call: Callable[[], None]) -> float:
    """Return the milliseconds that `TRIES` calls take on the GPU."""
    for _ in range(2):  # the first call chooses a kernel
        call()
    began: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(TRIES):
        call()
    ended.record()
    ended.synchronize()
    found: float = began.elapsed_time(ended)
    return found
