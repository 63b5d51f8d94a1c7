"""Controls: count each retrain once, and estimate from them how much retrains differ."""

from __future__ import annotations

import filecmp
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import FlipCounts
from flipguard.engines.plan import CountingPlan
from flipguard.errors import listed
from flipguard.groups import Group
from flipguard.metrics import METRICS
from flipguard.predictions.table import Predictions

ROLES = ("id", "target", "label", "correct", "binary")
# The metrics whose spread over several controls is the noise of retraining.
FLOOR_METRICS = ("negative_flip_rate", "churn", "accuracy_gain")


def distinct_controls(plan: CountingPlan) -> tuple[CountingPlan, list[str]]:
    """Return the plan with each control once, and notes on controls that are copies."""
    kept: list[Predictions] = []
    copies: list[str] = []
    for control in plan.controls:
        if any(_same(control, other) for other in kept):
            copies.append(control.name)
        else:
            kept.append(control)
    text = []
    if copies:
        text.append(
            f"the control {listed(dict.fromkeys(copies))} is given more than once and counts once; "
            "copies of a retrain say nothing about how retrains differ"
        )
    for side, role in ((plan.old, "old"), (plan.new, "new")):
        text += [
            f"the control {control.name} is the same file as {role}; give an untreated retrain"
            for control in kept
            if _same(control, side)
        ]
    return replace(plan, controls=tuple(kept)), text


def count_as_one(plan: CountingPlan, counts: FlipCounts) -> str:
    """Return a note if all controls change the same samples, as copies do; empty otherwise."""
    if len(plan.controls) < 2:
        return ""
    flagged = counts.joint("churn").sum(axis=-2)
    if flagged[-1] == 0 or flagged[1:-1].any():
        return ""
    return (
        f"all {len(plan.controls)} controls change the same samples, so they count as one; "
        "are they copies of one model?"
    )


def _same(one: Predictions, other: Predictions) -> bool:
    """Return whether both are one object, or the same columns of identical files."""
    if one is other:
        return True
    if not one.paths or len(one.paths) != len(other.paths):
        return False
    if any(getattr(one, role) != getattr(other, role) for role in ROLES):
        return False
    pairs = zip(one.paths, other.paths, strict=True)
    return all(filecmp.cmp(path, its, shallow=False) for path, its in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """The range of a metric over ordinary retrains, and whether this update is outside it.

    `shows` is the distance of the ends from the controls' mean: a smaller change cannot be
    distinguished from a retrain. `five_show` is this distance with five controls of the same mean
    and spread.
    """

    metric: str
    controls: tuple[float, ...]
    low: float
    high: float
    value: float
    shows: float
    five_show: float

    @property
    def verdict(self) -> Literal["above", "within", "below", "unknown"]:
        """Whether the new model is above, within or below the range of one more retrain."""
        if np.isnan(self.low) or np.isnan(self.value):
            return "unknown"
        if self.value > self.high:
            return "above"
        return "below" if self.value < self.low else "within"


def noise_floors(whole: Group, confidence: float) -> tuple[NoiseFloor, ...]:
    """Return the noise of retraining per metric; empty with fewer than two controls."""
    counts = whole.counts
    if counts.layout.controls < 2:
        return ()
    each = [counts.control(i) for i in range(counts.layout.controls)]
    floors = []
    for name in FLOOR_METRICS:
        if not METRICS[name].needs <= counts.layout.available:
            continue
        values = [float(METRICS[name].value(control)) for control in each]
        low, high = _retrain_range(name, counts, confidence)
        mean = float(np.mean(values))
        five = _retrain_range(name, counts, confidence, controls=5)
        floors.append(
            NoiseFloor(
                metric=name,
                controls=tuple(values),
                low=low,
                high=high,
                value=whole[name].value,
                shows=max(high - mean, mean - low),
                five_show=max(five[1] - mean, mean - five[0]),
            )
        )
    return tuple(floors)


def _retrain_range(
    name: str, counts: FlipCounts, confidence: float, *, controls: int | None = None
) -> tuple[float, float]:
    """Return the range of one more retrain, from these controls or as if there were `controls`."""
    seen: dict[str, Any] = {"confidence": confidence, "controls": controls}
    labelled = counts.labelled
    if name == "churn":
        ends = statistics.retrain_rate(counts.of_controls("churn"), counts.rows, **seen)
    elif name == "negative_flip_rate":
        ends = statistics.retrain_rate(counts.of_controls("negative_flip"), labelled, **seen)
    else:
        positive, negative = (
            counts.of_controls(f"{kind}_flip") for kind in ("positive", "negative")
        )
        ends = statistics.retrain_gain(positive, negative, labelled, **seen)
    return float(ends[0]), float(ends[1])
