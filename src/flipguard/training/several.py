"""Train ordinary runs that differ only by seed, as one network if possible."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipguard.errors import DivergedError
from flipguard.runs.config import Config
from flipguard.training.devices import fabric_of, kernel_settings
from flipguard.training.fused_group import forget_groups
from flipguard.training.interrupting import poll_interrupt
from flipguard.training.jobs import JobMonitor, run_of_job, until
from flipguard.training.monitor import Monitor
from flipguard.training.outcomes import Stopped
from flipguard.training.strategies import GroupStrategy, explain
from flipguard.training.strategy import Member, TrainingContext
from flipguard.training.train import train_with
from flipguard.worker_process import JobContext


def train_several(configs: Sequence[Config], folders: Sequence[Path], *, monitor: Monitor) -> bool:
    """Train runs without a method: as one network if possible, the rest one by one.

    Return False if time was up before all were finished; `machine.minutes` of the first run is the
    limit for all. If a run diverges, all are trained alone, and its error is raised after the
    others are finished.
    """
    minutes = configs[0].machine.minutes
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    fabric = fabric_of(configs[0].machine)
    with kernel_settings(configs[0].machine, fabric.device):
        try:
            outcome = GroupStrategy().train(
                [Member(config=c, folder=f) for c, f in zip(configs, folders, strict=True)],
                TrainingContext(
                    fabric=fabric, train_one=train_with, deadline=deadline, monitor=monitor
                ),
            )
        except DivergedError as problem:
            monitor.note(f"one by one: {problem}")
            forget_groups(configs, folders)
        else:
            if isinstance(outcome, Stopped):
                return False
            explain(outcome, monitor)
    diverged: DivergedError | None = None
    for config, folder in zip(configs, folders, strict=True):
        if deadline is not None and time.monotonic() > deadline:
            return False
        config = until(config, deadline)
        try:
            if not train_with(None, config, folder, resume=True, monitor=monitor).finished:
                return False
        except DivergedError as problem:
            diverged = diverged or problem
    if diverged is not None:
        raise diverged
    return True


def train_several_job(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Train the runs of a job from `train_several_job_for`; return whether all finished."""
    poll_interrupt(context.stop_requested)
    runs = [run_of_job(values, arguments["deadline"]) for values in arguments["runs"]]
    configs, folders = [config for config, _ in runs], [folder for _, folder in runs]
    return train_several(configs, folders, monitor=JobMonitor(context))
