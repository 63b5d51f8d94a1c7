"""Set up the training of a group: data, old models, members, and the fused network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.acceleration.memory import checkpoint_segments, memory_need
from flipguard.data import ArraySplit, DataSet, TextSplit, build_augmentation
from flipguard.errors import InputError
from flipguard.fusion import Fused, fuse
from flipguard.methods import OldModelInfo, method_of
from flipguard.runs.config import Config
from flipguard.runs.folder import Run
from flipguard.training.batches import BatchSource, data_of, input_shape_of
from flipguard.training.checkpoint import load_old_model, load_old_weights
from flipguard.training.checks import check_data, check_folder, check_layouts
from flipguard.training.devices import free_memory, input_type, to_device
from flipguard.training.evaluate import SEEN, FlipTracker
from flipguard.training.fused_group import APART, WIDEST, CannotFuse, FusedGroup
from flipguard.training.starting import as_seen, new_model, preprocessing_for


@dataclass(slots=True, kw_only=True)
class GroupSetup:
    """What the members of a group are trained with."""

    data: DataSet
    members: list[nn.Module]  # with initial weights; the trained weights are loaded at the end
    fused: Fused
    sources: list[BatchSource]
    trackers: dict[str, FlipTracker]


def set_up_group(fabric: Any, group: FusedGroup, configs: Sequence[Config]) -> GroupSetup:
    """Return data, members and trackers, equal to those of a run of each member alone."""
    first = configs[0]
    data = as_seen(data_of(first), preprocessing_for(first))
    if isinstance(data.train, TextSplit):
        raise CannotFuse(
            "Expected members on images or vectors to be trained as one network, but got texts, "
            "whose batches have different widths; use `machine.fuse=off`."
        )
    olds = _old_models(fabric, configs, data)
    members = [
        _member(fabric, folder, config, own, data)
        for folder, config, own in zip(group.folders, configs, olds, strict=True)
    ]
    sources = _sources(fabric, configs, data)
    dtype = input_type(first.machine)
    measured = BatchSource(
        data.splits[data.measured], device=fabric.device, model=first.model, dtype=dtype
    )
    return GroupSetup(
        data=data,
        members=members,
        fused=_fused_group(fabric, group, first, members, data),
        sources=sources,
        trackers={
            "train": FlipTracker(sources[0], olds, SEEN, autocast=fabric.autocast),
            data.measured: FlipTracker(measured, olds, autocast=fabric.autocast),
        },
    )


def _old_models(
    fabric: Any, configs: Sequence[Config], data: DataSet
) -> list[tuple[OldModelInfo, ...]]:
    """Return the old models of each member; each old model is loaded once."""
    machine = configs[0].machine
    folders = dict.fromkeys(old for config in configs for old in config.old)
    known = {
        old: load_old_model(Run.read(Path(old)), data, fabric.device, machine) for old in folders
    }
    return [tuple(known[old] for old in config.old) for config in configs]


def _member(
    fabric: Any, folder: Path, config: Config, olds: tuple[OldModelInfo, ...], data: DataSet
) -> nn.Module:
    """Return a member with its initial weights."""
    check_folder(folder, config, resume=True)
    check_data(folder, config, data)
    member = new_model(config, data)
    if config.fine_tune:
        check_layouts(method_of(config.method)[0], config, member, olds)
        load_old_weights(olds[0], member)
    return to_device(member, fabric.device)


def _sources(fabric: Any, configs: Sequence[Config], data: DataSet) -> list[BatchSource]:
    """Return the training samples for each member, augmented with its seed."""
    # On the device once, and not once per member.
    learned = data.train.to(fabric.device) if isinstance(data.train, ArraySplit) else data.train
    return [
        BatchSource(
            learned,
            device=fabric.device,
            model=config.model,
            augmentation=build_augmentation(config.recipe.augment),
            seed=config.seeds.of("augment"),
            dtype=input_type(config.machine),
        )
        for config in configs
    ]


def _fused_group(
    fabric: Any, group: FusedGroup, first: Config, members: Sequence[nn.Module], data: DataSet
) -> Fused:
    shape = input_shape_of(data)
    assert shape is not None  # of all but texts
    example = torch.zeros(2, *shape, dtype=input_type(first.machine))
    way_out = f"free some memory, or remove {group.folder} to start the members again"
    refuse_memory(
        first,
        members[0],
        example,
        len(members),
        fabric.device,
        way_out=way_out if group.begun else None,
    )
    return fused_of(
        first, members, example, fabric.device, streams=group.streams, insisted=group.begun
    )


def fused_of(
    config: Config,
    members: Sequence[nn.Module],
    example: Tensor,
    device: torch.device,
    *,
    streams: int = 1,
    insisted: bool = False,
) -> Fused:
    """Return members as one network; raise `CannotFuse` if it is impossible or would be slower.

    With `insisted`, a slower network is accepted.
    """
    try:
        fused = fuse(members, example=example, streams=streams).train()
        if config.machine.checkpointing:
            checkpoint_segments(fused)
    except InputError as problem:
        raise CannotFuse(str(problem)) from problem
    _refuse_on_gpu(config, fused, device, insisted=insisted)
    return fused


def _refuse_on_gpu(
    config: Config, fused: Fused, device: torch.device, *, insisted: bool = False
) -> None:
    """Raise if a GPU cannot train the network, or, without `insisted`, would be slower with it."""
    machine = config.machine
    if device.type != "cuda":
        return
    insisted = insisted or machine.fuse != "auto"
    mapped = fused.way != "packed"
    if mapped and not insisted:
        raise CannotFuse(
            "Expected a network of convolutions or of plain layers, which is faster if several are "
            "fused, but got one whose calls are mapped; use `machine.fuse=on` to fuse it anyway."
        )
    if mapped and machine.precision == "bf16-mixed" and machine.compile == "off":
        # Gradients of attention have two precisions there, which a kernel refuses.
        raise CannotFuse(
            "Expected a network whose calls are mapped to be compiled in bf16-mixed, but got "
            '`machine.compile = "off"`; set it to "parts", or use `machine.fuse=off`.'
        )
    if insisted:
        return
    widest = max((p.shape[1] for p in fused.parameters() if p.dim() > 3), default=0)
    alone = len(fused.parts()) == fused.count
    if widest > WIDEST and not alone:
        raise CannotFuse(
            f"Expected convolutions of up to {WIDEST} channels, which are faster in one network, "
            f"but got {widest}; use `machine.fuse=on` to fuse them anyway.",
            fitting=machine.streams or APART,
            streams=machine.streams or APART,
        )


def refuse_memory(
    config: Config,
    member: nn.Module,
    example: Tensor,
    count: int,
    device: torch.device,
    *,
    way_out: str | None = None,
) -> None:
    """Raise if a group does not fit into a GPU's memory.

    If `way_out` is given, raise instead of falling back to smaller groups.
    """
    if device.type != "cuda":
        return
    recipe = config.recipe
    half = config.machine.precision == "bf16-mixed"
    one = memory_need(
        member,
        example,
        optimizer=recipe.optimizer,
        half=half,
        again=config.machine.checkpointing,
    )
    free = free_memory(device)
    wanted = one.of(count, recipe.batch_size)
    if wanted > free:
        told = (
            f"Expected {count} members at once to fit into {free / 2**30:.1f} GiB, but they need "
            f"about {wanted / 2**30:.1f} GiB"
        )
        if way_out is not None:
            raise InputError(f"{told}; {way_out}.")
        fitting = one.most(free, recipe.batch_size)
        fewer = f"set `machine.fuse_chunk={fitting}`" if fitting > 1 else "use `machine.fuse=off`"
        raise CannotFuse(f"{told}; {fewer}.", fitting=fitting)
