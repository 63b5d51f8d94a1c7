"""Count on this machine: streamed table queries for labels, a kernel in blocks for scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl

from flipguard.engines.alignment import (
    OrderDiffersError,
    aligned_parts,
    checked_frames,
    refuse_joined,
)
from flipguard.engines.joining import joined_frames
from flipguard.engines.outcomes import label_sums
from flipguard.engines.pairing import Pairing, settled
from flipguard.engines.plan import (
    COLUMNS,
    ID,
    NOTHING_MORE,
    Counted,
    CountingPlan,
    Details,
    RowCounts,
    Want,
    summed_rows,
)
from flipguard.engines.scored import ScoredCounting
from flipguard.engines.tally import Part, Tally
from flipguard.engines.unusable import usable_batches
from flipguard.errors import InputError
from flipguard.predictions.read import name_any_file_on_error, name_file_on_error
from flipguard.predictions.scores import width
from flipguard.predictions.table import Predictions


class LabelCounting:
    """The counts of files of labels: row for row if the ids allow it, else by a join."""

    def __init__(self, plan: CountingPlan) -> None:
        self.plan = plan
        self.pairing = Pairing(plan)

    def run(self, begin: Callable[[], Tally]) -> tuple[Tally, RowCounts, tuple[int, int]]:
        """One pass: the filled tally, the row counts, and (0, 0): labels cannot be off the top."""
        pairing, tally = self.pairing, begin()
        if pairing.may_be_aligned():
            # One query checks and counts all rows; each group takes one more query.
            whole = tally.tables.get(None)
            counts_all = whole is not None and not whole.keys
            sums = label_sums(self.plan) if counts_all else []
            frame = pairing.aligned_frame(COLUMNS)
            try:
                for part in aligned_parts(pairing, frame, sums):
                    tally.add(part)
            except OrderDiffersError:
                tally = begin()
            else:
                return tally, RowCounts(matched=pairing.heights[0]), (0, 0)
        return tally, self._join(tally), (0, 0)

    def _join(self, tally: Tally) -> RowCounts:
        pairing = self.pairing
        rows: list[RowCounts] = []
        # Ids are kept only if they are shown, because rows are joined by hashes of ids.
        want = COLUMNS if "flips" in tally.wants else COLUMNS - {"id"}
        for frame in joined_frames(pairing, want, rows):
            try:
                refuse_joined(pairing, frame)
            except InputError:
                # Ids take much memory, so they are read only now, for the error message.
                for named in joined_frames(pairing, COLUMNS, []):
                    refuse_joined(pairing, named)
                raise
            with name_any_file_on_error(pairing.sides):
                tally.add(Part(rows=pairing.canonical(frame)))
        return summed_rows(rows)


def _counting(plan: CountingPlan) -> LabelCounting | ScoredCounting:
    """Return what counts the files of a plan: with scores if old or new has some."""
    return ScoredCounting(plan) if plan.layout.scored else LabelCounting(plan)


def count(plan: CountingPlan, wants: frozenset[Want] = NOTHING_MORE) -> Counted:
    """The counts of a plan and the wanted details, in one pass over its files."""
    with name_any_file_on_error(plan.sides):
        plan, _ = settled(with_control_labels(plan))
        tally, rows, odd_labels = _counting(plan).run(lambda: Tally(plan, wants))
        if rows.only_old or rows.only_new:
            rows = _with_ids(rows, Pairing(plan))
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


def _with_ids(rows: RowCounts, pairing: Pairing) -> RowCounts:
    """The row counts with the first ids that only old or only new has."""
    old, new = pairing.only_in(0, 1)[0], pairing.only_in(1, 0)[0]
    return replace(rows, ids_only_old=tuple(old), ids_only_new=tuple(new))


def details(plan: CountingPlan, wants: frozenset[Want]) -> Details:
    """The wanted details of a plan that was counted before."""
    with name_any_file_on_error(plan.sides):
        # A control matters here only if it decides which samples were compared, or has targets.
        dropped = plan.on_missing == "drop"
        needed = dropped or any(control.target is not None for control in plan.controls)
        plan = with_control_labels(plan) if needed else replace(plan, controls=())
        plan, _ = settled(replace(plan, progress=None))
        if wants == {"target_groups"}:
            # Labels say enough for that.
            old, new = (_with_any_labels(side) for side in (plan.old, plan.new))
            plan = replace(plan, old=replace(old, scores=None), new=replace(new, scores=None))
        tally, _, _ = _counting(plan).run(lambda: Tally(plan, wants, counts=False))
        return tally.details()


def compared_ids(plan: CountingPlan, wanted: pl.Series) -> pl.Series | None:
    """The wanted ids that were compared; None if rows have no ids."""
    with name_any_file_on_error(plan.sides):
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
    """The plan with a label column in every control; only the labels of a control are used."""
    controls = tuple(_with_any_labels(control) for control in plan.controls)
    return replace(plan, controls=tuple(replace(c, scores=None) for c in controls))


def _with_any_labels(side: Predictions) -> Predictions:
    """Predictions with a label column, except where there are only grades."""
    return side if side.label is not None or side.scores is None else with_labels(side)


def with_labels(predictions: Predictions) -> Predictions:
    """Predictions whose label is the class of the largest score."""
    with name_file_on_error(predictions):
        if predictions.height == 0:
            raise InputError(f"{predictions.name} has columns but no rows; give at least one row.")
        tops = np.concatenate([batch.argmax(axis=1) for batch in usable_batches(predictions)])
    names = predictions.class_names or tuple(str(i) for i in range(width(predictions)))
    column, known = "__label", predictions.frame.collect_schema()
    while column in known:
        column += "_"
    labels = pl.Series(column, list(names)).gather(tops)
    if predictions.class_names is None:
        labels = labels.cast(pl.Int64)
    frame = pl.concat([predictions.frame, labels.to_frame().lazy()], how="horizontal")
    return replace(predictions, frame=frame, label=column, path=None, files=())
