"""What an analysis finds for a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.studies.planning import Plan, Update

Array = npt.NDArray[Any]
DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """Values by seed, which are metrics of the line, and a histogram as plain values for JSON.

    A histogram has `edges` of bins, and `counts`: by what is counted, a list a seed. It is `open`
    if values beyond the last edge were counted with the last bin.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    histogram: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is to be known of this line alone


def updates_of(plan: Plan, place: int) -> list[Update]:
    """The updates of a line, seed by seed; none if a scale leaves the line out."""
    return [update for update in plan.updates if update.line == place]


def counted(values: Array, edges: Array) -> list[int]:
    """How many values lie in each bin; those beyond the last edge are in the last one."""
    inside = np.clip(values, edges[0], edges[-1])
    found: list[int] = np.histogram(inside, edges)[0].tolist()
    return found


def histogram(
    of: str, edges: Array, values: Mapping[str, Sequence[Array]], **more: Any
) -> dict[str, Any]:
    """A histogram of values, an array a seed, ready for JSON."""
    every = [one for some in values.values() for one in some]
    return {
        "of": of,
        "edges": [round(float(edge), DIGITS) for edge in edges],
        "counts": {name: [counted(one, edges) for one in some] for name, some in values.items()},
        # Not by a hair, which rounding alone can do.
        "open": any(bool((one > edges[-1] + 10**-DIGITS).any()) for one in every),
        **more,
    }


def mean(values: Array) -> float:
    """The mean; nan of nothing, without a warning."""
    return float(values.mean()) if len(values) else float("nan")
