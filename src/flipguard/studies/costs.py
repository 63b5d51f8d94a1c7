"""How long runs take: by finished runs like them, by a few timed steps, or by a scale's guess."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from flipguard.data import load_data
from flipguard.errors import FlipguardError
from flipguard.methods import method_of
from flipguard.methods.base import FORWARD
from flipguard.run_document import RUN
from flipguard.runs.config import Config
from flipguard.runs.folder import Run, read_lines
from flipguard.runs.history import MOST_EPOCHS, TIMING
from flipguard.runs.scope import Scope
from flipguard.studies.run_graph import PlannedRun
from flipguard.studies.scales import Scale
from flipguard.training.members import member_count
from flipguard.training.train import train_with

Kind: TypeAlias = tuple[str, str, str, str]
Model: TypeAlias = tuple[str, str]  # the first two of a kind: on which data and device, and which

AVERAGING = 2.0  # seconds: an ensemble only loads its members
# How long each model is timed, after one epoch of a few steps that warms up.
TIMED_STEPS, TIMED_SECONDS = 8, 5.0
UNTREATED = ("none//0", "1/None")  # the last two of a kind


@dataclass(slots=True)
class Costs:
    """Seconds of an epoch, from finished runs, from timed steps and from a scale."""

    scale: Scale
    seen: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Of untreated models that learn from all samples.
    plain: dict[Model, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Of adopted models, which only predict the test samples.
    adopting: dict[Model, float] = field(default_factory=dict)

    @classmethod
    def of(cls, scale: Scale, folders: Iterable[Path]) -> Costs:
        """Return the costs of a scale, with the times of the runs in some folders."""
        costs = cls(scale)
        for folder in folders:
            for path in sorted(folder.glob(f"*/{RUN}")):
                costs.learn(path.parent)
        return costs

    def learn(self, folder: Path) -> None:
        """Add the time of a run's epochs."""
        try:
            rows = read_lines(folder / TIMING)
            if rows:
                # The mean, because only some epochs include a measurement, which takes long.
                seconds = statistics.fmean(float(row["seconds"]) for row in rows)
                config = Run.read(folder).config
                kind = _kind(config)
                self.seen[kind].append(seconds)
                if kind[2:] == UNTREATED:
                    self.plain[kind[:2]].append(seconds)
        except (FlipguardError, OSError, ValueError, KeyError):
            return  # a damaged run is ignored here, and reported when it is needed

    def timed(self, node: PlannedRun) -> bool:
        """Return whether runs like this one, or its model, were timed."""
        kind = _kind(node.config)
        if node.adopted:
            return kind[:2] in self.adopting
        return bool(self.seen.get(kind) or self.plain.get(kind[:2]))

    def guessed(self, node: PlannedRun) -> bool:
        """Return whether no measured time exists; an average needs none."""
        is_mean = method_of(node.config.method)[0].is_mean
        return not is_mean and not self.timed(node)

    def seconds(self, node: PlannedRun) -> float | None:
        """Return the seconds that a run takes; None if they are unknown."""
        config, kind = node.config, _kind(node.config)
        if node.adopted:
            return self.adopting.get(kind[:2])
        if method_of(config.method)[0].is_mean:
            return AVERAGING
        if found := self.seen.get(kind):
            return statistics.fmean(found) * config.recipe.epochs
        timed = self.plain.get(kind[:2])
        plain = statistics.fmean(timed) if timed else self.scale.seconds.get(node.role)
        if plain is None:
            return None
        classes = config.scope.classes or self.scale.classes
        share = config.scope.samples * min(classes / self.scale.classes, 1)
        return plain * _factor(config) * share * config.recipe.epochs


def trained_seconds(folder: Path) -> float:
    """Return the seconds of all epochs of a run."""
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
    """Return the cost of a method in training runs without a method."""
    references = len(config.old) + (len(config.guides) or member_count(config))
    return method_of(config.method)[0].cost(config.options, references)


def time_models(nodes: Sequence[PlannedRun], costs: Mapping[Path, Costs]) -> None:
    """Time a few steps of each model whose time no finished run tells, and add it to the costs."""
    sizes: dict[tuple[str, str | None], tuple[int, int]] = {}
    for node in nodes:
        known, config = costs[node.folder], node.config
        if node.is_finished or not known.guessed(node):
            continue
        place = config.data, config.data_root
        if place not in sizes:
            root = None if config.data_root is None else Path(config.data_root)
            data = load_data(config.data, root=root)
            sizes[place] = len(data.train), len(data.test)
        samples, tests = sizes[place]
        seconds = seconds_per_sample(config, samples)
        if node.adopted:
            known.adopting[_kind(config)[:2]] = FORWARD * seconds * tests
        else:
            known.plain[_kind(config)[:2]].append(seconds * samples)


def seconds_per_sample(config: Config, samples: int) -> float:
    """Return the seconds per training sample of an untreated model.

    A run in a temporary folder trains for a few seconds, from new weights that do not change.
    """
    batch = config.recipe.batch_size * config.recipe.accumulate
    plain = dataclasses.replace(
        config,
        method="none",
        options={},
        old=(),
        guides=(),
        fine_tune=False,
        pretrained=False,
        weights=None,
        scope=Scope(samples=min(TIMED_STEPS * batch / samples, 1.0)),
        recipe=dataclasses.replace(config.recipe, epochs=MOST_EPOCHS, learning_rate=0.0),
        machine=dataclasses.replace(
            config.machine, minutes=TIMED_SECONDS / 60, measure_every=MOST_EPOCHS
        ),
    )
    timing = _Timing(batch)
    with TemporaryDirectory() as folder:
        train_with(None, plain, Path(folder) / "run", monitor=timing)
    # The first epoch warms up. If it exceeds the limit, it is the only one.
    return statistics.median(timing.found[1:] or timing.found)


class _Timing:
    """A monitor that keeps the seconds of each epoch per sample that was used."""

    def __init__(self, batch: int) -> None:
        self.found: list[float] = []
        self._batch = batch

    def note(self, text: str) -> None:
        """Ignore it."""

    def epoch(
        self,
        done: int,  # noqa: ARG002
        of: int,  # noqa: ARG002
        rows: Sequence[Mapping[str, Any]],  # noqa: ARG002
        timing: Mapping[str, Any],
        seconds_left: float,  # noqa: ARG002
    ) -> None:
        """Keep an epoch's time."""
        seen = round(timing["samples_a_second"] * timing["seconds"])
        used = seen // self._batch * self._batch or seen  # an incomplete last batch is dropped
        self.found.append(timing["seconds"] / used)
