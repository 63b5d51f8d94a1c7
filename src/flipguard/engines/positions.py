"""The rows of several files side by side, checked, and where in its file each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from flipguard.counts import IntArray
from flipguard.engines.alignment import OrderDiffersError, aligned_parts
from flipguard.engines.joining import joined_frames
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import RowCounts, summed_rows


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
    """Paired tables in which nothing is to be refused: one, or a part of a join each.

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
