"""Groups of members that are trained as one network, and the folders of their checkpoints."""

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

# Convolutions with more channels fill a GPU alone; as grouped convolutions they are slower.
WIDEST = 128
# How many such members are trained at once, each on its own stream: one computes while others wait.
APART = 4
# A hidden folder next to the members' folders, removed when they are finished.
TOGETHER, LIST = ".together-", "members.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGroup:
    """Members that are trained as one network, with one shared checkpoint."""

    configs: tuple[Config, ...]
    folders: tuple[Path, ...]
    streams: int = 1  # GPU streams, each with its own network; a resumed group keeps the number
    begun: bool = False  # before: then the shared checkpoint fits only all of the members

    @property
    def folder(self) -> Path:
        """Path of the group's shared checkpoint: next to the members' folders, named after them."""
        names = "/".join(folder.name for folder in self.folders)
        name = hashlib.sha256(names.encode()).hexdigest()[:16]
        return self.folders[0].parent / f"{TOGETHER}{name}"

    def begin(self) -> None:
        """Write the list of members, which a resumed training reads."""
        with atomic_write(self.folder / LIST) as path:
            names = [folder.name for folder in self.folders]
            path.write_text(json.dumps({"members": names, "streams": self.streams}) + "\n")

    @contextmanager
    def begun_or_nothing(self) -> Iterator[None]:
        """Context manager: remove new members' folders on an error before the first checkpoint."""
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
        """Remove the shared checkpoint, once every member has its own folder."""
        # The list comes last: while it exists, the next process finds what is left to remove.
        for path in self.folder.glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LIST:
                path.unlink(missing_ok=True)
        (self.folder / LIST).unlink(missing_ok=True)
        _remove_empty(self.folder)


class CannotFuse(InputError):
    """Raised if members cannot be trained as one network.

    `fitting` of them may fit, on `streams`.
    """

    def __init__(self, said: str, *, fitting: int = 0, streams: int = 1) -> None:
        super().__init__(said)
        self.fitting = fitting
        self.streams = streams


def fuses(machine: Machine, device: torch.device) -> bool:
    """Return whether members are to be trained as one network if that is possible."""
    return machine.fuse == "on" or (machine.fuse == "auto" and device.type == "cuda")


def fills_gpu(model: nn.Module) -> bool:
    """Return whether convolutions are so wide that one network of several models is slower."""
    return max((p.shape[0] for p in model.parameters() if p.dim() > 2), default=0) > WIDEST


def begun_groups(
    configs: Sequence[Config], folders: Sequence[Path], ours: Iterable[Path]
) -> Iterator[FusedGroup]:
    """Yield the groups begun before whose members are all wanted now and are `ours` or finished."""
    for path in folders[0].parent.glob(f"{TOGETHER}*"):
        remove_leftovers(path)
        _remove_empty(path)  # a process was killed while it made or removed the folder
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
            group.end()  # no epoch was finished


def listed_groups(parent: Path) -> Iterator[dict[str, Any]]:
    """Yield the recorded groups in a folder of members."""
    for path in sorted(parent.glob(f"{TOGETHER}*/{LIST}")):
        try:
            told = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        # Older versions, which had no streams, wrote only the list of members.
        yield {"members": told, "streams": 1} if isinstance(told, list) else told


def forget_groups(configs: Sequence[Config], folders: Sequence[Path]) -> None:
    """Remove the shared checkpoints of members, so that each starts again alone."""
    for group in begun_groups(configs, folders, folders):
        group.end()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
