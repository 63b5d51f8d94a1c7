"""Members that are trained beside the student: what they cannot be, and how they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard.errors import InputError
from flipguard.fusion import Fused, tune
from flipguard.methods.companions import IN_TURN, Companions
from flipguard.models import checkpoint_blocks
from flipguard.training.config import Config
from flipguard.training.devices import compile_as, input_type
from flipguard.training.folder import CHECKPOINT, Run
from flipguard.training.fusing import CannotFuse, fuses
from flipguard.training.loop import Report
from flipguard.training.workshop import fused_of, refuse_memory


def check_one_phase(config: Config) -> None:
    """Refuses what does not go with members that learn beside the student."""
    options, machine = config.options, config.machine
    if not options.get("one_phase"):
        return
    learning = "to ask members that are still learning"
    rules = (
        (config.guides, "to train its members itself", "`guides`", "leave one of them out"),
        (options["reuse"], "to train its members itself", "`reuse`", "leave one of them out"),
        (options.get("views"), learning, "`views`", "leave one of them out"),
        (not options["online"], learning, "`online=false`", "leave one of them out"),
        (
            options["guide"] != "homogeneous",
            "to have members like the student",
            f"the guide {options['guide']!r}",
            "leave one of them out",
        ),
        (
            config.fine_tune,
            "to have members that differ",
            "`fine_tune`, by which all begin alike and then see the same batches",
            "leave one of them out",
        ),
        (
            machine.precision == "16-mixed",
            "to have members that do not depend on each other",
            "precision 16-mixed, which scales all gradients alike",
            "use bf16-mixed or 32-true",
        ),
        (
            machine.fuse_chunk,
            "to have all members at once",
            f"`machine.fuse_chunk={machine.fuse_chunk}`",
            "leave it out",
        ),
        (
            (machine.streams or 1) > 1,
            "to have all members in one step with the student",
            f"`machine.streams={machine.streams}`",
            "leave it out",
        ),
    )
    for applies, expected, got, way_out in rules:
        if applies:
            raise InputError(f"Expected `one_phase` {expected}, but got {got}; {way_out}.")


def companions_of(
    count: int,
    *,
    fabric: Any,
    config: Config,
    out: Path,
    shape: tuple[int, ...] | None,
    new_model: Callable[[str], nn.Module],
    report: Report,
) -> Companions:
    """So many models like the student, as one network if they are to be and can."""
    machine = config.machine
    members = [new_model(f"member-{index}") for index in range(1, count + 1)]
    # What was begun as one network goes on as one, and what was not does not: its state is other.
    begun = _way_of(out)
    together = begun != IN_TURN if begun else fuses(machine, fabric.device)
    if shape is not None:
        # All are under way at once, as one network or not, and the student is one more of them.
        refuse_memory(
            config,
            members[0],
            torch.zeros(2, *shape, dtype=input_type(machine)),
            count + 1,
            fabric.device,
            way_out="have fewer members, smaller batches, or `machine.checkpointing`",
        )
    fused: Fused | None = None
    if together and count > 1:
        try:
            fused = _fused(config, members, shape, fabric)
            report(f"{count} members as one network ({fused.way}), beside the student")
        except CannotFuse as problem:
            if begun or machine.fuse == "on":
                raise
            report(f"members one by one: {problem}")
    if machine.checkpointing and fused is None:
        for member in members:
            checkpoint_blocks(member)
    for one in members if fused is None else [fused]:
        compile_as(machine, one)
    return Companions(members if fused is None else fused)


def _way_of(out: Path) -> str | None:
    """How the members of a run that was stopped were trained; None if there is nothing yet."""
    if not (out / CHECKPOINT).exists():
        return None
    way: str | None = Run.read(out).document.get("companions", {}).get("way")
    return way


def _fused(
    config: Config, members: list[nn.Module], shape: tuple[int, ...] | None, fabric: Any
) -> Fused:
    if shape is None:
        raise CannotFuse(
            "Expected members on images or vectors to be trained as one network, but got texts, "
            "whose batches have different widths; use `--fuse off`."
        )
    dtype = input_type(config.machine)
    fused = fused_of(config, members, torch.zeros(2, *shape, dtype=dtype), fabric.device)
    if not config.machine.deterministic:  # which kernels are fastest is measured anew every time
        size = max(config.recipe.batch_size // fabric.world_size, 1)
        batch = torch.zeros(size, *shape, dtype=dtype, device=fabric.device)
        if batch.dim() == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        tune(fused, batch, fabric.autocast)
    return fused
