"""Ensembles: members are runs of their own, kept so that later students use them again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.models import Inputs, classify
from flipguard.references import Ensemble, Reference
from flipguard.training.config import Config, as_dict
from flipguard.training.devices import placed
from flipguard.training.folder import Run
from flipguard.training.loop import Report
from flipguard.training.material import without_held_out
from flipguard.training.seeds import Seeds, derived

FOLDER = "members"


class Mean(nn.Module):
    """Several models as one that gives the mean of their logits."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Inputs) -> Tensor:
        return torch.stack([classify(member, inputs).float() for member in self.members]).mean(0)


def member_config(config: Config, index: int) -> Config:
    """The configuration of a member: untreated, and with a seed of its own."""
    calibrated = config.options.get("guide") == "calibrated"
    return dataclasses.replace(
        config,
        # Temperatures are fitted on samples that no member has learned.
        scope=without_held_out(config.scope) if calibrated else config.scope,
        method="none",
        options={},
        # Where the student starts from old's weights, so do its members.
        old=config.old if config.fine_tune else (),
        guides=(),
        seeds=Seeds(seed=derived(config.seeds.seed, "member", index) % 2**31),
    )


def member_folder(config: Config, out: Path) -> Path:
    """Where a member lies: beside the runs that use it, by what it is, so that it is made once."""
    values = as_dict(config)
    values.pop("machine")
    name = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
    return out.absolute().parent / FOLDER / name


def members_of(
    fabric: Any, config: Config, out: Path, *, deadline: float | None, report: Report
) -> list[Run] | None:
    """The members of a run, trained if they are not there yet; None if time was up before."""
    from flipguard.training.train import train_with

    count = member_count(config)
    runs = []
    for index in range(count):
        wanted = member_config(config, index)
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0.0) / 60
            machine = dataclasses.replace(config.machine, minutes=left)
            wanted = dataclasses.replace(wanted, machine=machine)
        folder = member_folder(wanted, out)
        report(f"member {index + 1} of {count}: {folder}")
        run = train_with(
            fabric, wanted, folder, resume=True, report=lambda line: report(f"  {line}")
        )
        if not run.finished:
            return None
        runs.append(run)
    return runs


def member_count(config: Config) -> int:
    """How many members a run has."""
    count = config.options["members"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"Expected `members` to be a whole number from 1 on, but got {count!r}.")
    return count


def given_members(config: Config, class_names: tuple[str, ...]) -> list[Run]:
    """The finished runs that were given as an ensemble, of whatever architecture."""
    runs = [Run.read(Path(folder)) for folder in config.guides]
    for run in runs:
        if not run.finished or run.class_names != class_names:
            what = "is not finished" if not run.finished else "knows other classes"
            raise InputError(
                f"Expected `guides` to be finished runs of the same classes, but {run.folder} "
                f"{what}; resume it, or choose another."
            )
    return runs


def guide_of(
    runs: Sequence[Run], *, device: Any, held_out: Callable[[], Iterable[Any]] | None
) -> Callable[[], Reference]:
    """The ensemble of finished members, calibrated if there are samples to calibrate it on."""
    from flipguard.training.predict import load_model

    def guide() -> Reference:
        ensemble = Ensemble([placed(load_model(run).eval(), device) for run in runs])
        return ensemble if held_out is None else ensemble.calibrate(held_out())

    return guide


def mean_of(runs: Sequence[Run]) -> Mean:
    """Finished members as one model."""
    from flipguard.training.predict import load_model

    return Mean([load_model(run) for run in runs]).eval()
