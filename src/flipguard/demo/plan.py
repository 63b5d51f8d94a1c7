"""What the demonstration trains, and what has to be there before what.

The task is MNIST-1D with a thousand training samples. The model in service is a small perceptron;
its successor has three times its width. Sizes were chosen by looking at two seeds, and measured on
others: see `benchmarks/demo.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = "mnist1d:train=1000,test=10000"
OLD, NEW = "mlp:hidden=64", "mlp:hidden=192,depth=2"
RECIPE = {"epochs": 100, "learning_rate": 2e-2, "augment": "shift-scale-noise"}
# The updates, and what each does about flips. Old was itself distilled from an ensemble.
OLD_OPTIONS = {"members": 4}
UPDATES: dict[str, dict[str, Any]] = {
    "none": {},
    "fd-lm": {"weight": 0.05},
    "elodi": {"members": 8, "legacy": 0.3},
}
CONTROL = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to be trained, and the names of those that must be finished before."""

    name: str
    folder: Path
    config: Any  # a `Config`; the learning side is not imported before it is needed
    after: frozenset[str]


def tasks(folder: Path, *, seed: int) -> list[Task]:
    """Every run, in the order in which it is best begun."""
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
                # Small nets: one process a core is faster than two threads.
                "machine": {"device": "cpu", "threads": 1},
                **more,
            }
        )

    old = folder / "old"
    # Another seed than its successor's: nobody keeps the one that an old model was trained with.
    found = _with_members("old", old, config(OLD, "elodi", OLD_OPTIONS, 1000 + seed), frozenset())
    for name, options in UPDATES.items():
        new = config(NEW, name, options, seed, old=[str(old)])
        found += _with_members(name, folder / name, new, frozenset({"old"}))
    return found


def _with_members(name: str, folder: Path, config: Any, after: frozenset[str]) -> list[Task]:
    """A run, and before it the members of its ensemble, which later find each other by folder."""
    from flipguard.training.checks import completed
    from flipguard.training.members import member_config, member_count, member_folder

    _, whole = completed(config)
    members = []
    for index in range(member_count(whole) if "members" in whole.options else 0):
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
