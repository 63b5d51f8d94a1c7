"""Counting labels: everything is a query over the paired table, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

from flipguard.engines.expressions import cell_sums, control_sums
from flipguard.engines.listing import flip_rows, worst_first
from flipguard.engines.pairing import Pairing, Refusal, naming
from flipguard.engines.plan import Counted, CountingPlan, RowCounts, summed_rows
from flipguard.errors import InputError

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
        pairing = self.pairing
        aligned = pairing.aligned_frame(COLUMNS) if pairing.may_be_aligned() else None
        if aligned is not None and self._aligned_checks(aligned, []) is not None:
            frames: Iterator[pl.LazyFrame] = iter([aligned])
        else:
            frames = pairing.joined_frames(COLUMNS, [])
        parts = []
        for frame in frames:
            with naming_any(self.plan):
                rows = flip_rows(pairing.canonical(frame), self.plan)
                parts.append(rows.collect(engine="streaming"))
        return worst_first(pl.concat(parts))

    def _aligned(self) -> RowCounts | None:
        """Counts while checking that ids are equal row for row; None if they are not."""
        frame = self.pairing.aligned_frame(COLUMNS)
        canonical = self.pairing.canonical(frame)
        whole = self.tables[None]
        # One pass makes sure of the rows and counts them all; groups take a pass each.
        result = self._aligned_checks(canonical, [] if whole.keys else self.sums)
        if result is None:
            return None
        for table in self.tables.values():
            if table.keys:
                table.add(self._grouped(canonical, table.keys))
            else:
                table.add(result.select(self.plan.layout.names))
        return RowCounts(matched=self.pairing.heights[0])

    def _aligned_checks(self, frame: pl.LazyFrame, sums: list[pl.Expr]) -> pl.DataFrame | None:
        """The sums, if ids are equal row for row and nothing is to be refused."""
        pairing = self.pairing
        names = frame.collect_schema().names()
        refusals, checks = pairing.refusals(names), pairing.alignment(names)
        flags = [expression.alias(name) for name, expression in checks.items()]
        wrong = [r.where.any().alias(f"__refusal{i}") for i, r in enumerate(refusals)]
        wrong.append(pl.len().alias("__rows"))
        # Text is parsed whole for every query, so one does all. Columns are read alone, and then a
        # query over few of them runs faster than one over many.
        queries = [[*flags], [*wrong], [*sums]] if pairing.columnar else [[*flags, *wrong, *sums]]
        with naming_any(self.plan):
            results = [frame.select(q).collect(engine="streaming") for q in queries if q]
        result = pl.concat(results, how="horizontal")
        if checks and result["__ids_differ"][0]:
            return None
        pairing.confirm_unique({name: bool(result[name][0]) for name in checks})
        for i, refusal in enumerate(refusals):
            if result[f"__refusal{i}"][0]:
                raise pairing.refuse(frame, refusal)
        return result

    def _joined(self) -> RowCounts:
        pairing = self.pairing
        tally: list[RowCounts] = []
        for frame in pairing.joined_frames(COLUMNS - {"id"}, tally):
            refusals = pairing.refusals(frame.collect_schema().names())
            flags = frame.select(
                pl.len().alias("__rows"),
                *[r.where.any().alias(f"__refusal{i}") for i, r in enumerate(refusals)],
            ).collect()
            for i, refusal in enumerate(refusals):
                if flags[f"__refusal{i}"][0]:
                    raise self._refuse_joined(refusal)
            canonical = pairing.canonical(frame)
            for table in self.tables.values():
                table.add(self._grouped(canonical, table.keys))
        return summed_rows(tally)

    def _refuse_joined(self, refusal: Refusal) -> InputError:
        # Only now are the ids themselves worth their memory.
        for frame in self.pairing.joined_frames(COLUMNS, []):
            if frame.select(refusal.where.any()).collect().item():
                return self.pairing.refuse(frame.sort("0|id"), refusal)
        raise AssertionError("A refusal was seen, and then it was not.")

    def _grouped(self, canonical: pl.LazyFrame, keys: tuple[str, ...]) -> pl.DataFrame:
        query = canonical.group_by(keys).agg(self.sums) if keys else canonical.select(self.sums)
        with naming_any(self.plan):
            return query.collect(engine="streaming")


@contextmanager
def naming_any(plan: CountingPlan) -> Iterator[None]:
    """When a query over all files breaks, reads each alone to say which one it was."""
    try:
        yield
    except pl.exceptions.PolarsError:
        for side in plan.sides:
            with naming(side):
                side.frame.select(pl.all().null_count()).collect(engine="streaming")
        raise
