"""Whether the steps of a run are captured as a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flipguard.errors import InputError
from flipguard.methods import Objective
from flipguard.models.registry import NETS
from flipguard.training.config import Config
from flipguard.training.material import Material

# Others may ask the host for a number in the middle of a step.
KNOWN = (*NETS, "timm", "torchvision")


def replays(config: Config, objective: Objective, material: Material, fabric: Any) -> bool:
    """Whether a student's steps are replayed; refuses where that was asked for in vain."""
    what = _machine_refuses(config, material.device)
    if what is None and fabric.world_size > 1:
        what = f"{fabric.world_size} processes"
    if what is None and not objective.replayable:
        what = f"the method {config.method}, which decides step by step"
    if what is None and not material.one_shape:
        what = "texts, whose batches have different widths"
    return _decided(config, what)


def replays_members(config: Config, device: torch.device) -> bool:
    """Whether the steps of any network could be replayed, such as those of fused members."""
    return _decided(config, _machine_refuses(config, device))


def unless_insisted(config: Config, report: Callable[[str], None]) -> Callable[[str], None] | None:
    """What is told why steps cannot be captured; nothing, where that is then an error."""
    if config.machine.cuda_graphs == "on":
        return None
    return lambda why: report(f"steps are not replayed: {why}")


def _machine_refuses(config: Config, device: torch.device) -> str | None:
    machine = config.machine
    if device.type != "cuda":
        return f"the device {device.type}"
    if config.recipe.accumulate > 1:
        return "`recipe.accumulate`"
    if machine.precision == "16-mixed":
        return "precision 16-mixed, whose scale the host decides"
    if machine.checkpointing:
        return "`machine.checkpointing`"
    if machine.cuda_graphs == "auto" and config.model.partition(":")[0] not in KNOWN:
        return f"the model {config.model}, of which nothing is known"
    return None


def _decided(config: Config, what: str | None) -> bool:
    wanted = config.machine.cuda_graphs
    if wanted == "on" and what is not None:
        raise InputError(
            f"Expected `machine.cuda_graphs` to be on where steps can be replayed, but got {what}; "
            "leave it at auto."
        )
    return wanted != "off" and what is None
