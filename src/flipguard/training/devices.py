"""Devices of a run: the fabric, precision, kernels, memory, and whether steps are captured."""

from __future__ import annotations

import logging
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from flipguard.acceleration.regions import compile_parts
from flipguard.errors import InputError, listed
from flipguard.methods import Objective
from flipguard.models.registry import NETS
from flipguard.runs.config import Config, Machine
from flipguard.training.batches import BatchSource

M = TypeVar("M", bound=nn.Module)

# Other models may ask the host for a number in the middle of a step.
KNOWN = (*NETS, "timm", "torchvision")


def fabric_of(machine: Machine) -> Any:
    """Return the Lightning Fabric with the machine's device, precision and processes."""
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    # Its advice is for the author of the loop, and would appear among the lines of a run.
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    try:
        with warnings.catch_warnings():
            # Lightning would change the precision. This precision is refused below instead.
            warnings.filterwarnings("ignore", message="You passed .*16-mixed")
            fabric = Fabric(
                accelerator=machine.device,
                devices=machine.processes,
                precision=machine.precision,
                strategy="auto" if machine.processes == 1 else "ddp_spawn",
            )
    # A ModuleNotFoundError if the device needs a library, as a TPU does.
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as problem:
        raise InputError(
            "Expected `machine.device` to be a device that can be used here, but got "
            f"{listed([machine.device])}; use cpu, or auto, which takes a GPU if there is one."
        ) from problem
    if machine.precision == "16-mixed" and fabric.device.type == "cpu":
        raise InputError(
            "Expected `machine.precision` to be 32-true, 64-true or bf16-mixed on a CPU, but got "
            "16-mixed, which needs a GPU; choose one of the three."
        )
    return fabric


def in_precision(model: M, machine: Machine) -> M:
    """Return a model with weights in the precision that a run computes in.

    Call it for each model of a run before use, because weights and inputs of different precisions
    cannot be multiplied. In mixed precision weights stay as they are.
    """
    return model.double() if machine.precision == "64-true" else model


def input_type(machine: Machine) -> torch.dtype:
    """Return the dtype of inputs that fits the weights of `in_precision`."""
    return torch.float64 if machine.precision == "64-true" else torch.float32


def compile_as(machine: Machine, model: nn.Module) -> None:
    """Compile a model in place as `machine.compile` says."""
    if machine.compile == "parts":
        model.train()
        compile_parts(model)
    elif machine.compile == "whole":
        model.compile()


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def to_device(model: M, device: torch.device) -> M:
    """Return a model on a device, in the memory format that convolutions are fastest in."""
    # Channels last changes only the order in memory, and only of tensors with four axes.
    return model.to(device).to(memory_format=torch.channels_last)


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the random generators of a device and of the host.

    `torch.manual_seed` does the same for all kinds of devices, but takes half a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


@contextmanager
def kernel_settings(machine: Machine, device: torch.device) -> Iterator[None]:
    """Context manager: use the fastest GPU kernels, or those with the same bytes in every run."""
    if device.type != "cuda":
        yield
        return
    was = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )
    try:
        torch.backends.cudnn.benchmark = not machine.deterministic
        if machine.deterministic:
            # cuBLAS reads it at the first matrix product. Without it, torch raises an error.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.use_deterministic_algorithms(was[0])
        torch.backends.cudnn.benchmark = was[1]
        if was[2] is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, after torch has given back the memory in its cache."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free


def peak_memory(device: torch.device) -> int:
    """Return the peak memory so far in bytes, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def captures_steps(
    config: Config, objective: Objective, material: BatchSource, fabric: Any
) -> bool:
    """Return whether a student's steps are replayed; raise if `on` is set and they cannot be."""
    what = _machine_refuses(config, material.device)
    if what is None and fabric.world_size > 1:
        what = f"{fabric.world_size} processes"
    if what is None and not objective.replayable:
        what = f"the method {config.method}, which decides step by step"
    if what is None and not material.has_fixed_shape:
        what = "texts, whose batches have different widths"
    return _decided(config, what)


def can_capture(config: Config, device: torch.device) -> bool:
    """Return whether the machine and the recipe allow that steps are replayed.

    Raise if `on` is set and they do not.
    """
    return _decided(config, _machine_refuses(config, device))


def note_or_raise(config: Config, report: Callable[[str], None]) -> Callable[[str], None] | None:
    """Return a function that reports why steps cannot be captured; None if that is an error."""
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
        return f"the model {config.model}, which may not be replayable"
    return None


def _decided(config: Config, what: str | None) -> bool:
    wanted = config.machine.cuda_graphs
    if wanted == "on" and what is not None:
        raise InputError(
            f"Expected `machine.cuda_graphs` to be on where steps can be replayed, but got {what}; "
            "leave it at auto."
        )
    return wanted != "off" and what is None
