"""Make the runs of a study: each is stored once by its key, and shared by all studies.

The folder of a run is ``OUT/runs/<key of the run>``. Methods that do not use an old model are
trained without one, so a control with a seed is the same run in all studies.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.methods import Method, method_of
from flipguard.runs.config import Config, Machine, fix_randomness, from_dict
from flipguard.runs.folder import is_finished
from flipguard.runs.key import digest_of, run_key
from flipguard.studies.scales import Scale
from flipguard.studies.study import OLD, ModelSpec, Scalar, Study
from flipguard.training.checks import complete_config
from flipguard.training.members import member_config, member_count, member_folder
from flipguard.training.record import facts_for
from flipguard.training.reuse import start_paths

RUNS = "runs"
LIBRARIES = ("timm:", "torchvision:", "hf:")  # their models have weights
# Models of one generation and seed share their randomness; models of two generations never do.
SEEDS_A_GENERATION = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run, and the folders of the runs that must be finished before it starts."""

    folder: Path
    config: Config
    after: frozenset[Path]
    role: str
    seed: int
    members: tuple[Path, ...] = ()  # those that it trains, in order
    adopted: bool = False  # it is not trained: its weights are published
    changes: tuple[str, ...] = ()  # changes of its method's formula that apply to this run

    @property
    def name(self) -> str:
        """Its name for people."""
        old = " against old" if self.config.old else ""
        return f"{self.config.method}, {self.config.model}{old}, seed {self.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether it is finished already."""
        return is_finished(self.folder)


class Graph:
    """Runs by folder, each once, in an order in which they can be trained."""

    def __init__(
        self, study: Study, scale: Scale, *, out: Path, machine: Mapping[str, Any]
    ) -> None:
        self._study, self._scale = study, scale
        # Absolute, because a run that is resumed from another folder must find the same old run.
        self._runs = out.absolute() / RUNS
        self._machine = machine
        self._every_epoch = {"measure_every": 1} if study.curves else {}
        self.nodes: dict[Path, PlannedRun] = {}

    def add(
        self,
        model: ModelSpec,
        *,
        seed: int,
        old: PlannedRun | None = None,
        follower: ModelSpec | None = None,
    ) -> PlannedRun:
        """Add the run of a model and a seed, and all runs that it needs; return the run."""
        if follower is not None:
            model = _inherited(model, follower)
        spec = self._scale.roles.get(model.role or "", "")
        published = not model.trained and self._is_published(model.role, spec)
        if published and model.method == "none":
            return self._published(spec, model.role, seed)
        method, named = method_of(model.method)
        options = self._options(model, method, named)
        olds: list[PlannedRun] = []
        if method.needs(options).old or model.fine_tune or model.watch:
            for name in model.follows:
                if name != OLD:
                    olds.append(self.add(self._study.models[name], seed=seed, follower=model))
                elif old is not None:
                    olds.append(old)
        guides = [node.folder for node in self._guides(model, method, options, seed)]
        config = self._config(model, options, seed, [one.folder for one in olds], guides)
        _, config = complete_config(config)
        facts = facts_for(config, [one.config for one in olds], new_classes=_grows(config, olds))
        key = run_key(
            config,
            option_defaults=method.key_defaults,
            key_of_run=key_in_name,
            formula=method.formula(facts),
        )
        # Studies that show the rates of every epoch need a history without gaps.
        every = config.machine.measure_every
        folder = self._runs / (key if every == 1 else f"{key}-{every}")
        members = self._members(config, model, seed, olds)
        after = {one.folder for one in olds} | set(guides) | set(members)
        changes = method.changes(facts)
        return self._keep(folder, config, after, model.role, seed, members, changes)

    def parts(self, model: ModelSpec, *, seed: int) -> list[PlannedRun]:
        """Return the runs of a model that is the mean of given runs; else an empty list."""
        method, named = method_of(model.method)
        if not method.is_mean or not model.guides:
            return []
        return list(self._guides(model, method, self._options(model, method, named), seed))

    def _is_published(self, role: str | None, spec: str) -> bool:
        # A network of flipguard that the user puts in a role has no published weights.
        return role in self._scale.published and spec.startswith(LIBRARIES)

    def _published(self, spec: str, role: str | None, seed: int) -> PlannedRun:
        """Add the run of a model that is adopted with its published weights; no seed changes it."""
        scale = self._scale
        config = Config(
            data=scale.data,
            data_root=scale.data_root,
            model=spec,
            machine=Machine(device=self._machine.get("device", "auto")),
        )
        key = run_key(config, option_defaults={}, key_of_run=key_in_name)
        # A run that is trained with these settings is another one.
        folder = self._runs / digest_of([key, "published"])
        node = PlannedRun(
            folder=folder,
            config=config,
            after=frozenset(),
            role=role or "",
            seed=seed,
            adopted=True,
        )
        return self.nodes.setdefault(folder, node)

    def _keep(
        self,
        folder: Path,
        config: Config,
        after: Iterable[Path],
        role: str | None,
        seed: int,
        members: Iterable[Path] = (),
        changes: tuple[str, ...] = (),
    ) -> PlannedRun:
        node = PlannedRun(
            folder=folder,
            config=config,
            after=frozenset(after),
            role=role or "",
            seed=seed,
            members=tuple(members),
            changes=changes,
        )
        return self.nodes.setdefault(folder, node)

    def _options(
        self, model: ModelSpec, method: Method, named: Mapping[str, Scalar]
    ) -> dict[str, Scalar]:
        """Return all options: the paper's, changed by the scale, then those of the study."""
        scale, base = self._scale, method.name
        printed = method.printed_formula if scale.exact else {}
        printed |= {name: scale.option(base, name, v) for name, v in model.printed.items()}
        options = method.complete({**printed, **scale.defaults(base), **model.options, **named})
        options = method.at_most(options, members=scale.members, classes=scale.classes)
        return {name: value for name, value in options.items() if name not in named}

    def _config(
        self,
        model: ModelSpec,
        options: Mapping[str, Scalar],
        seed: int,
        old: Sequence[Path],
        guides: Sequence[Path],
        spec: str | None = None,
    ) -> Config:
        scale = self._scale
        spec = scale.roles[model.role or ""] if spec is None else spec
        values: dict[str, Any] = {
            "method": model.method,
            "options": dict(options),
            "data": scale.data,
            "data_root": scale.data_root,
            "model": spec,
            "pretrained": scale.pretrained,
            "weights": scale.weights,
            "preprocessing": scale.preprocessing,
            "old": [str(folder) for folder in old],
            "guides": [str(folder) for folder in guides],
            "fine_tune": model.fine_tune,
            "recipe": {"preset": scale.preset, **scale.recipe_of(spec), **model.recipe},
            "scope": self._scope(model, seed),
            "seeds": {"seed": SEEDS_A_GENERATION * (model.generation or 0) + seed},
            "machine": {**self._machine, **scale.machine, **self._every_epoch},
        }
        return from_dict(fix_randomness(values, model.fix))

    def _scope(self, model: ModelSpec, seed: int) -> dict[str, Any]:
        """Return the part of the data that a model sees."""
        scope = dict(self._scale.scope)
        if model.samples is not None:
            scope["samples"] = model.samples
        if model.classes is not None:
            scope["classes"] = round(self._scale.classes * model.classes)
        # Models that see all samples have no choice to make, and are the same run in all studies.
        if scope.keys() & {"samples", "classes", "validation"}:
            scope.setdefault("seed", seed)
        return scope

    def _guides(
        self, model: ModelSpec, method: Method, options: Mapping[str, Scalar], seed: int
    ) -> Iterator[PlannedRun]:
        """Yield the guides, with the settings of members."""
        members = method.needs(options).members
        if not model.guides or members is None:
            return
        count = sum(guide.count for guide in model.guides)
        limit = members.count
        for guide in model.guides:
            share = min(max(guide.count * limit // max(count, limit), 1), guide.count)
            generation = model.generation if guide.generation is None else guide.generation
            plain = dataclasses.replace(
                model, role=guide.role, follows=(), guides=(), generation=generation
            )
            specs = self._scale.models(guide.role)
            first = first_of(len(specs), seed, generation or 0)
            for index in range(share):
                # With many architectures, each seed starts with another one, and none is repeated.
                spec = specs[(first + index) % len(specs)]
                if not guide.trained and self._is_published(guide.role, spec):
                    yield self._published(spec, guide.role, seed)
                    continue
                _, config = complete_config(self._config(plain, options, seed, [], [], spec))
                # By its index, so that members of two architectures have different sample orders.
                yield self._member(config, index, guide.role, seed)

    def _members(
        self, config: Config, model: ModelSpec, seed: int, olds: Sequence[PlannedRun]
    ) -> list[Path]:
        """Add the members that a run trains, as runs of the graph; return their folders."""
        if config.guides:
            return []
        count = member_count(config)
        if count and config.fine_tune and olds and olds[0].members:
            return [node.folder for node in self._started(config, model.role, seed, olds[0])]
        return [self._member(config, index, model.role, seed).folder for index in range(count)]

    def _started(
        self, config: Config, role: str | None, seed: int, old: PlannedRun
    ) -> Iterator[PlannedRun]:
        """Yield the members that start each from an old member, which must be finished before."""
        # Real paths, because training resolves links too.
        by_place = {os.path.realpath(folder): folder for folder in old.members}
        places = [Path(place) for place in by_place]
        for index, start in enumerate(start_paths(config, old.folder, places)):
            wanted = member_config(config, index, start)
            yield self._keep_member(wanted, [by_place[start]], role, seed)

    def _member(self, config: Config, index: int, role: str | None, seed: int) -> PlannedRun:
        wanted = member_config(config, index)
        return self._keep_member(wanted, map(Path, wanted.old), role, seed)

    def _keep_member(
        self, wanted: Config, after: Iterable[Path], role: str | None, seed: int
    ) -> PlannedRun:
        folder = member_folder(wanted, self._runs / "any", key_of_run=key_in_name)
        return self._keep(folder, complete_config(wanted)[1], after, role, seed)


def first_of(count: int, seed: int, generation: int) -> int:
    """Return the index of the architecture that an ensemble starts with.

    With the seed, old ensembles go forwards and new ones backwards, and new ones shift by one after
    each full cycle. Otherwise each old ensemble would always be compared with the same new one.

    >>> [(first_of(8, seed, 1), first_of(8, seed, 0)) for seed in (0, 1, 2, 8)]
    [(0, 0), (7, 1), (6, 2), (7, 0)]
    """
    return (-(seed + seed // count) if generation % 2 else seed) % count


def _inherited(model: ModelSpec, follower: ModelSpec) -> ModelSpec:
    """Copy settings that a followed model leaves open from the follower."""
    return dataclasses.replace(
        model,
        role=follower.role if model.role is None else model.role,
        generation=follower.generation if model.generation is None else model.generation,
        samples=follower.samples if model.samples is None else model.samples,
        classes=follower.classes if model.classes is None else model.classes,
        recipe=model.recipe or follower.recipe,
    )


def _grows(config: Config, olds: Iterable[PlannedRun]) -> bool:
    """Return whether an old run knows fewer classes than this one."""

    def known(one: Config) -> float:
        return math.inf if one.scope.classes is None else one.scope.classes

    return any(known(old.config) < known(config) for old in olds)


def key_in_name(folder: str | Path) -> str:
    """Return the key with which the name of a run's folder begins.

    >>> key_in_name("out/runs/f047ab5c22a8db30-25")
    'f047ab5c22a8db30'
    """
    return Path(folder).name.partition("-")[0]
