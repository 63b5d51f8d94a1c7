"""What the demo trains, and in which order.

The task is MNIST-1D with a thousand training samples. The model in service is a small perceptron
that ELODI trained; the new model is a wider and deeper one. The settings of the methods were chosen
on other data and other seeds (`benchmarks/demo_settings.py`), and the demo is measured seed by seed
(`benchmarks/demo.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Test samples are generated and cost little. So many give a negative flip rate to 0.1 points.
DATA = "mnist1d:train=1000,test=200000"
OLD, NEW = "mlp:hidden=64", "mlp:hidden=192,depth=2"
RECIPE = {"epochs": 200, "learning_rate": 2e-2, "augment": "shift-scale-noise"}
MEASURE_EVERY = 20  # epochs; so many test samples take longer than an epoch
# ELODI is for a chain of updates, so the old model is trained by it as well.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to train, and the names of the runs that must be finished before it."""

    name: str
    folder: Path
    config: Any  # a `Config`; the learning side is not imported before it is needed
    after: frozenset[str]


def described() -> list[str]:
    """Return a line about the old model, then one line for each update, with the settings.

    >>> described()[0]
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


def tasks(folder: Path, *, seed: int) -> list[Task]:
    """Return every run of the demo, each after the runs that it needs."""
    from flipguard.training.config import from_dict

    def config(model: str, method: str, options: dict[str, Any], seed: int, **more: Any) -> Any:
        return from_dict(
            {
                "data": DATA,
                "model": model,
                "method": method,
                "options": options,
                "recipe": RECIPE,
                "seeds": {"seed": seed},
                # Small nets: one process per core is faster than two threads.
                "machine": {"device": "cpu", "threads": 1, "measure_every": MEASURE_EVERY},
                **more,
            }
        )

    old = folder / "old"
    # The old and the new model have different seeds, as an update in service has.
    found = _with_members("old", old, config(OLD, "elodi", OLD_OPTIONS, 1000 + seed), frozenset())
    for name, options in UPDATES.items():
        new = config(NEW, name, options, seed, old=[str(old)])
        found += _with_members(name, folder / name, new, frozenset({"old"}))
    return found


def _with_members(name: str, folder: Path, config: Any, after: frozenset[str]) -> list[Task]:
    """Return the members of a run's ensemble, then the run, which finds them by their folders."""
    from flipguard.training.checks import completed
    from flipguard.training.members import member_config, member_count, member_folder

    _, whole = completed(config)
    members = []
    for index in range(member_count(whole)):
        member = member_config(whole, index)
        members.append(
            Task(
                name=f"{name}, member {index + 1}",
                folder=member_folder(member, folder),
                config=member,
                after=frozenset(),
            )
        )
    needed = after | {member.name for member in members}
    return [*members, Task(name=name, folder=folder, config=config, after=needed)]
