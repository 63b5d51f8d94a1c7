"""Which controls count: each retrain once."""

from __future__ import annotations

import filecmp
from dataclasses import replace

from flipguard.counts import FlipCounts
from flipguard.engines.plan import CountingPlan
from flipguard.errors import listed
from flipguard.predictions.table import Predictions


def distinct_controls(plan: CountingPlan) -> tuple[CountingPlan, list[str]]:
    """The plan with each control once, and notes on controls that are copies of another side."""
    kept: list[Predictions] = []
    copies: list[str] = []
    for control in plan.controls:
        if any(_same(control, other) for other in kept):
            copies.append(control.name)
        else:
            kept.append(control)
    told = []
    if copies:
        told.append(
            f"the control {listed(dict.fromkeys(copies))} is given more than once and counts once; "
            "copies of a retrain say nothing about how retrains differ"
        )
    for side, role in ((plan.old, "old"), (plan.new, "new")):
        told += [
            f"the control {control.name} is the file of {role}; a control is a retrain that was "
            "not treated"
            for control in kept
            if _same(control, side)
        ]
    return replace(plan, controls=tuple(kept)), told


def count_as_one(plan: CountingPlan, counts: FlipCounts) -> str:
    """A note if all controls change the same samples, as copies of one model do; else empty."""
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
    """Whether both are one object, or the same columns of files with the same bytes."""
    if one is other:
        return True
    if one.path is None or other.path is None:
        return False
    if (one.id, one.target, one.label) != (other.id, other.target, other.label):
        return False
    return filecmp.cmp(one.path, other.path, shallow=False)
