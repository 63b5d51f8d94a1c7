"""Counting on this machine: streamed table queries for labels, a blocked kernel for scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl

from flipguard.engines.labelled import count_labels
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import (
    ID,
    NOTHING_MORE,
    Counted,
    CountingPlan,
    Details,
    RowCounts,
    Want,
)
from flipguard.engines.positions import checked_frames
from flipguard.engines.scored import ScoredCounting
from flipguard.engines.tally import Tally
from flipguard.engines.unusable import usable_batches
from flipguard.errors import InputError
from flipguard.predictions.faults import naming, naming_any
from flipguard.predictions.scores import width
from flipguard.predictions.table import Predictions


def count(plan: CountingPlan, wants: frozenset[Want] = NOTHING_MORE) -> Counted:
    """The counts of a plan and what else is wanted, in one pass over its files."""
    with naming_any(plan.sides):
        plan = with_control_labels(plan)
        tally, rows, odd_labels = _pass(plan, lambda: Tally(plan, wants))
        found = Counted.of(plan, tally.tables, rows, odd_labels, tally.details())
    counted = int(found.whole.counts.rows.sum())
    if counted != rows.matched:
        # Rows are counted by one query and their values by another: neither may lose one.
        raise InputError(
            f"{plan.old.name} and {plan.new.name} have {rows.matched:,} rows in common, but "
            f"{counted:,} were counted; perhaps a file changed while it was read: "
            "check that no program writes to the files, and compare again."
        )
    return found


def details(plan: CountingPlan, wants: frozenset[Want]) -> Details:
    """What is wanted beyond the counts of a plan that was counted before."""
    with naming_any(plan.sides):
        # A control matters here only if it decides which samples were compared, or has targets.
        dropped = plan.on_missing == "drop"
        needed = dropped or any(control.target is not None for control in plan.controls)
        plan = with_control_labels(plan) if needed else replace(plan, controls=())
        plan = replace(plan, progress=None)
        if wants == {"target_groups"}:
            # Labels say enough for that.
            old, new = (
                side if side.label is not None else with_labels(side)
                for side in (plan.old, plan.new)
            )
            plan = replace(plan, old=replace(old, scores=None), new=replace(new, scores=None))
        tally, _, _ = _pass(plan, lambda: Tally(plan, wants, counts=False))
        return tally.details()


def _pass(
    plan: CountingPlan, begin: Callable[[], Tally]
) -> tuple[Tally, RowCounts, tuple[int, int]]:
    if plan.layout.scored:
        return ScoredCounting(plan).run(begin())
    return (*count_labels(plan, begin), (0, 0))


def compared_ids(plan: CountingPlan, wanted: pl.Series) -> pl.Series | None:
    """Those of the wanted ids that are among the samples compared; None if rows have no ids."""
    with naming_any(plan.sides):
        pairing = Pairing(with_control_labels(plan))
        if pairing.by_position:
            return None
        found = [
            frame.select(pl.col(ID).cast(pl.String).alias("id"))
            .filter(pl.col("id").is_in(wanted.implode()))
            .collect(engine="streaming")
            for frame in checked_frames(pairing, frozenset({"id"}), [])
        ]
    return pl.concat(found).to_series()


def with_control_labels(plan: CountingPlan) -> CountingPlan:
    """The plan with a label column in every control: of a control only the labels count."""
    controls = tuple(c if c.label is not None else with_labels(c) for c in plan.controls)
    return replace(plan, controls=tuple(replace(c, scores=None) for c in controls))


def with_labels(predictions: Predictions) -> Predictions:
    """Predictions whose label is the class of the largest score."""
    with naming(predictions):
        if predictions.height == 0:
            raise InputError(
                f"{predictions.name} is empty; expected at least one row of predictions."
            )
        tops = np.concatenate([batch.argmax(axis=1) for batch in usable_batches(predictions)])
    names = predictions.class_names or tuple(str(i) for i in range(width(predictions)))
    column, known = "__label", predictions.frame.collect_schema()
    while column in known:
        column += "_"
    labels = pl.Series(column, list(names)).gather(tops)
    if predictions.class_names is None:
        labels = labels.cast(pl.Int64)
    frame = pl.concat([predictions.frame, labels.to_frame().lazy()], how="horizontal")
    return replace(predictions, frame=frame, label=column, path=None)
