"""The optimizer of a recipe, and its state from another machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flipguard.training.config import Config

# How it is computed: this machine's affair, and not that of the one where a run was begun.
KERNELS = ("capturable", "fused", "foreach")


def optimizer_of(
    config: Config,
    decaying: Sequence[nn.Parameter],
    others: Sequence[nn.Parameter],
    device: torch.device,
    *,
    captured: bool = False,
) -> torch.optim.Optimizer:
    """The recipe's optimizer, of weights that decay and of others (biases, norms) that do not."""
    recipe = config.recipe
    groups = [
        {"params": list(decaying), "weight_decay": recipe.weight_decay},
        {"params": list(others), "weight_decay": 0.0},
    ]
    # One kernel for all weights; where gradients are scaled, they have to be unscaled before it.
    at_once = True if device.type == "cuda" and config.machine.precision != "16-mixed" else None
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(
            groups, lr=recipe.learning_rate, fused=at_once, capturable=captured
        )
    return torch.optim.SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        fused=at_once,
    )


def restore_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Goes back to a state, whichever device it was written on."""
    for group in state["param_groups"]:
        group |= {name: optimizer.defaults[name] for name in KERNELS if name in group}
        group["lr"] = float(group["lr"])  # where steps are replayed, it is a tensor on the device
    optimizer.load_state_dict(state)
