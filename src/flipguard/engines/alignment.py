"""Pair the rows of several files: in the order of the files if their ids agree, else by a join."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from flipguard.counts import IntArray
from flipguard.engines.joining import joined_frames
from flipguard.engines.outcomes import RowCheck
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import RowCounts, summed_rows
from flipguard.engines.tally import Part
from flipguard.predictions.read import name_any_file_on_error

# Rows that are looked at together: few enough to be nothing in memory, enough to be fast.
ROWS_PER_LOOK = 1 << 20


class OrderDiffersError(Exception):
    """Ids are not equal row for row, so everything counted so far must be discarded."""


def id_columns(names: Sequence[str]) -> list[str]:
    """The id columns of each side; a group-by column named `id` is not one of them."""
    return [name for name in names if re.fullmatch(r"\d+\|id", name)]


class IdOrderCheck:
    """Check ids in batches: whether they are equal row for row, complete and increasing.

    Ids that rise are unique, and seeing that takes the memory of one batch. Ids in no order take
    a second look, by `Pairing.refuse_duplicates`.
    """

    def __init__(self) -> None:
        self.missing = False
        self.rise = True
        self._last: object = None

    def see(self, batch: pl.DataFrame) -> None:
        """Check the next rows."""
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
    with name_any_file_on_error(pairing.sides):
        if pairing.columnar:
            yield from _column_by_column(pairing, canonical, refusals, list(sums))
        else:
            yield from _all_at_once(pairing, canonical, refusals)


def _column_by_column(
    pairing: Pairing, rows: pl.LazyFrame, refusals: list[RowCheck], sums: list[pl.Expr]
) -> Iterator[Part]:
    """Read ids first and then the rest, which is faster if columns are stored separately."""
    watch = IdOrderCheck()
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


def _all_at_once(pairing: Pairing, rows: pl.LazyFrame, refusals: list[RowCheck]) -> Iterator[Part]:
    """Read everything in one pass, because every query on a text file parses all of it."""
    by_id = "0|id" in rows.collect_schema().names()
    watch, start = IdOrderCheck(), 0
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


def _flags(refusals: Sequence[RowCheck]) -> list[pl.Expr]:
    return [refusal.where.any().alias(f"__refusal{i}") for i, refusal in enumerate(refusals)]


def _refuse(
    pairing: Pairing, rows: pl.LazyFrame, refusals: Sequence[RowCheck], refused: Sequence[bool]
) -> None:
    for refusal, is_refused in zip(refusals, refused, strict=True):
        if is_refused:
            raise pairing.refuse(rows, refusal)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows:
    """The samples that all files have, in the order of the first.

    `positions[i]` is the row of file i that each sample is in; None if that is the sample's own
    place, so that the file can be read front to back.
    """

    table: pl.DataFrame
    positions: tuple[IntArray | None, ...]
    rows: RowCounts


def paired_rows(pairing: Pairing, want: frozenset[str]) -> PairedRows:
    """The wanted columns of the samples that all files have, under canonical names."""
    sides = range(len(pairing.sides))
    if pairing.may_be_aligned():
        frame = pairing.aligned_frame(want | {"id"})
        try:
            parts = [
                _wanted(part.rows, want).collect(engine="streaming")
                for part in aligned_parts(pairing, frame)
            ]
        except OrderDiffersError:
            pass
        else:
            rows = RowCounts(matched=pairing.heights[0])
            return PairedRows(
                table=pl.concat(parts), positions=tuple(None for _ in sides), rows=rows
            )
    tally: list[RowCounts] = []
    frames = list(_joined_frames(pairing, want | {"id", "row"}, tally))
    joined = pl.concat([frame.collect() for frame in frames]).sort("0|row")
    places = [joined[f"{i}|row"].to_numpy() for i in sides]
    in_order = len(joined) == pairing.heights[0]
    return PairedRows(
        table=_wanted(pairing.canonical(joined.lazy()), want).collect(),
        positions=(None if in_order else places[0], *places[1:]),
        rows=summed_rows(tally),
    )


def checked_frames(
    pairing: Pairing, want: frozenset[str], tally: list[RowCounts]
) -> Iterator[pl.LazyFrame]:
    """Paired tables that passed all checks: one table, or one per part of a join.

    The row counts go to `tally`; files that must not be compared are refused at the latest after
    the last table.
    """
    if pairing.may_be_aligned():
        frame = pairing.aligned_frame(want | {"id"})
        if _is_aligned(pairing, frame):
            tally.append(RowCounts(matched=pairing.heights[0]))
            yield pairing.canonical(frame)
            return
    for frame in _joined_frames(pairing, want | {"id"}, tally):
        yield pairing.canonical(frame)


def _is_aligned(pairing: Pairing, frame: pl.LazyFrame) -> bool:
    try:
        for _ in aligned_parts(pairing, frame):
            pass
    except OrderDiffersError:
        return False
    return True


def _joined_frames(
    pairing: Pairing, want: frozenset[str], tally: list[RowCounts]
) -> Iterator[pl.LazyFrame]:
    for frame in joined_frames(pairing, want, tally):
        refuse_joined(pairing, frame)
        yield frame


def refuse_joined(pairing: Pairing, frame: pl.LazyFrame) -> None:
    """Refuses rows of a joined table that cannot be compared, naming ids if the table has them."""
    names = frame.collect_schema().names()
    refusals = pairing.refusals(names)
    flags = [refusal.where.any().alias(str(i)) for i, refusal in enumerate(refusals)]
    if not flags:
        return
    found = frame.select(flags).collect(engine="streaming").row(0)
    for refusal, refused in zip(refusals, found, strict=True):
        if refused:
            # A join leaves rows in the order of their hashes, in which no one would look for them.
            order = [name for name in ("0|row", "0|id") if name in names]
            raise pairing.refuse(frame.sort(order[0]) if order else frame, refusal)


def _wanted(canonical: pl.LazyFrame, want: frozenset[str]) -> pl.LazyFrame:
    kept = [
        name
        for name in canonical.collect_schema().names()
        # The sides' columns begin with the number of the side.
        if name.startswith("__") and not name.startswith("__hash")
        if "id" in want or name != "__id"
    ]
    return canonical.select(kept)
