"""What all ways of training members have in common: one interface, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flipguard.runs.config import Config
from flipguard.runs.folder import Run
from flipguard.training.monitor import Monitor
from flipguard.training.outcomes import Outcome


class TrainOne(Protocol):
    """Trains a single run."""

    def __call__(
        self,
        fabric: Any,
        config: Config,
        out: Path,
        *,
        resume: bool,
        waits: bool = False,
        monitor: Monitor,
    ) -> Run:
        """Train in the processes of a fabric, or in new ones if it is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An untreated run, and the folder it is trained in."""

    config: Config
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContext:
    """What every strategy needs besides the members."""

    fabric: Any
    train_one: TrainOne
    deadline: float | None  # a time of `time.monotonic`
    monitor: Monitor


class Strategy(ABC):
    """A way of training members."""

    @abstractmethod
    def train(self, members: Sequence[Member], context: TrainingContext) -> Outcome:
        """Train the members that are not finished, or say why this strategy does not apply."""
