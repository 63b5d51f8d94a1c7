"""How a run differs from its method's paper, and which version of the formula it uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from flipguard.methods import method_of
from flipguard.methods.base import Fact
from flipguard.training.config import Config
from flipguard.training.folder import Run, is_finished


def departures_of(config: Config) -> list[str]:
    """The differences from the method's paper with the settings of a complete configuration."""
    method, named = method_of(config.method)
    return list(method.departures({**config.options, **named}))


def facts_for(config: Config, olds: Sequence[Config], *, new_classes: bool) -> frozenset[Fact]:
    """Return the facts about a run that decide whether a change of its method's formula applies.

    Args:
        config: The settings of the run.
        olds: The settings of the old runs that it follows.
        new_classes: Whether it has classes that one of the old runs lacks.
    """
    true: dict[Fact, bool] = {
        "clip": config.recipe.clip is not None,
        "new_classes": new_classes,
        "other_model": any(old.model != config.model for old in olds),
    }
    return frozenset(fact for fact, holds in true.items() if holds)


def changes_of(
    config: Config, olds: Sequence[Run], class_names: Collection[str]
) -> tuple[str, ...]:
    """The changes of its method's formula that a run with these classes is trained by."""
    lacked = any(set(class_names) - set(run.class_names) for run in olds)
    facts = facts_for(config, [run.config for run in olds], new_classes=lacked)
    return method_of(config.method)[0].changes(facts)


def changes_since(run: Run) -> tuple[str, ...]:
    """The changes of its method's formula that a run was trained before.

    Old runs that are gone are not asked.
    """
    olds = [Run.read(Path(old)) for old in run.config.old if is_finished(Path(old))]
    return changes_of(run.config, olds, run.class_names)[run.document.get("formula", 0) :]
