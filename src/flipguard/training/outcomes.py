"""How a training ended, or a way of training members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flipguard.training.interrupting import StopReason


@dataclass(frozen=True, slots=True)
class Done:
    """All members are finished."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Training stopped before the last epoch, and its state is kept."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Declined:
    """Nothing is left to train in this way; the next way does the rest."""

    reason: str | None = None  # None: it needs no explanation
    lines: tuple[str, ...] = ()  # what was reported while finding that out


Outcome: TypeAlias = Done | Stopped | Declined
