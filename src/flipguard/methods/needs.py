"""What a method needs, and the facts about a run that are known before it begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flipguard.errors import InputError, listed

MOST_MEMBERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The ensemble that a method asks for."""

    count: int
    reused: int = 0  # taken from the old run's ensemble instead of being trained
    calibrated: bool = False  # each with a temperature that is fitted on held-out samples
    may_be_given: bool = False  # `guides`, which are finished runs, may be the ensemble

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_MEMBERS:
            raise InputError(
                f"Expected `members` to be a whole number from 1 to {MOST_MEMBERS:,}, but got "
                f"{listed([self.count])}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a method needs. A run that lacks it is refused before any work."""

    old: bool = False
    one_old: bool = False
    same_classes: bool = False
    same_layout: bool = False
    members: Members | None = None
    held_out: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields that are needed, in order."""
        return tuple(one.name for one in dataclasses.fields(self) if getattr(self, one.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRun:
    """Facts about an old run that are known before it is loaded."""

    folder: Path
    members: int  # number of members in its `run.json`


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a run that are known before its data are read."""

    olds: Sequence[OldRun] = ()
    guides: int = 0  # number of finished runs that are given as the ensemble
