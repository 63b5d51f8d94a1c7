"""Which members of an ensemble are trained as one network, and which one by one.

Members are trained together on a GPU (``auto``) or wherever it is asked for (``on``), if their
network can be fused; in groups, where memory is short. What was begun together goes on together,
and a member that was begun alone goes on alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from flipguard.errors import InputError
from flipguard.training.config import Config, Machine
from flipguard.training.folder import (
    CHECKPOINT,
    begun_or_nothing,
    is_finished,
    sweep,
    written,
)
from flipguard.training.interrupting import time_is_up
from flipguard.training.lock import InUseError, alone_in
from flipguard.training.loop import Report

# Convolutions with more channels fill a GPU alone; side by side in groups they are slower.
WIDEST = 128
# Such members at once, each a network on a stream of its own: one computes while another waits.
APART = 4
# Hidden beside the members, and gone when they are finished.
TOGETHER, LIST = ".together-", "members.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Members that are trained as one network, and where their joint state lies."""

    configs: tuple[Config, ...]
    folders: tuple[Path, ...]
    streams: int = 1  # of the GPU: as so many networks; what was begun goes on so
    begun: bool = False  # before: their joint state is of all of them, and of no fewer

    @property
    def folder(self) -> Path:
        """Where their joint state lies: beside them, by which they are."""
        names = "/".join(folder.name for folder in self.folders)
        name = hashlib.sha256(names.encode()).hexdigest()[:16]
        return self.folders[0].parent / f"{TOGETHER}{name}"

    def begin(self) -> None:
        """Says which members they are, for whoever goes on with them."""
        with written(self.folder / LIST) as path:
            names = [folder.name for folder in self.folders]
            path.write_text(json.dumps({"members": names, "streams": self.streams}) + "\n")

    @contextmanager
    def begun_or_nothing(self) -> Iterator[None]:
        """Removes what was written of new members if they fail before their state is kept."""
        state = self.folder / CHECKPOINT
        try:
            with ExitStack() as stack:
                for folder in self.folders:
                    stack.enter_context(begun_or_nothing(folder, state=state))
                yield
        except Exception:
            if not state.exists():
                self.end()
            raise

    def end(self) -> None:
        """Removes the joint state, once every member has its own folder."""
        # The list comes last: while it is there, whoever comes next finds what is left to remove.
        for path in self.folder.glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LIST:
                path.unlink(missing_ok=True)
        (self.folder / LIST).unlink(missing_ok=True)
        _remove_empty(self.folder)


class CannotFuse(InputError):
    """Why members are not trained as one network; `fitting` of them might be, on `streams`."""

    def __init__(self, said: str, *, fitting: int = 0, streams: int = 1) -> None:
        super().__init__(said)
        self.fitting = fitting
        self.streams = streams


def fuses(machine: Machine, device: torch.device) -> bool:
    """Whether members are to be one network, if they can."""
    return machine.fuse == "on" or (machine.fuse == "auto" and device.type == "cuda")


class Asked(NamedTuple):
    """How teachers answer: on so many streams, as one network or each apart."""

    streams: int = 1
    apart: bool = False


def teachers_asked(
    machine: Machine, device: torch.device, models: Sequence[nn.Module]
) -> Asked | None:
    """How models answer together, if they can; None: one after the other."""
    if len(models) < 2 or not fuses(machine, device):
        return None
    # A compiler of the whole keeps to one stream.
    streams = 1 if machine.compile == "whole" else machine.streams
    if machine.fuse == "on" or not fills_gpu(models[0]):
        return Asked(streams or 1)
    return None if streams == 1 else Asked(streams or APART, apart=True)


def fills_gpu(model: nn.Module) -> bool:
    """Whether its convolutions are so wide that several as one network would be slower."""
    return max((p.shape[0] for p in model.parameters() if p.dim() > 2), default=0) > WIDEST


def train_together(
    fabric: Any,
    configs: Sequence[Config],
    folders: Sequence[Path],
    *,
    deadline: float | None,
    report: Report,
) -> bool:
    """Trains the members that are trained together; False if time was up before they ended."""
    machine = configs[0].machine
    if fabric.world_size > 1 and machine.fuse != "on":
        return True  # every process takes its share of a batch, member after member
    stops = partial(time_is_up, deadline)
    with ExitStack() as stack:
        # In an order that all processes share, so that no two wait for each other.
        ours = _to_lock(machine, fabric, folders)
        for folder in sorted(ours):
            try:
                stack.enter_context(alone_in(folder, report=report, stops=stops))
            except InUseError:
                return False
        return _train_groups(fabric, configs, folders, ours, deadline=deadline, report=report)


def _to_lock(machine: Machine, fabric: Any, folders: Sequence[Path]) -> set[Path]:
    """The members that are to be trained together; the others are left to those who train them."""
    if fabric.world_size > 1:
        return set()  # which is refused
    names = {folder.name: folder for folder in folders}
    begun = [set(told["members"]) for told in _lists(folders[0].parent)]
    wanted = {names[name] for group in begun if group <= set(names) for name in group}
    if fuses(machine, fabric.device):
        fresh = {folder for folder in folders if _is_fresh(folder)}
        wanted |= fresh if len(fresh) > 1 else set()
    return {folder for folder in wanted if not is_finished(folder)}


def _train_groups(
    fabric: Any,
    configs: Sequence[Config],
    folders: Sequence[Path],
    ours: set[Path],  # those that no other process trains meanwhile
    *,
    deadline: float | None,
    report: Report,
) -> bool:
    from flipguard.training.fused import train_group

    machine = configs[0].machine
    for group in list(_begun(configs, folders, ours)) if fabric.world_size == 1 else ():
        if not train_group(fabric, group, deadline=deadline, report=report):
            return False
    if not fuses(machine, fabric.device):
        return True
    fresh = [index for index, folder in enumerate(folders) if _is_fresh(folder)]
    if len(fresh) < 2:
        return True
    size, streams = machine.fuse_chunk or len(fresh), machine.streams or 1
    try:
        _refuse_settings(fabric, configs[0])
        while len(fresh) > 1 and size > 1:
            group = Group(
                configs=tuple(configs[index] for index in fresh[:size]),
                folders=tuple(folders[index] for index in fresh[:size]),
                streams=streams,
            )
            try:
                if not train_group(fabric, group, deadline=deadline, report=report):
                    return False
            except CannotFuse as problem:
                fewer = 1 < problem.fitting < size
                if machine.fuse == "on" or not (fewer or problem.streams > streams):
                    raise
                size, streams = min(size, problem.fitting), max(streams, problem.streams)
                report(f"at most {size} members at once: {problem}")
                continue
            fresh = fresh[size:]
    except CannotFuse as problem:
        if machine.fuse == "on":
            raise
        report(f"members one by one: {problem}")
    return True


def _refuse_settings(fabric: Any, config: Config) -> None:
    machine = config.machine
    what = None
    if fabric.world_size > 1:
        what = f"{fabric.world_size} processes; use one"
    elif machine.precision == "16-mixed":
        what = "precision 16-mixed, which scales all gradients alike; use bf16-mixed or 32-true"
    if what is not None:
        raise CannotFuse(
            f"Expected members to be trained as one network, but got {what}, or `--fuse off`."
        )


def _is_fresh(folder: Path) -> bool:
    """Whether a member is neither finished nor begun alone."""
    if (folder / CHECKPOINT).exists():
        return False
    return not is_finished(folder)


def _begun(
    configs: Sequence[Config], folders: Sequence[Path], ours: Iterable[Path]
) -> Iterator[Group]:
    """Groups that were begun before, all of whose members are wanted now and are `ours`."""
    for path in folders[0].parent.glob(f"{TOGETHER}*"):
        sweep(path)
        _remove_empty(path)  # whoever was making or removing it was killed
    by_name = {
        folder.name: index
        for index, folder in enumerate(folders)
        if folder in ours or is_finished(folder)
    }
    for told in _lists(folders[0].parent):
        names = told["members"]
        if not set(names) <= set(by_name):
            continue
        group = Group(
            configs=tuple(configs[by_name[name]] for name in names),
            folders=tuple(folders[by_name[name]] for name in names),
            streams=told["streams"],
            begun=True,
        )
        if (group.folder / CHECKPOINT).exists():
            yield group
        else:
            group.end()  # nothing was reached yet


def _lists(parent: Path) -> Iterator[dict[str, Any]]:
    """The groups that were begun in a folder of members, as they were written down."""
    for path in sorted(parent.glob(f"{TOGETHER}*/{LIST}")):
        try:
            told = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        # A list is what was written before there were streams.
        yield {"members": told, "streams": 1} if isinstance(told, list) else told


def forget_groups(configs: Sequence[Config], folders: Sequence[Path]) -> None:
    """Removes the joint states of members, so that each begins anew and alone."""
    for group in _begun(configs, folders, folders):
        group.end()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
