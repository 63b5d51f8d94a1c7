"""How a way of training members ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """All members are finished."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Training was stopped before all members were finished."""


@dataclass(frozen=True, slots=True)
class Declined:
    """Nothing is left to train in this way; the next way does the rest."""

    reason: str | None = None  # None: it needs no explanation


Outcome: TypeAlias = Done | Stopped | Declined
