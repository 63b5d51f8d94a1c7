"""Rows laid side by side as the files have them, and the watch over their ids while they pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import polars as pl

from flipguard.engines.pairing import Pairing
from flipguard.engines.refusals import Refusal
from flipguard.engines.tally import Part
from flipguard.predictions.faults import naming_any

# Rows that are looked at together: few enough to be nothing in memory, enough to be fast.
ROWS_PER_LOOK = 1 << 20


class OrderDiffersError(Exception):
    """Ids are not equal row for row: what was seen of the rows so far counts for nothing."""


def id_columns(names: Sequence[str]) -> list[str]:
    """The ids of each side; a slice that a user calls `id` is none of them."""
    return [name for name in names if re.fullmatch(r"\d+\|id", name)]


class IdWatch:
    """Sees ids pass, batch by batch: are they equal row for row, is one missing, do they rise?

    Ids that rise are unique, and seeing that takes the memory of one batch. Ids in no order take
    a second look, by `Pairing.refuse_duplicates`.
    """

    def __init__(self) -> None:
        self.missing = False
        self.rise = True
        self._last: object = None

    def see(self, batch: pl.DataFrame) -> None:
        """Takes note of the next rows."""
        ids = batch["0|id"]
        others = [name for name in id_columns(batch.columns) if name != "0|id"]
        if any(ids.ne_missing(batch[name]).any() for name in others):
            raise OrderDiffersError
        self.missing |= ids.null_count() > 0
        if self.rise and not self.missing and len(ids):
            follows = self._last is None or bool((ids.head(1) > self._last).all())
            self.rise = follows and bool((ids.slice(1) > ids.slice(0, len(ids) - 1)).all())
            self._last = ids[-1]

    def refuse(self, pairing: Pairing) -> None:
        """Refuses ids that are missing or not unique."""
        if self.missing:
            raise pairing.missing_id(0)
        if not self.rise:
            pairing.refuse_duplicates(0)


def aligned_parts(
    pairing: Pairing, frame: pl.LazyFrame, sums: Sequence[pl.Expr] = ()
) -> Iterator[Part]:
    """The rows of a table laid side by side, under canonical names, in parts.

    Raises OrderDiffersError as soon as ids turn out not to be equal row for row. Refuses ids that
    are missing or not unique and rows that cannot be compared, at the latest after the last part.
    """
    refusals = pairing.refusals(frame.collect_schema().names())
    canonical = pairing.canonical(frame)
    with naming_any(pairing.sides):
        if pairing.columnar:
            yield from _column_by_column(pairing, canonical, refusals, list(sums))
        else:
            yield from _all_at_once(pairing, canonical, refusals)


def _column_by_column(
    pairing: Pairing, rows: pl.LazyFrame, refusals: list[Refusal], sums: list[pl.Expr]
) -> Iterator[Part]:
    """Columns that are stored apart: ids alone first, then the rest, is faster than all at once."""
    watch = IdWatch()
    ids = id_columns(rows.collect_schema().names())
    if ids:
        for batch in rows.select(ids).collect_batches(
            chunk_size=ROWS_PER_LOOK, maintain_order=True, engine="streaming"
        ):
            watch.see(batch)
    watch.refuse(pairing)
    flags = _flags(refusals)
    found = rows.select(*flags, *sums).collect(engine="streaming") if flags or sums else None
    if found is not None:
        _refuse(pairing, rows, refusals, found.row(0)[: len(flags)])
    counted = found[:, len(flags) :] if found is not None and sums else None
    yield Part(rows=rows, sums=counted)


def _all_at_once(pairing: Pairing, rows: pl.LazyFrame, refusals: list[Refusal]) -> Iterator[Part]:
    """Text is parsed whole for every query, so one pass does everything, batch by batch."""
    by_id = "0|id" in rows.collect_schema().names()
    watch, start = IdWatch(), 0
    flags = _flags(refusals)
    refused = [False] * len(flags)
    for batch in rows.collect_batches(
        chunk_size=ROWS_PER_LOOK, maintain_order=True, engine="streaming"
    ):
        if by_id:
            watch.see(batch)
        if flags:
            found = batch.select(flags).row(0)
            refused = [here or before for here, before in zip(found, refused, strict=True)]
        yield Part(rows=batch.lazy(), start=start)
        start += batch.height
    watch.refuse(pairing)
    _refuse(pairing, rows, refusals, refused)


def _flags(refusals: Sequence[Refusal]) -> list[pl.Expr]:
    return [refusal.where.any().alias(f"__refusal{i}") for i, refusal in enumerate(refusals)]


def _refuse(
    pairing: Pairing, rows: pl.LazyFrame, refusals: Sequence[Refusal], refused: Sequence[bool]
) -> None:
    for refusal, is_refused in zip(refusals, refused, strict=True):
        if is_refused:
            raise pairing.refuse(rows, refusal)
