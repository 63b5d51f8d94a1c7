"""What is otherwise at a scale than in the paper, from code and configuration.

Options that a scale sets are compared with what the paper's rows say, or with a method's defaults.
Where a method's formula is not the printed one, that is said at every scale. Where a scale has the
paper's own recipe, the rest of it is compared too: at other scales data, models and recipe are all
others, and every page says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from flipguard.methods import method_of
from flipguard.studies.planning import Plan
from flipguard.studies.study import Line, Model, Scalar
from flipguard.training.config import Config

LIBRARIES: Final = ("timm:", "torchvision:")
# The data sets of the paper-sized scales, as the papers call them.
NAMES: Final = {
    "cifar10": {"CIFAR-10"},
    "cifar100": {"CIFAR-100"},
    "imagenet": {"ImageNet", "ILSVRC12"},
    "inaturalist": {"iNaturalist", "iNaturalist 2017"},
}
PAPERS_PRESETS: Final = ("pct-", "elodi-", "churn-")


def differences(plan: Plan) -> list[str]:
    """Each once, such as ``elodi: k = 3 for 10`` or ``kd: weight = 6 (1 by default)``."""
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
    if (plan.scale.preset or "").startswith(PAPERS_PRESETS):
        found |= dict.fromkeys(_of_models(plan))
        found |= dict.fromkeys(_of_data(plan))
        found |= dict.fromkeys(_of_recipe(plan))
    return list(found)


def _changed(model: Model, config: Config) -> Iterator[str]:
    method, named = method_of(config.method)
    defaults = {option.name: option.default for option in method.options}
    stated = {**model.printed, **model.options, **named}
    for name, value in config.options.items():
        # No value is all of them, as the paper's K = 1000 is.
        if value is None or value == stated.get(name, defaults.get(name)):
            continue
        told = f"{method.name}: {name} = {_said(value)}"
        if name in stated:
            yield f"{told} for {_said(stated[name])}"
        else:
            yield f"{told} ({_said(defaults[name])} by default)"


def _of_formula(config: Config) -> Iterator[str]:
    """Where a method computes another function than the paper prints."""
    method, named = method_of(config.method)
    for one in method.departures({**config.options, **named}, formula_only=True):
        yield f"{config.method}: {one}"


def _of_scope(plan: Plan) -> Iterator[str]:
    """How old's part of the data is chosen."""
    for line in _lines(plan):
        if line.old.classes is not None:
            count = round(plan.scale.classes * line.old.classes)
            yield f"the old model's classes: the first {count}, where PCT draws them at random"
        if line.old.samples is not None:
            yield "the old model's samples: drawn from all, where PCT draws as many of each class"


def _of_models(plan: Plan) -> Iterator[str]:
    """Other models than those that the paper names."""
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


def _of_data(plan: Plan) -> Iterator[str]:
    scale = plan.scale
    data = scale.data.partition(":")[0]
    for line in _lines(plan):
        named = line.data or plan.study.table.data
        if named not in NAMES.get(data, set()):
            yield f"data: {data} with {scale.classes:,} classes for {named}"


def _of_recipe(plan: Plan) -> Iterator[str]:
    """What no preset can set."""
    yield "recipe: weight decay leaves out biases and norms"
    yield "recipe: the last incomplete batch of every epoch is dropped"
    yield "inputs: pixels from -1 to 1, not by each channel's mean and deviation"
    if plan.scale.precision != "32-true":
        yield f"precision: {plan.scale.precision} on a GPU"
    for node in plan.nodes:
        method, named = method_of(node.config.method)
        for one in method.unlike_at({**node.config.options, **named}, plan.scale.classes):
            yield f"{node.config.method}: {one}"


def _lines(plan: Plan) -> list[Line]:
    return [plan.study.lines[place] for place in dict.fromkeys(u.line for u in plan.updates)]


def _said(value: Scalar) -> str:
    if value is None:
        return "all"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
