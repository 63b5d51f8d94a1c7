"""How many samples are to lie side by side, measured on the device that the network is on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from flipguard.fusion.graphs import WARM_UP, CapturedStep
from flipguard.fusion.place import Refusal
from flipguard.fusion.tuning import WIDEST, merges, milliseconds
from flipguard.fusion.widened import WideConv
from flipguard.fusion.widening import Width, widen
from flipguard.models import classify

Autocast: TypeAlias = Callable[[], AbstractContextManager[Any]]
Key: TypeAlias = tuple[Any, ...]
COPIES = (2, 4, 8, 16)
# What was measured: layers of a network are often alike, and so are networks.
_known: dict[Key, int] = {}


def copies_for(module: nn.Module, samples: int) -> list[int]:
    """How many samples of a batch may lie side by side, by the network's narrowest convolution.

    >>> copies_for(nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 64, 3)), samples=100)
    [2, 4]
    """
    found = [m.out_channels for m in module.modules() if isinstance(m, nn.Conv2d)]
    narrowest = min(found, default=WIDEST)
    return [copies for copies in COPIES if samples % copies == 0 and copies * narrowest <= WIDEST]


def widest(module: nn.Module, example: Tensor, autocast: Autocast = nullcontext) -> Width:
    """The width that is fastest for batches like the example, on its device and in this mode.

    By what a forward and a backward pass take. A width of one, where that is fastest, where the
    network cannot be widened, and on all devices but GPUs. Nothing is compiled to be measured:
    what lies between convolutions costs the same in every width.
    """
    if _gpu(example.device) is None:
        return Width()
    with torch.random.fork_rng([example.device] if example.is_cuda else []):
        return _fastest(copy.deepcopy(module), example, autocast)


def _fastest(own: nn.Module, example: Tensor, autocast: Autocast) -> Width:
    """Of a module that is nobody else's: its norms learn from the example."""
    took = {Width(): _time(partial(_pass, own, own, example, autocast))}
    for copies in copies_for(own, len(example)):
        try:
            width = width_of(own, copies, example, autocast)
            net = widen(own, *width)
        except (Refusal, RuntimeError):  # of more copies no better is to be expected
            break
        took[width] = _time(partial(_pass, net, own, example, autocast))
    return min(took, key=lambda width: took[width])


def width_of(
    module: nn.Module, copies: int, example: Tensor, autocast: Autocast = nullcontext
) -> Width:
    """So many samples side by side, in groups as the device likes them; or a refusal.

    On all devices but GPUs every sample is a group.
    """
    net = widen(copy.deepcopy(module), copies)
    device = example.device
    if _gpu(device) is None:
        return Width(copies)
    chosen: list[int] = []
    for layer, lies in _given(net, example, autocast).items():
        # Nobody asks for the gradient of what comes first, the images.
        learned = bool(chosen) and layer.weight.requires_grad
        values = torch.empty_like(lies, device=device).normal_().requires_grad_(learned)
        chosen.append(_best_merge(layer, values, autocast))
    return Width(copies, tuple(chosen))


def _given(net: nn.Module, example: Tensor, autocast: Autocast) -> dict[WideConv, Tensor]:
    """What every convolution is given, in the order of the calls: how it lies, without numbers."""
    seen: dict[WideConv, Tensor] = {}

    def look(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, WideConv)
        seen[layer] = given[0].to("meta")

    layers = [layer for layer in net.modules() if isinstance(layer, WideConv)]
    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    with torch.no_grad(), autocast():
        net(example)
    for handle in handles:
        handle.remove()
    return seen


def _best_merge(layer: WideConv, values: Tensor, autocast: Autocast) -> int:
    device = values.device.type
    with autocast():
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    needs = (values.requires_grad, layer.weight.requires_grad, kind)
    key = (*layer.settings(values), *needs, _gpu(values.device))
    if key not in _known:

        def time(merge: int) -> float:
            layer.merge = merge
            return _time(partial(_pass, layer, layer, values, autocast))

        _known[key] = min(merges(layer.copies, layer.weight.shape[1]), key=time)
    return _known[key]


def _gpu(device: torch.device) -> str | None:
    """The name of a GPU; None for all else, which is not measured."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _pass(net: nn.Module, owner: nn.Module | WideConv, inputs: Tensor, autocast: Autocast) -> None:
    """A forward pass and what there is of a backward pass, without a trace in the network."""
    weights = [owner.weight] if isinstance(owner, WideConv) else list(owner.parameters())
    learned = [tensor for tensor in (inputs, *weights) if tensor.requires_grad]
    with torch.set_grad_enabled(bool(learned)), autocast():
        found = classify(net, inputs)
    if learned:
        torch.autograd.grad(found, learned, torch.ones_like(found), allow_unused=True)


def _time(call: Callable[[], None]) -> float:
    """Milliseconds of some calls, replayed: a host may be slower than what is compared."""
    step = CapturedStep(call, otherwise=lambda _: None)
    try:
        for _ in range(WARM_UP + 1):
            step()
        return milliseconds(step)
    except RuntimeError:  # too little memory, or a kernel that a library does not have
        return math.inf
