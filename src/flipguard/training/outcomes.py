"""The ways in which a training, or a strategy of training members, can end."""

from __future__ import annotations

from dataclasses import dataclass
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
    lines: tuple[str, ...] = ()  # what was reported while finding that out


Outcome: TypeAlias = Done | Stopped | Declined
