"""How long runs take: as long as runs like them took, else by the scale's table of guesses."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from flipguard.errors import FlipguardError
from flipguard.methods import method_of
from flipguard.studies.graph import Node
from flipguard.studies.scales import Scale
from flipguard.training.config import Config
from flipguard.training.folder import RUN, TIMING, Run, read_lines
from flipguard.training.members import member_count

Kind: TypeAlias = tuple[str, str, str, str]

AVERAGING = 2.0  # seconds: an ensemble only loads its members


@dataclass(slots=True)
class Costs:
    """Seconds of an epoch, from finished runs and from a scale."""

    scale: Scale
    seen: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, scale: Scale, folders: Iterable[Path]) -> Costs:
        """With what the runs in some folders have taken."""
        costs = cls(scale)
        for folder in folders:
            for path in sorted(folder.glob(f"*/{RUN}")):
                costs.learn(path.parent)
        return costs

    def learn(self, folder: Path) -> None:
        """Notes how long the epochs of a run took."""
        try:
            rows = read_lines(folder / TIMING)
            if rows:
                # The mean, since not all epochs are measured, which takes as long as training.
                seconds = statistics.fmean(float(row["seconds"]) for row in rows)
                self.seen[_kind(Run.read(folder).config)].append(seconds)
        except (FlipguardError, OSError, ValueError, KeyError):
            return  # a run that is damaged teaches nothing, and is told of when it is needed

    def measured(self, node: Node) -> bool:
        """Whether runs like this one were timed."""
        return bool(self.seen.get(_kind(node.config)))

    def seconds(self, node: Node) -> float | None:
        """How long a run takes; None if nothing is known."""
        config = node.config
        if method_of(config.method)[0].is_mean:
            return AVERAGING
        if found := self.seen.get(_kind(config)):
            return statistics.fmean(found) * config.recipe.epochs
        plain = self.scale.seconds.get(node.role)
        if plain is None:
            return None
        return plain * _factor(config) * config.scope.samples * config.recipe.epochs


def trained_seconds(folder: Path) -> float:
    """How long the epochs of a run took, all together."""
    return sum(float(row["seconds"]) for row in read_lines(folder / TIMING))


def _kind(config: Config) -> Kind:
    members = member_count(config) or ""
    scope = f"{config.scope.samples:g}/{config.scope.classes}"
    return (
        f"{config.data}/{config.machine.device}/{config.recipe.batch_size}"
        f"/{config.recipe.optimizer}/{config.recipe.augment}",
        config.model,
        f"{config.method}/{members}/{len(config.old)}",
        scope,
    )


def _factor(config: Config) -> float:
    """What a method costs, in trainings of an untreated model."""
    references = len(config.old) + (len(config.guides) or member_count(config))
    return method_of(config.method)[0].cost(config.options, references)


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(400), in_words(9000), in_words(400_000)
    ('42 s', '7 min', '2.5 h', '4.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
