"""Rows laid side by side as the files have them, and the watch over their ids while they pass."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from flipguard.engines.pairing import Pairing
from flipguard.predictions.faults import naming_any

# Rows that are looked at together: few enough to be nothing in memory, enough to be fast.
ROWS_PER_LOOK = 1 << 20


def id_columns(names: Sequence[str]) -> list[str]:
    """The ids of each side; a slice that a user calls `id` is none of them."""
    return [name for name in names if re.fullmatch(r"\d+\|id", name)]


class IdWatch:
    """Sees ids pass, batch by batch: are they equal row for row, is one missing, do they rise?

    Ids that rise are unique, and seeing that takes the memory of one batch. Ids in no order take
    a second look, by `Pairing.refuse_duplicates`.
    """

    def __init__(self) -> None:
        self.differ = False
        self.missing = False
        self.rise = True
        self._last: object = None

    def see(self, batch: pl.DataFrame) -> None:
        """Takes note of the next rows."""
        ids = batch["0|id"]
        others = [name for name in id_columns(batch.columns) if name != "0|id"]
        self.differ |= any(ids.ne_missing(batch[name]).any() for name in others)
        self.missing |= ids.null_count() > 0
        if self.rise and not self.missing and len(ids):
            follows = self._last is None or bool((ids.head(1) > self._last).all())
            self.rise = follows and bool((ids.slice(1) > ids.slice(0, len(ids) - 1)).all())
            self._last = ids[-1]


def aligned_sums(
    pairing: Pairing, frame: pl.LazyFrame, sums: Sequence[pl.Expr] = ()
) -> pl.DataFrame | None:
    """The sums of a table laid side by side; None if its ids turn out not to be equal row for row.

    Refuses ids that are missing or not unique, and rows that cannot be compared.
    """
    names = frame.collect_schema().names()
    refusals = pairing.refusals(names)
    wrong = [r.where.any().alias(f"__refusal{i}") for i, r in enumerate(refusals)]
    wrong.append(pl.len().alias("__rows"))
    watch = IdWatch()
    with naming_any(pairing.sides):
        look = _column_by_column if pairing.columnar else _all_at_once
        result = look(frame, watch, wrong, list(sums))
    if result is None:
        return None
    if watch.missing:
        raise pairing.missing_id(0)
    if not watch.rise:
        pairing.refuse_duplicates(0)
    for i, refusal in enumerate(refusals):
        if result[f"__refusal{i}"][0]:
            raise pairing.refuse(frame, refusal)
    return result


def _column_by_column(
    frame: pl.LazyFrame, watch: IdWatch, wrong: list[pl.Expr], sums: list[pl.Expr]
) -> pl.DataFrame | None:
    """Columns that are stored apart: ids alone first, then the rest, is faster than all at once."""
    ids = id_columns(frame.collect_schema().names())
    if ids:
        for batch in frame.select(ids).collect_batches(
            chunk_size=ROWS_PER_LOOK, maintain_order=True, engine="streaming"
        ):
            watch.see(batch)
            if watch.differ:
                return None
    return frame.select(*wrong, *sums).collect(engine="streaming")


def _all_at_once(
    frame: pl.LazyFrame, watch: IdWatch, wrong: list[pl.Expr], sums: list[pl.Expr]
) -> pl.DataFrame | None:
    """Text is parsed whole for every query, so one pass does everything, batch by batch."""
    names = frame.collect_schema().names()
    parts = []
    for batch in frame.collect_batches(
        chunk_size=ROWS_PER_LOOK, maintain_order=True, engine="streaming"
    ):
        if "0|id" in names:
            watch.see(batch)
            if watch.differ:
                return None
        parts.append(batch.select(*wrong, *sums))
    # Flags add up like counts: any row that is wrong anywhere makes the sum more than nothing.
    table = pl.concat(parts, how="vertical_relaxed")
    flags = [pl.col(e.meta.output_name()).any() for e in wrong[:-1]]
    return table.select(*flags, *[pl.col(e.meta.output_name()).sum() for e in (wrong[-1], *sums)])
