"""Counting labels: everything is a query over the paired table, streamed."""

from __future__ import annotations

import polars as pl

from flipguard.engines.alignment import aligned_sums
from flipguard.engines.expressions import cell_sums, control_sums
from flipguard.engines.listing import flip_rows, worst_first
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import Counted, CountingPlan, RowCounts, summed_rows
from flipguard.engines.positions import checked_frames, refuse_joined
from flipguard.errors import InputError
from flipguard.predictions.faults import naming_any

COLUMNS = frozenset({"id", "label", "target", "cuts"})


class LabelCounting:
    """The counts of files that hold labels and no scores, or whose scores are not asked for."""

    def __init__(self, plan: CountingPlan) -> None:
        self.plan = plan
        self.pairing = Pairing(plan)
        self.sums = cell_sums() + (control_sums(len(plan.controls)) if plan.controls else [])
        self.tables = plan.tables()

    def count(self) -> Counted:
        """Row for row if the ids allow it, else by a join."""
        rows = self._aligned() if self.pairing.may_be_aligned() else None
        return Counted.of(self.plan, self.tables, rows if rows is not None else self._joined())

    def flips(self) -> pl.DataFrame:
        """The samples whose label changed, with every slice that was asked for."""
        parts = []
        for frame in checked_frames(self.pairing, COLUMNS, []):
            with naming_any(self.plan.sides):
                rows = flip_rows(self.pairing.canonical(frame), self.plan)
                parts.append(rows.collect(engine="streaming"))
        return worst_first(pl.concat(parts))

    def _aligned(self) -> RowCounts | None:
        """Counts while checking that ids are equal row for row; None if they are not."""
        canonical = self.pairing.canonical(self.pairing.aligned_frame(COLUMNS))
        whole = self.tables[None]
        # One pass makes sure of the rows and counts them all; groups take a pass each.
        result = aligned_sums(self.pairing, canonical, [] if whole.keys else self.sums)
        if result is None:
            return None
        for table in self.tables.values():
            if table.keys:
                table.add(self._grouped(canonical, table.keys))
            else:
                table.add(result.select(self.plan.layout.names))
        return RowCounts(matched=self.pairing.heights[0])

    def _joined(self) -> RowCounts:
        pairing = self.pairing
        tally: list[RowCounts] = []
        # Ids are not carried along: their hashes have done the joining.
        for frame in pairing.joined_frames(COLUMNS - {"id"}, tally):
            try:
                refuse_joined(pairing, frame)
            except InputError:
                # Only now are the ids themselves worth their memory: the same again, naming them.
                for named in pairing.joined_frames(COLUMNS, []):
                    refuse_joined(pairing, named)
                raise
            canonical = pairing.canonical(frame)
            for table in self.tables.values():
                table.add(self._grouped(canonical, table.keys))
        return summed_rows(tally)

    def _grouped(self, canonical: pl.LazyFrame, keys: tuple[str, ...]) -> pl.DataFrame:
        query = canonical.group_by(keys).agg(self.sums) if keys else canonical.select(self.sums)
        with naming_any(self.plan.sides):
            return query.collect(engine="streaming")
