"""Clipping of gradients, separately for each model that is trained in one loop."""

from __future__ import annotations

from typing import Any

from torch import nn

from flipguard.fusion import Fused

# These contain models, but are not models.
CONTAINERS = (nn.ModuleDict, nn.ModuleList)


def clip(modules: nn.Module, largest: float) -> None:
    """Clip the gradient of a model, or of each model in a container, to a norm.

    A model must end as it would if it were trained alone. So the gradient of no other model may
    count in its norm: not that of a twin, of another member, or of a projection trained along with
    it. Whether gradients are finite is not checked, because the host would have to wait for that.
    """
    if isinstance(modules, Fused):
        modules.clip(largest)
    elif isinstance(modules, CONTAINERS):
        for module in modules.children():
            clip(module, largest)
    else:
        nn.utils.clip_grad_norm_(list(modules.parameters()), largest)


def unscale(fabric: Any, optimizer: Any) -> None:
    """Undo the scaling of gradients in 16-mixed precision; do nothing in other precisions."""
    fabric.strategy.precision.unscale_gradients(getattr(optimizer, "optimizer", optimizer))
