"""Counting on this machine: streamed table queries for labels, a blocked kernel for scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from flipguard.engines.labelled import LabelCounting
from flipguard.engines.pairing import ID, Pairing
from flipguard.engines.plan import Counted, CountingPlan
from flipguard.engines.positions import checked_frames
from flipguard.engines.scored import ScoredCounting
from flipguard.engines.unusable import usable_batches
from flipguard.errors import InputError
from flipguard.predictions.faults import naming, naming_any
from flipguard.predictions.scores import width
from flipguard.predictions.table import Predictions


def count(plan: CountingPlan) -> Counted:
    """The counts of a plan, from whatever its files hold."""
    with naming_any(plan.sides):
        plan = with_control_labels(plan)
        scored = plan.layout.scored
        found = ScoredCounting(plan).count() if scored else LabelCounting(plan).count()
    rows = int(found.whole.counts.rows.sum())
    if rows != found.rows.matched:
        # Rows are counted by one query and their values by another: neither may lose one.
        raise InputError(
            f"{plan.old.name} and {plan.new.name} have {found.rows.matched:,} rows in common, but "
            f"{rows:,} were counted; perhaps a file changed while it was read: "
            "check that no program writes to the files, and compare again."
        )
    return found


def flips(plan: CountingPlan) -> pl.DataFrame:
    """Every sample whose label changed, worst first."""
    with naming_any(plan.sides):
        # A control matters here only if it decides which samples were compared, or has targets.
        dropped = plan.on_missing == "drop"
        needed = dropped or any(control.target is not None for control in plan.controls)
        plan = with_control_labels(plan) if needed else replace(plan, controls=())
        return ScoredCounting(plan).flips() if plan.layout.scored else LabelCounting(plan).flips()


def compared_ids(plan: CountingPlan, wanted: pl.Series) -> pl.Series | None:
    """Those of the wanted ids that are among the samples compared; None if rows have no ids."""
    with naming_any(plan.sides):
        pairing = Pairing(with_control_labels(plan))
        if pairing.by_position:
            return None
        found = [
            pairing.canonical(frame)
            .select(pl.col(ID).cast(pl.String).alias("id"))
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
