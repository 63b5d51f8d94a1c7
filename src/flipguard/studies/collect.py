"""From the finished runs of a plan to the rows of its study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from flipguard.studies.analyses import analyses_of
from flipguard.studies.analyses.base import Analysed
from flipguard.studies.measure import measured
from flipguard.studies.planning import Plan, Update
from flipguard.studies.results import Row
from flipguard.studies.study import ALWAYS
from flipguard.training.folder import HISTORY, read_lines

DIGITS = 10
# What was measured of an update, by the runs of its sides and the metrics: studies share updates.
Updates: TypeAlias = dict[
    tuple[tuple[Path, ...], tuple[Path, ...], tuple[str, ...]], dict[str, float]
]


def collected(plan: Plan, known: Updates | None = None) -> tuple[Row, ...]:
    """The rows of a study whose runs are all finished; what is measured is added to `known`."""
    known = {} if known is None else known
    study = plan.study
    analysed = analyses_of(plan)
    counted = {name for one in analysed.values() for name in one.values}
    names = tuple(dict.fromkeys((*ALWAYS, *(n for n in study.metrics if n not in counted))))
    rows = []
    for place in study.chosen(plan.scale.stands_for):
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


def curves(updates: Sequence[Update], split: str) -> dict[str, Any]:
    """Rates after every epoch, a list a seed."""
    found: dict[str, Any] = {
        "error_rate_new": [],
        "negative_flip_rate": [],
        "relative_negative_flip_rate": [],
    }
    for update in updates:
        rows = read_lines(update.new / HISTORY)
        was = read_lines(update.old / HISTORY)[-1][split]["error_rate"]
        errors = [row[split]["error_rate"] for row in rows]
        flips = [_against(row[split]["old"], update.old)["negative_flip_rate"] for row in rows]
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
    """A run's rates against one old run, wherever that lay when it was trained."""
    found: dict[str, float] = next(
        rates for name, rates in old.items() if Path(name).name == folder.name
    )
    return found


def _finite(value: float) -> float | None:
    return round(value, DIGITS) if math.isfinite(value) else None
