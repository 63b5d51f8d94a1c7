"""What a scale does otherwise than the paper's rows say: options that it replaces or limits."""

from __future__ import annotations

from flipguard.methods import method_of
from flipguard.studies.planning import Plan
from flipguard.studies.study import Scalar


def differences(plan: Plan) -> list[str]:
    """Each once, such as ``elodi: k = 3 for 10``."""
    nodes = {node.folder: node for node in plan.nodes}
    found: dict[str, None] = {}  # a set that keeps its order
    for update in plan.updates:
        line, config = plan.study.lines[update.line], nodes[update.new].config
        method, named = method_of(config.method)
        defaults = {option.name: option.default for option in method.options}
        theirs = {**defaults, **line.new.printed, **line.new.options, **named}
        for name, value in config.options.items():
            # No value is all of them, as the paper's K = 1000 is.
            if value is not None and value != theirs.get(name):
                found[f"{method.name}: {name} = {_said(value)} for {_said(theirs[name])}"] = None
    return list(found)


def _said(value: Scalar) -> str:
    if value is None:
        return "all"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
