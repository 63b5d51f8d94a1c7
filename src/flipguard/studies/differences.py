"""What a scale sets otherwise than the paper's rows say, or than methods have it by default."""

from __future__ import annotations

from collections.abc import Iterator

from flipguard.methods import method_of
from flipguard.studies.planning import Plan
from flipguard.studies.study import Model, Scalar
from flipguard.training.config import Config


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


def _said(value: Scalar) -> str:
    if value is None:
        return "all"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
