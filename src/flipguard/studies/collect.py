"""Collect the rows of a study from finished runs, and its differences from the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from flipguard.methods import method_of
from flipguard.runs.config import Config
from flipguard.runs.folder import Run, read_lines
from flipguard.runs.history import HISTORY, SPLITS, measured_split
from flipguard.runs.presets import PRESETS
from flipguard.runs.scope import Scope
from flipguard.studies.analyses import Analysed, analyses_of
from flipguard.studies.measure import measured
from flipguard.studies.plan import ComparedPair, StudyPlan
from flipguard.studies.results import Row
from flipguard.studies.study import DEFAULT_METRICS, ModelSpec, Scalar, StudyRow

DIGITS = 10
# Metrics of updates, by the runs of both sides and the names of metrics: studies share updates.
Updates: TypeAlias = dict[
    tuple[tuple[Path, ...], tuple[Path, ...], tuple[str, ...]], dict[str, float]
]


def differences(plan: StudyPlan) -> list[str]:
    """Return the differences from the paper, such as ``kd: weight = 6 (1 by default)``."""
    nodes = {node.folder: node for node in plan.nodes}
    found: dict[str, None] = {}  # a set that keeps its order
    for update in plan.updates:
        changed = _changed(plan.study.lines[update.line].new, nodes[update.new].config)
        found |= dict.fromkeys(changed)
    histogram = plan.study.histogram
    for judge in plan.judges.values():
        assert histogram is not None
        assert histogram.judge is not None
        changed = _changed(plan.study.models[histogram.judge], nodes[judge].config)
        found |= dict.fromkeys(f"who judges, {one}" for one in changed)
    for node in plan.nodes:
        found |= dict.fromkeys(_of_formula(node.config))
    found |= dict.fromkeys(_of_scope(plan))
    if plan.scale.exact:
        found |= dict.fromkeys(_of_models(plan))
        found |= dict.fromkeys(_of_user(plan))
        found |= dict.fromkeys(_of_recipe(plan))
    return list(found)


def _changed(model: ModelSpec, config: Config) -> Iterator[str]:
    method, named = method_of(config.method)
    defaults = {option.name: option.default for option in method.options}
    papers = {option.name: option.printed.value for option in method.options if option.printed}
    stated = {**model.printed, **model.options, **named}
    for name, value in config.options.items():
        # None means all classes, as the paper's K = 1000 does.
        if value is None or value == stated.get(name, defaults.get(name)):
            continue
        text = f"{method.name}: {name} = {_as_text(value)}"
        if name not in stated and value == papers.get(name):
            continue
        if name in stated:
            yield f"{text} for {_as_text(stated[name])}"
        else:
            yield f"{text} ({_as_text(defaults[name])} by default)"


def _of_formula(config: Config) -> Iterator[str]:
    """Yield where a method's formula differs from the printed one."""
    method, named = method_of(config.method)
    for one in method.departures({**config.options, **named}, formula_only=True):
        yield f"{config.method}: {one}"


def _of_scope(plan: StudyPlan) -> Iterator[str]:
    """Yield how the old model's part of the data is chosen."""
    scope = Scope(**plan.scale.scope)
    for line in _lines(plan):
        if line.old.classes is not None and scope.class_choice == "first":
            count = round(plan.scale.classes * line.old.classes)
            yield f"the old model's classes: the first {count}, where PCT draws them at random"
        if line.old.samples is not None and not scope.per_class:
            yield "the old model's samples: drawn from all, where PCT draws as many of each class"


def _of_models(plan: StudyPlan) -> Iterator[str]:
    """Yield models that differ from those that the paper names."""
    for line in _lines(plan):
        if line.paper is None:
            continue
        for model, named in ((line.old, line.paper.old), (line.new, line.paper.new)):
            yield from _of_model(plan.scale.models(model.role or ""), named)
            for guide in model.guides:
                yield from _of_model(plan.scale.models(guide.role), guide.stands_for)


def _of_model(specs: object, named: str | None) -> Iterator[str]:
    if named is None or not isinstance(specs, list | tuple) or len(specs) != 1:
        return
    spec = str(specs[0])
    if not _plain(spec.partition(":")[2] or spec).startswith(_plain(named)):
        yield f"model: {spec} for {named}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _of_user(plan: StudyPlan) -> Iterator[str]:
    """Yield what the user changed: settings, and fewer seeds than the scale has."""
    for text in plan.scale.given_without_paths:
        yield f"set by the user: {text}"
    if (count := len(plan.seeds)) < (usual := plan.scale.seeds):
        yield f"seeds: {count} instead of {usual}"


def _of_recipe(plan: StudyPlan) -> Iterator[str]:
    """Yield differences in the recipe and in the images."""
    trained = [node.config for node in plan.nodes if not node.adopted]
    for spec in dict.fromkeys(config.model for config in trained):
        ours = plan.scale.recipe_of(spec)
        common = {**PRESETS.get(plan.scale.preset or "", {}), **plan.scale.recipe}
        if changes := [f"{k} = {v}" for k, v in ours.items() if v != common.get(k)]:
            yield f"recipe of {spec}: {', '.join(changes)}"
    if trained:
        yield "recipe: the last incomplete batch of every epoch is dropped"
    for precision in dict.fromkeys(config.machine.precision for config in trained):
        if precision != "32-true":
            yield f"precision: {precision}"
    yield from plan.scale.unlike


def _lines(plan: StudyPlan) -> list[StudyRow]:
    return [plan.study.lines[place] for place in dict.fromkeys(u.line for u in plan.updates)]


def _as_text(value: Scalar) -> str:
    if value is None:
        return "all"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def setting_of(plan: StudyPlan) -> dict[str, Any]:
    """Return the data, epochs and recipe, and the models that stand for the paper's."""
    scale = plan.scale
    names: dict[str, str] = {}
    # The cells of a matrix have the names of roles.
    for place in () if plan.study.matrix else {update.line: 0 for update in plan.updates}:
        line = plan.study.lines[place]
        if line.paper is not None:
            names |= {line.old.role or "": line.paper.old or line.old.role or ""}
            names |= {line.new.role or "": line.paper.new or line.new.role or ""}
    used = {node.role for node in plan.nodes}
    # A model that is adopted has no recipe.
    trained = [node for node in plan.nodes if not node.adopted] or plan.nodes
    return {
        "data": scale.data,
        "samples": samples_of(plan),
        "epochs": max(node.config.recipe.epochs for node in trained),
        "recipe": recipe_of(plan),
        "models": {
            names.get(role, role): " or ".join(scale.models(role))
            for role in (*scale.roles, *scale.many)
            if role in used
        },
    }


def recipe_of(plan: StudyPlan) -> dict[str, Any]:
    """Return the optimizer and the scale's recipe, except the number of epochs."""
    scale = plan.scale
    trained = next((node for node in plan.nodes if not node.adopted), plan.nodes[0])
    return {
        **({} if scale.preset is None else {"preset": scale.preset}),
        "optimizer": trained.config.recipe.optimizer,
        **{name: value for name, value in scale.recipe.items() if name != "epochs"},
    }


def samples_of(plan: StudyPlan) -> dict[str, int]:
    """Return the sizes of the training and test sets; some runs may have seen only a part."""
    sizes = [Run.read(node.folder).document["data"] for node in plan.nodes]
    return {part: max(size[part] for size in sizes) for part in SPLITS if part in sizes[0]}


def collect_rows(plan: StudyPlan, known: Updates | None = None) -> tuple[Row, ...]:
    """Return the rows of a study whose runs are all finished; add the metrics to `known`."""
    known = {} if known is None else known
    study = plan.study
    analysed = analyses_of(plan)
    counted = {name for one in analysed.values() for name in one.values}
    names = tuple(
        dict.fromkeys((*DEFAULT_METRICS, *(n for n in study.metrics if n not in counted)))
    )
    rows = []
    for place in study.chosen(plan.scale.stands_for, exact=plan.scale.exact):
        if place in plan.left_out:
            rows.append(Row(place=place, values={}, why_not=plan.left_out[place]))
            continue
        updates = [update for update in plan.updates if update.line == place]
        found = []
        for update in updates:
            key = (*update.sides, names)
            if key not in known:
                known[key] = measured(*key)
            found.append(known[key])
        of_row = analysed.get(place, Analysed())
        values = {name: [one[name] for one in found] for name in names} | of_row.values
        rows.append(
            Row(
                place=place,
                values={
                    name: tuple(round(value, DIGITS) for value in of_seeds)
                    for name, of_seeds in values.items()
                },
                runs={
                    side: tuple(update.names[side] for update in updates) for side in ("old", "new")
                },
                curves={split: curves(updates, split) for split in study.curves},
                histogram=of_row.histogram,
                notes=of_row.notes,
            )
        )
    return tuple(rows)


def curves(updates: Sequence[ComparedPair], split: str) -> dict[str, Any]:
    """Return the rates after every epoch, one list per seed.

    Those of ``test`` are of the validation split in runs that have one.
    """
    found: dict[str, Any] = {
        "error_rate_new": [],
        "negative_flip_rate": [],
        "relative_negative_flip_rate": [],
    }
    for update in updates:
        rows = read_lines(update.new / HISTORY)
        of = split if split == "train" else measured_split(rows[-1]) or split
        was = read_lines(update.old / HISTORY)[-1][of]["error_rate"]
        errors = [row[of]["error_rate"] for row in rows]
        flips = [_against(row[of]["old"], update.old)["negative_flip_rate"] for row in rows]
        found["error_rate_new"].append(errors)
        found["negative_flip_rate"].append(flips)
        found["relative_negative_flip_rate"].append(
            [
                _finite(flip / chance) if (chance := (1 - was) * error) else None
                for flip, error in zip(flips, errors, strict=True)
            ]
        )
    return found


def _against(old: dict[str, Any], folder: Path) -> dict[str, float]:
    """Return a run's rates against one old run, which may have been moved since."""
    found: dict[str, float] = next(
        rates for name, rates in old.items() if Path(name).name == folder.name
    )
    return found


def _finite(value: float) -> float | None:
    return round(value, DIGITS) if math.isfinite(value) else None
