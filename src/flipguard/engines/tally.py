"""Collect counts by group, flips and distances in one pass over paired rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import polars as pl

from flipguard.counts import FloatArray
from flipguard.engines.count_table import CountTable
from flipguard.engines.outcomes import (
    ROW,
    flip_rows,
    label_sums,
    worst_first,
)
from flipguard.engines.plan import (
    CONFUSION,
    ID,
    LABELS,
    CountingPlan,
    Details,
    Distances,
    Want,
)
from flipguard.engines.row_kinds import LABELLED, row_kind
from flipguard.engines.thresholds import scored_rows, thresholds_of
from flipguard.errors import InputError


@dataclass(slots=True, kw_only=True)
class Part:
    """Some paired rows with labels: a table under canonical names.

    `start` is the number of rows before them. `sums` are the label sums over all of them, where
    checking the rows has found these already.
    """

    rows: pl.LazyFrame
    start: int = 0
    sums: pl.DataFrame | None = None

    def label_sums(self, keys: Sequence[str], sums: list[pl.Expr]) -> pl.DataFrame:
        """Sums over labels by the keys; of all rows without keys."""
        if not keys and self.sums is not None:
            return self.sums
        query = self.rows.group_by(keys).agg(sums) if keys else self.rows.select(sums)
        return query.collect(engine="streaming")

    def wrong_labels(self, keys: Sequence[str]) -> pl.DataFrame:
        """Cells by the keys, over the rows that old or new gets wrong."""
        wrong = pl.any_horizontal(~LABELLED.is_right(label) for label in LABELS)
        query = self.rows.filter(wrong).group_by(keys).agg(LABELLED.cell_sums())
        return query.collect(engine="streaming")

    def counts(self, table: CountTable, sums: list[pl.Expr]) -> pl.DataFrame:
        """All statistics by the keys of a table."""
        return self.label_sums(table.keys, sums)

    def flips(self, plan: CountingPlan) -> pl.DataFrame:
        """The rows whose label changed, under names that users read."""
        by_id = ID in self.rows.collect_schema().names()
        rows = self.rows if by_id else self.rows.with_row_index(ROW, offset=self.start)
        return flip_rows(rows, plan).collect(engine="streaming")

    def distances(self) -> FloatArray | None:
        """The distance between the old and new logits of each row."""
        return None

    def cells(self, plan: CountingPlan) -> pl.Series:
        """The index of each row's cell."""
        return self.rows.select(row_kind(plan).cell_index()).collect().to_series()


class Tally:
    """Everything that one pass over the rows of a plan collects."""

    def __init__(self, plan: CountingPlan, wants: frozenset[Want], *, counts: bool = True) -> None:
        self.plan = plan
        self.wants = wants
        self.tables = plan.tables() if counts else {}
        self._targets = plan.target_table() if self._asks_for_target_groups() else None
        self._flips: list[pl.DataFrame] = []
        self._scores: list[pl.DataFrame] = []
        self._distances: list[FloatArray] = []
        self._cells: list[pl.Series] = []

    @property
    def _positive(self) -> object:
        """The positive class, if thresholds are wanted of rows with a score and a target."""
        readings, layout = self.plan.readings, self.plan.layout
        if "thresholds" not in self.wants or readings is None or not layout.has_target:
            return None
        return None if readings.binary is None else readings.binary.values[1]

    def _asks_for_target_groups(self) -> bool:
        layout = self.plan.layout
        return "target_groups" in self.wants and layout.has_target and not layout.graded

    def add(self, part: Part) -> None:
        """Add the next rows."""
        sums = label_sums(self.plan)
        for name, table in self.tables.items():
            if name == CONFUSION:
                table.add(part.wrong_labels(table.keys))
            else:
                table.add(part.counts(table, sums))
        if self._targets is not None:
            self._targets.add(part.label_sums(self._targets.keys, LABELLED.cell_sums()))
        if self._positive is not None:
            self._scores.append(scored_rows(part.rows, self._positive))
        if "flips" in self.wants:
            self._flips.append(part.flips(self.plan))
        distances = part.distances() if "distances" in self.wants else None
        if distances is not None:
            self._distances.append(distances)
            self._cells.append(part.cells(self.plan))

    def details(self) -> Details:
        """The details that outputs need beyond the counts."""
        found = Details(counted=self.wants)
        if self._targets is not None:
            # None if there are more classes than make sense as groups.
            with suppress(InputError):
                found.target_groups = self._targets.groups()
        if "flips" in self.wants:
            found.flips = worst_first(pl.concat(self._flips), self.plan)
        if self._scores and self.plan.new.binary is not None:
            found.thresholds = thresholds_of(self._scores, self.plan.new.binary.threshold)
        if self._distances:
            found.distances = Distances(
                values=np.concatenate(self._distances), cells=pl.concat(self._cells).to_numpy()
            )
        return found
