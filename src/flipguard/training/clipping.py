"""Gradients scaled down to a norm, each model's alone, however many are trained together."""

from __future__ import annotations

from typing import Any

from torch import nn

from flipguard.fusion import Fused
from flipguard.methods.companions import Companions

# These hold models, and are none.
CONTAINERS = (nn.ModuleDict, nn.ModuleList, Companions)


def clip(modules: nn.Module, largest: float) -> None:
    """Clip the gradient of a model, or of each model in a container, to a norm.

    A model must end as it would if it were trained alone, so no other model's gradient may count in
    its norm: not that of a twin, of another member, or of a projection that is trained along with
    it. Whether all is finite is not asked here, because the host would have to wait for the answer.
    """
    if isinstance(modules, Fused):
        modules.clip(largest)
    elif isinstance(modules, CONTAINERS):
        for module in modules.children():
            clip(module, largest)
    else:
        nn.utils.clip_grad_norm_(list(modules.parameters()), largest)


def unscale(fabric: Any, optimizer: Any) -> None:
    """Undo the scale that 16-mixed gives to gradients; nothing in other precisions."""
    fabric.strategy.precision.unscale_gradients(getattr(optimizer, "optimizer", optimizer))
