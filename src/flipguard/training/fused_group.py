"""Members that are trained as one network: which they are, and where their joint state lies."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard.errors import InputError
from flipguard.files import atomic_write
from flipguard.runs.config import Config, Machine
from flipguard.runs.folder import CHECKPOINT, begun_or_nothing, is_finished, remove_leftovers

# Convolutions with more channels fill a GPU alone; side by side in groups they are slower.
WIDEST = 128
# Such members at once, each a network on a stream of its own: one computes while another waits.
APART = 4
# Hidden beside the members, and gone when they are finished.
TOGETHER, LIST = ".together-", "members.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGroup:
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
        with atomic_write(self.folder / LIST) as path:
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


def fills_gpu(model: nn.Module) -> bool:
    """Whether its convolutions are so wide that several as one network would be slower."""
    return max((p.shape[0] for p in model.parameters() if p.dim() > 2), default=0) > WIDEST


def begun_groups(
    configs: Sequence[Config], folders: Sequence[Path], ours: Iterable[Path]
) -> Iterator[FusedGroup]:
    """Groups that were begun before, all of whose members are wanted now and are `ours`."""
    for path in folders[0].parent.glob(f"{TOGETHER}*"):
        remove_leftovers(path)
        _remove_empty(path)  # whoever was making or removing it was killed
    by_name = {
        folder.name: index
        for index, folder in enumerate(folders)
        if folder in ours or is_finished(folder)
    }
    for told in listed_groups(folders[0].parent):
        names = told["members"]
        if not set(names) <= set(by_name):
            continue
        group = FusedGroup(
            configs=tuple(configs[by_name[name]] for name in names),
            folders=tuple(folders[by_name[name]] for name in names),
            streams=told["streams"],
            begun=True,
        )
        if (group.folder / CHECKPOINT).exists():
            yield group
        else:
            group.end()  # nothing was reached yet


def listed_groups(parent: Path) -> Iterator[dict[str, Any]]:
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
    for group in begun_groups(configs, folders, folders):
        group.end()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
