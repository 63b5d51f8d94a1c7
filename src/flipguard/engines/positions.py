"""The rows of several files side by side, checked, and where in its file each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from flipguard.counts import IntArray
from flipguard.engines.labelled import LabelCounting
from flipguard.engines.pairing import Pairing, Refusal
from flipguard.engines.plan import RowCounts, summed_rows
from flipguard.errors import InputError


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
    tally: list[RowCounts] = []
    frames = [f.collect(engine="streaming") for f in checked_frames(pairing, want, tally, "row")]
    rows = summed_rows(tally)
    sides = range(len(pairing.sides))
    if "0|row" not in frames[0].columns:
        return PairedRows(
            table=_canonical(pairing, frames[0], want), positions=(None,) * len(sides), rows=rows
        )
    joined = pl.concat(frames).sort("0|row")
    places = [joined[f"{i}|row"].to_numpy() for i in sides]
    in_order = len(places[0]) == pairing.heights[0]
    return PairedRows(
        table=_canonical(pairing, joined, want),
        positions=(None if in_order else places[0], *places[1:]),
        rows=rows,
    )


def checked_frames(
    pairing: Pairing, want: frozenset[str], tally: list[RowCounts], *when_joined: str
) -> Iterator[pl.LazyFrame]:
    """Paired tables in which nothing is to be refused: one, or a part of a join each.

    The columns `when_joined` are added where files are not in one order. The row counts go to
    `tally`, and are final once the last table is taken.
    """
    if pairing.may_be_aligned():
        frame = pairing.aligned_frame(want | {"id"})
        if LabelCounting(pairing.plan).aligned_checks(frame, []) is not None:
            _refuse_other_targets(pairing, frame)
            tally.append(RowCounts(matched=pairing.heights[0]))
            yield frame
            return
    for frame in pairing.joined_frames(want | {"id", *when_joined}, tally):
        names = frame.collect_schema().names()
        for refusal in pairing.refusals(names):
            _refuse(pairing, frame, refusal)
        _refuse_other_targets(pairing, frame)
        yield frame


def _canonical(pairing: Pairing, frame: pl.DataFrame, want: frozenset[str]) -> pl.DataFrame:
    canonical = pairing.canonical(frame.lazy())
    kept = [
        name
        for name in canonical.collect_schema().names()
        if "|" not in name and not name.startswith("__hash") and ("id" in want or name != "__id")
    ]
    return canonical.select(kept).collect()
