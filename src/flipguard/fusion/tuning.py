"""The grouping of every convolution of fused members, measured on the device that they are on.

A few milliseconds a convolution, once: no table of kernels that somebody knew to be fast would be
right for the next library or the next device.
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

# Groups are not merged beyond so many channels: there the zeros cost more than they save.
WIDEST = 128
TRIES = 5


class GroupingChoice(NamedTuple):
    """How a convolution of all members is done."""

    merge: int = 1
    spread: bool = False


Key = tuple[Any, ...]
# What was measured: the same network is often fused again, for another seed.
_known: dict[Key, GroupingChoice] = {}


def tune(
    fused: Fused,
    example: Tensor,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Chooses the way of every convolution for batches like the example, on its device.

    For members that train, by what a step takes; for others by what an answer takes.
    """
    if example.device.type != "cuda":
        return
    device = torch.cuda.get_device_name(example.device)
    if len(fused.parts()) > 1:  # one after the other: nothing else is to be under way meanwhile
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
    """Sets the way of every convolution that could be done in several, as it is chosen.

    `choose` is asked while the network answers, with what the layer is given there, so that no
    more than one layer's values are held.
    """
    layers = [layer for layer in fused.modules() if isinstance(layer, ManyConv)]
    if not layers:
        return
    ways: dict[ManyConv, GroupingChoice] = {}

    def watch(layer: ManyConv, values: Tensor, shared: bool) -> None:
        # Nobody asks for the gradient of what comes first, the images.
        learns = bool(ways) and layer.weight.requires_grad
        layer.watch = None  # it is called again, in one way after the other
        ways[layer] = choose(layer, values.detach().requires_grad_(learns), shared)

    training, kind = fused.training, next(p.dtype for p in fused.parameters())
    if example.dim() == 4:
        example = example.contiguous(memory_format=torch.channels_last)
    try:
        for layer in layers:
            layer.watch = partial(watch, layer)
        # Answering changes no statistics; the shapes are those of training.
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
    """The ways that may be fast."""
    members, channels = layer.weight.shape[0], layer.weight.shape[2]
    if shared:
        yield GroupingChoice()
    for merge in merges(members, channels):
        # What has few channels for one member has some for all of them.
        if not shared or merge > 1:
            yield GroupingChoice(merge, spread=shared)


def merges(groups: int, channels: int) -> Iterator[int]:
    """How many of so many groups may be one, by the channels of each.

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
        return GroupingChoice()  # what needs least memory
    finally:
        layer.merge, layer.spread = was


def _pass(layer: ManyConv, values: Tensor, shared: bool) -> None:
    """A forward pass and what there is of a backward pass, without a trace in the layer."""
    learned = [tensor for tensor in (values, layer.weight) if tensor.requires_grad]
    with torch.set_grad_enabled(bool(learned)):
        found = layer(values, shared=shared)
    if learned:
        torch.autograd.grad(found, learned, torch.empty_like(found))


def milliseconds(call: Callable[[], None]) -> float:
    """What some calls take on the GPU."""
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
