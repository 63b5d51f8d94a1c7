"""Runs as jobs for worker processes: the parent makes them, the training functions read them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flipguard.runs.config import Config, as_dict, from_dict
from flipguard.worker_pool import Job
from flipguard.worker_process import JobContext

# Functions are given by name, because importing them here would be a cycle.
TRAIN_JOB = "flipguard.training.train:train_job"
TRAIN_SEVERAL_JOB = "flipguard.training.several:train_several_job"
ADOPT_JOB = "flipguard.training.adopt:adopt_job"

OneRun = tuple[Config, Path]


def train_job_for(
    config: Config,
    folder: Path,
    *,
    after: Collection[Path] = (),
    cost: float = 1.0,
    deadline: float | None = None,
    waits: bool = False,
) -> Job:
    """Return the job that trains a run; its key is the folder.

    It stops after the epoch in which the deadline passes. With `waits`, it waits while another
    process writes to the folder.
    """
    return Job(
        key=str(folder),
        call=TRAIN_JOB,
        arguments={**_run_values(config, folder), "deadline": deadline, "waits": waits},
        after=frozenset(map(str, after)),
        cost=cost,
    )


def train_several_job_for(
    runs: Sequence[OneRun],
    *,
    after: Collection[Path] = (),
    cost: float = 1.0,
    deadline: float | None = None,
) -> Job:
    """Return the job that trains runs that differ only by seed, as one network if possible."""
    return Job(
        key=str(runs[0][1]),
        call=TRAIN_SEVERAL_JOB,
        arguments={"runs": [_run_values(*run) for run in runs], "deadline": deadline},
        after=frozenset(map(str, after)),
        makes=frozenset(str(folder) for _, folder in runs),
        cost=cost,
    )


def adopt_job_for(config: Config, folder: Path, *, cost: float = 1.0) -> Job:
    """Return the job that adopts a model with published weights; its key is the folder."""
    return Job(key=str(folder), call=ADOPT_JOB, arguments=_run_values(config, folder), cost=cost)


def run_of_job(values: Mapping[str, Any], deadline: float | None) -> OneRun:
    """Return the configuration, limited to the time that is left, and the folder of a job's run."""
    config = until(from_dict(values["config"]), deadline)
    return config, Path(values["folder"])


def until(config: Config, deadline: float | None) -> Config:
    """Return a configuration whose training stops at a deadline, a time of `time.monotonic`."""
    if deadline is None:
        return config
    # `time.monotonic` is the same clock in all processes.
    minutes = max(deadline - time.monotonic(), 0.0) / 60
    return dataclasses.replace(config, machine=dataclasses.replace(config.machine, minutes=minutes))


def _run_values(config: Config, folder: Path) -> dict[str, Any]:
    return {"config": as_dict(config), "folder": str(folder)}


class JobMonitor:
    """Sends the progress of a training to the parent process."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self.note = context.note

    def epoch(
        self,
        done: int,
        of: int,
        rows: Sequence[Mapping[str, Any]],  # noqa: ARG002
        timing: Mapping[str, Any],  # noqa: ARG002
        seconds_left: float,  # noqa: ARG002
    ) -> None:
        """Send how many epochs are done; the rest is in the run's folder."""
        self._context.epoch(done, of)
