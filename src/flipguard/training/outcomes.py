"""The ways in which a training, or a strategy of training members, can end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flipguard.training.interrupting import StopReason


@dataclass(frozen=True, slots=True)
class Done:
    """All members are finished."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Training stopped before the last epoch, with a checkpoint to resume from."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Declined:
    """The strategy trains no more members; the next strategy trains the rest."""

    reason: str | None = None  # None if there is nothing to explain
    # What a member that was begun has reported, by its index.
    told: Mapping[int, Sequence[str]] = field(default_factory=dict)


Outcome: TypeAlias = Done | Stopped | Declined
