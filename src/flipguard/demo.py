"""The demo: train on generated data, compare, judge, and write a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flipguard.comparison import Comparison, compare
from flipguard.errors import InputError
from flipguard.files import replacing
from flipguard.gate import Verdict, check
from flipguard.policy import Policy
from flipguard.worker_pool import Ending, Job, PoolMonitor, PoolSettings, WorkerPool

# Test samples are generated, so many cost little: these give a negative flip rate to 0.1 points.
DATA = "mnist1d:train=1000,test=200000"
OLD, NEW = "mlp:hidden=64", "mlp:hidden=192,depth=2"
RECIPE = {"epochs": 200, "learning_rate": 2e-2, "augment": "shift-scale-noise"}
MEASURE_EVERY = 20  # epochs, because measuring takes longer than an epoch
# ELODI is for a chain of updates, so the old model is trained with it as well.
OLD_OPTIONS = {"members": 4}
UPDATES: dict[str, dict[str, Any]] = {
    "none": {},
    "fd-lm": {"weight": 0.02},
    "elodi": {"members": 8, "alpha": 0.9},
}
CONTROL = "none"
MEANING = {
    "none": "untreated: the control",
    "fd-lm": "held to the old model by focal distillation",
    "elodi": "distilled from an ensemble of nets like itself",
}

ProgressCallback = Callable[[int, int], None]

POLICY = """\
# What an update of this classifier may do.
confidence = 0.95

[[rule]]                      # of all samples, at most 6 % may break
metric = "negative_flip_rate"
max = 0.06

[[rule]]                      # and it must be worth the work: three points of accuracy
metric = "accuracy_gain"
min = 0.03
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """A run to train, and the names of the runs that must be finished before it."""

    name: str
    folder: Path
    config: Any  # a `Config`; the learning side is not imported before it is needed
    after: frozenset[str]


def update_lines() -> list[str]:
    """Return a line about the old model, then one line for each update, with the settings.

    >>> update_lines()[0]
    'old    the net in service, itself trained by elodi (members = 4)'
    """
    lines = {"old": ("the net in service, itself trained by elodi", OLD_OPTIONS)} | {
        name: (MEANING[name], options) for name, options in UPDATES.items()
    }
    width = max(map(len, lines)) + 2
    return [
        f"{name:{width}}{meaning}" + (f" ({_settings(options)})" if options else "")
        for name, (meaning, options) in lines.items()
    ]


def _settings(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def tasks(folder: Path, *, seed: int) -> list[DemoRun]:
    """Return all runs of the demo, each after the runs that it needs."""
    from flipguard.runs.config import from_dict

    def config(model: str, method: str, options: dict[str, Any], seed: int, **more: Any) -> Any:
        return from_dict(
            {
                "data": DATA,
                "model": model,
                "method": method,
                "options": options,
                "recipe": RECIPE,
                "seeds": {"seed": seed},
                # For small nets, one process per core is faster than several threads.
                "machine": {"device": "cpu", "threads": 1, "measure_every": MEASURE_EVERY},
                **more,
            }
        )

    old = folder / "old"
    # The old and the new model have different seeds, as in real updates.
    found = _with_members("old", old, config(OLD, "elodi", OLD_OPTIONS, 1000 + seed), frozenset())
    for name, options in UPDATES.items():
        new = config(NEW, name, options, seed, old=[str(old)])
        found += _with_members(name, folder / name, new, frozenset({"old"}))
    return found


def _with_members(name: str, folder: Path, config: Any, after: frozenset[str]) -> list[DemoRun]:
    """Return the members of a run's ensemble, then the run, which finds their folders by itself."""
    from flipguard.training.checks import complete_config
    from flipguard.training.members import member_config, member_count, member_folder

    _, whole = complete_config(config)
    members = []
    for index in range(member_count(whole)):
        member = member_config(whole, index)
        members.append(
            DemoRun(
                name=f"{name}, member {index + 1}",
                folder=member_folder(member, folder),
                config=member,
                after=frozenset(),
            )
        )
    needed = after | {member.name for member in members}
    return [*members, DemoRun(name=name, folder=folder, config=config, after=needed)]


def train_all(tasks: Sequence[DemoRun], *, progress: ProgressCallback) -> None:
    """Train every run after the runs that it needs; finished runs are left as they are."""
    from flipguard.training.devices import cores
    from flipguard.training.jobs import train_job_for

    _refuse_others(tasks)
    folders = {task.name: task.folder for task in tasks}
    jobs = [
        train_job_for(task.config, task.folder, after=[folders[name] for name in task.after])
        for task in tasks
    ]
    monitor = _DemoMonitor(len(tasks), progress)
    WorkerPool(PoolSettings(processes=cores())).run(jobs, monitor=monitor)
    if monitor.problem is not None:
        raise monitor.problem


class _DemoMonitor(PoolMonitor):
    """Counts finished runs, and keeps the first problem until the running jobs have finished."""

    def __init__(self, count: int, progress: ProgressCallback) -> None:
        self.problem: Exception | None = None
        self._finished, self._count, self._progress = 0, count, progress

    def ended(self, job: Job | None, ending: Ending) -> None:
        if ending.kind == "finished":
            self._finished += 1
            self._progress(self._finished, self._count)
        elif self.problem is None:
            self.problem = _problem(job, ending)


def _problem(job: Job | None, ending: Ending) -> Exception:
    if ending.kind == "crashed":
        return RuntimeError(
            f"In {'a process' if job is None else 'the process of ' + job.key}:\n{ending.text}"
        )
    if ending.kind == "gone":
        return InputError(
            "Expected the training processes to finish, but one of them was killed, perhaps "
            "because memory ran out; run the demo again, which keeps the finished runs."
        )
    return InputError(ending.text)


def _refuse_others(tasks: Sequence[DemoRun]) -> None:
    """Raise if a folder holds runs of another demo, before anything is trained."""
    from flipguard.training.checks import check_folder, complete_config

    for task in tasks:
        check_folder(task.folder, complete_config(task.config)[1], resume=True)


def write_samples(path: Path) -> None:
    """Write the signals and ids of the test set."""
    from flipguard.data import ArraySplit, load_data

    test = load_data(DATA).test
    assert isinstance(test, ArraySplit)  # as generated data is
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, images=test.all_inputs.numpy(), ids=np.asarray(test.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """An update, its comparison with the old model, and its verdict."""

    name: str
    comparison: Comparison
    verdict: Verdict


def judge_updates(runs: Path, policy: Path) -> list[DemoResult]:
    """Return the result of every update, the control first."""
    rules = Policy.read(policy)
    return [_judged(runs, name, rules) for name in UPDATES]


def _judged(runs: Path, name: str, policy: Policy) -> DemoResult:
    result = compare(
        old=runs / "old",
        new=runs / name,
        control=[] if name == CONTROL else [runs / CONTROL],
        confidence=policy.confidence,
    )
    return DemoResult(name=name, comparison=result, verdict=check(result, policy))
