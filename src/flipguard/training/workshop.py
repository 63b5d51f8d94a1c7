"""What members are trained with as one network: data, batches, losses, yardsticks, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.data import ArraySplit, DataSet, TextSplit, build_augmentation
from flipguard.errors import InputError
from flipguard.fusion import Fused, checkpoint_segments, fuse, needs
from flipguard.methods import method_of
from flipguard.models import build_model
from flipguard.training.checkpoint import load_old_model
from flipguard.training.checks import check_data, check_folder, check_layouts
from flipguard.training.config import Config
from flipguard.training.devices import free_memory, in_precision, input_type, placed
from flipguard.training.fine_tuning import start_from
from flipguard.training.folder import Run
from flipguard.training.fused_group import APART, WIDEST, CannotFuse, Group
from flipguard.training.material import Material, data_of, input_shape_of
from flipguard.training.measure import SEEN, Yardstick


class Together(nn.Module):
    """Fused members as one module that gives each member's loss."""

    def __init__(self, fused: Fused, label_smoothing: float) -> None:
        super().__init__()
        self.fused = fused
        self._smoothing = label_smoothing

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        logits = self.fused(inputs)
        targets = target.expand(logits.shape[:2])
        each = F.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            label_smoothing=self._smoothing,
            reduction="none",
        )
        return each.view(logits.shape[:2]).mean(1)


class JointYardstick(Yardstick):
    """Old models' answers on a split, and rates of all members at once against them."""

    @torch.no_grad()
    def rates_of_all(self, fused: Fused) -> list[dict[str, Any]]:
        """What `rates` says of each member."""
        training = fused.training
        fused.eval()
        said = []
        with self._autocast():
            for inputs, _ in self._material.batches(self._places):
                assert isinstance(inputs, Tensor)
                # As many activations at once as one member alone would have.
                for piece in torch.split(inputs, max(len(inputs) // fused.count, 1)):
                    # Not compiled: the pieces have many sizes.
                    said.append(fused.forward(piece).float().argmax(-1))
        fused.train(training)
        return self._rates(torch.cat(said, 1))


@dataclass(slots=True, kw_only=True)
class Workshop:
    """What a group is trained with."""

    data: DataSet
    members: list[nn.Module]  # as they start; at the end, what the weights are put into
    fused: Fused
    materials: list[Material]
    yardsticks: dict[str, JointYardstick]


def workshop_of(fabric: Any, group: Group, configs: Sequence[Config]) -> Workshop:
    """Data, members and yardsticks, as a run of each member alone has them."""
    first = configs[0]
    data = data_of(first)
    if isinstance(data.train, TextSplit):
        raise CannotFuse(
            "Expected members on images or vectors to be trained as one network, but got texts, "
            "whose batches have different widths; use `--fuse off`."
        )
    shape = input_shape_of(data)
    assert shape is not None  # of all but texts
    # Each once, also where all members have the same.
    folders = dict.fromkeys(old for config in configs for old in config.old)
    known = {
        old: load_old_model(Run.read(Path(old)), data, fabric.device, first.machine)
        for old in folders
    }
    olds = [tuple(known[old] for old in config.old) for config in configs]
    members = []
    for folder, config, own in zip(group.folders, configs, olds, strict=True):
        check_folder(folder, config, resume=True)
        check_data(folder, config, data)
        member = build_model(
            config.model,
            classes=len(data.class_names),
            input_shape=shape,
            seed=config.seeds.of("init"),
            pretrained=config.pretrained,
        )
        if config.fine_tune:
            check_layouts(method_of(config.method)[0], config, member, own)
            start_from(own[0], member)
        members.append(placed(in_precision(member, config.machine), fabric.device))
    # On the device once, and not once a member.
    learned = data.train.to(fabric.device) if isinstance(data.train, ArraySplit) else data.train
    materials = [
        Material(
            learned,
            device=fabric.device,
            model=config.model,
            augmentation=build_augmentation(config.recipe.augment),
            seed=config.seeds.of("augment"),
            dtype=input_type(config.machine),
        )
        for config in configs
    ]
    dtype = input_type(first.machine)
    test = Material(data.test, device=fabric.device, model=first.model, dtype=dtype)
    example = torch.zeros(2, *shape, dtype=dtype)
    way_out = f"free some, or remove {group.folder}, and they are begun anew"
    refuse_memory(
        first,
        members[0],
        example,
        len(members),
        fabric.device,
        way_out=way_out if group.begun else None,
    )
    fused = fused_of(
        first, members, example, fabric.device, streams=group.streams, insisted=group.begun
    )
    return Workshop(
        data=data,
        members=members,
        fused=fused,
        materials=materials,
        yardsticks={
            "train": JointYardstick(materials[0], olds, SEEN, autocast=fabric.autocast),
            "test": JointYardstick(test, olds, autocast=fabric.autocast),
        },
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
    """Members as one network, or why they are not; `insisted`: also if that is slower."""
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
    """Refuses what a GPU does faster one by one, unless it is asked for, and what it cannot do."""
    machine = config.machine
    if device.type != "cuda":
        return
    insisted = insisted or machine.fuse != "auto"
    mapped = fused.way != "packed"
    if mapped and not insisted:
        raise CannotFuse(
            "Expected a network of convolutions or of plain layers to gain from being one with "
            "others, but got one whose calls are mapped; ask for it with `--fuse on`."
        )
    if mapped and machine.precision == "bf16-mixed" and machine.compile == "off":
        # Its attention, where it has any, has gradients of two precisions; a kernel refuses them.
        raise CannotFuse(
            "Expected a network whose calls are mapped to be compiled in bf16-mixed, but got "
            '`machine.compile = "off"`; set it to "parts", or use `--fuse off`.'
        )
    if insisted:
        return
    widest = max((p.shape[1] for p in fused.parameters() if p.dim() > 3), default=0)
    alone = len(fused.parts()) == fused.count
    if widest > WIDEST and not alone:
        raise CannotFuse(
            f"Expected convolutions of up to {WIDEST} channels to gain from being one network, "
            f"but got {widest}; ask for it with `--fuse on`.",
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
    """Refuses a group that will not fit into a GPU, before anything is trained.

    With a `way_out` of its own there are no fewer at once, nor one by one: that is the end of it.
    """
    if device.type != "cuda":
        return
    recipe = config.recipe
    half = config.machine.precision == "bf16-mixed"
    one = needs(
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
            f"about {wanted / 2**30:.1f}"
        )
        if way_out is not None:
            raise InputError(f"{told}; {way_out}.")
        fitting = one.most(free, recipe.batch_size)
        fewer = f"set `machine.fuse_chunk={fitting}`" if fitting > 1 else "use `--fuse off`"
        raise CannotFuse(f"{told}; {fewer}.", fitting=fitting)
