"""Ordinary runs that differ by seed alone, trained as one network where that can be done."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flipguard.errors import DivergedError
from flipguard.training.config import Config, from_dict
from flipguard.training.devices import exactness, fabric_of
from flipguard.training.fused_group import forget_groups
from flipguard.training.fusing import train_together
from flipguard.training.interrupting import ask_elsewhere
from flipguard.training.monitor import Report
from flipguard.training.train import train


def train_several(configs: Sequence[Config], folders: Sequence[Path], *, report: Report) -> bool:
    """Trains untreated runs of one kind: together what can be, and one by one what is left.

    False if time was up before they ended, which `machine.minutes` of the first says of all. One
    that diverges takes none of the others with it: they are trained alone then, and it is refused
    once they are finished.
    """
    minutes = configs[0].machine.minutes
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    fabric = fabric_of(configs[0].machine)
    with exactness(configs[0].machine, fabric.device):
        try:
            if not train_together(fabric, configs, folders, deadline=deadline, report=report):
                return False
        except DivergedError as problem:
            report(f"one by one: {problem}")
            forget_groups(configs, folders)
    diverged: DivergedError | None = None
    for config, folder in zip(configs, folders, strict=True):
        if deadline is not None:
            if time.monotonic() > deadline:
                return False
            left = (deadline - time.monotonic()) / 60
            machine = dataclasses.replace(config.machine, minutes=max(left, 0.0))
            config = dataclasses.replace(config, machine=machine)
        try:
            if not train(config, folder, resume=True, report=report).finished:
                return False
        except DivergedError as problem:
            diverged = diverged or problem
    if diverged is not None:
        raise diverged
    return True


def train_several_job(
    arguments: Mapping[str, Any], *, report: Report, stops: Callable[[], bool]
) -> bool:
    """Train `runs`, each a `config` and a `folder`, in a worker process; whether all finished."""
    ask_elsewhere(stops)
    runs = arguments["runs"]
    configs = [from_dict(run["config"]) for run in runs]
    return train_several(configs, [Path(run["folder"]) for run in runs], report=report)
