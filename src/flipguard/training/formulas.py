"""How the settings of a run differ from its paper, and by which formula it was trained."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.methods import method_of
from flipguard.methods.base import Fact
from flipguard.training.config import Config


def departures_of(config: Config) -> list[str]:
    """What is not as in the paper of the method, with the settings of a complete configuration."""
    method, named = method_of(config.method)
    return list(method.departures({**config.options, **named}))


def facts_for(config: Config, olds: Sequence[Config], *, new_classes: bool) -> frozenset[Fact]:
    """What is true of a run that decides whether a change of its method's formula changes it.

    Args:
        config: Its settings.
        olds: Those of the old runs that it follows.
        new_classes: Whether it has classes that one of these lacks.
    """
    true: dict[Fact, bool] = {
        "clip": config.recipe.clip is not None,
        "new_classes": new_classes,
        "other_model": any(old.model != config.model for old in olds),
    }
    return frozenset(fact for fact, holds in true.items() if holds)
