"""Ensembles: members are runs of their own, kept so that later students use them again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from flipguard.data import DataSet
from flipguard.errors import InputError
from flipguard.models import Inputs, classify
from flipguard.references import Ensemble, Reference
from flipguard.training.config import Config, as_dict
from flipguard.training.folder import Run, write_run
from flipguard.training.loop import Report
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
    return dataclasses.replace(
        config,
        method="none",
        options={},
        old=(),
        fine_tune=False,
        seeds=Seeds(seed=derived(config.seeds.seed, "member", index) % 2**31),
    )


def member_folder(config: Config, out: Path) -> Path:
    """Where a member lies: by what it is, so that equal ones are trained once."""
    values = as_dict(config)
    values.pop("machine")
    name = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
    return out / FOLDER / name


def members_of(config: Config, out: Path, *, report: Report) -> list[Run]:
    """The members of a run, trained if they are not there yet."""
    from flipguard.training.train import train

    count = config.options["members"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"Expected `members` to be a whole number from 1 on, but got {count!r}.")
    runs = []
    for index in range(count):
        wanted = member_config(config, index)
        folder = member_folder(wanted, out)
        report(f"member {index + 1} of {count}: {folder}")
        runs.append(train(wanted, folder, resume=True, report=lambda line: report(f"  {line}")))
    return runs


def trained_members(config: Config, out: Path, *, report: Report) -> Callable[[], Reference]:
    """The ensemble of a run's members, once they are trained."""
    from flipguard.training.predict import load_model

    runs = members_of(config, out, report=report)
    return lambda: Ensemble([load_model(run).eval() for run in runs])


def train_ensemble(config: Config, out: Path, data: DataSet, *, report: Report) -> Run:
    """Trains the members, and makes them one model."""
    from flipguard.training.predict import load_model, write_predictions
    from flipguard.training.train import facts_of, save_model

    model = Mean([load_model(run) for run in members_of(config, out, report=report)]).eval()
    facts = facts_of(data, model)
    write_run(out, config, status="training", **facts)
    save_model(out, model)
    write_predictions(out, model, data, split="test", device=torch.device("cpu"))
    write_run(out, config, status="finished", **facts)
    return Run.read(out)
