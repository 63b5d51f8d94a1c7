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
    frames = list(checked_frames(pairing, want, tally, if_joined=frozenset({"row"})))
    rows, sides = summed_rows(tally), range(len(pairing.sides))
    if "0|row" not in frames[0].collect_schema():
        table = _canonical(pairing, frames[0], want).collect(engine="streaming")
        return PairedRows(table=table, positions=tuple(None for _ in sides), rows=rows)
    joined = pl.concat([frame.collect() for frame in frames]).sort("0|row")
    places = [joined[f"{i}|row"].to_numpy() for i in sides]
    in_order = len(joined) == pairing.heights[0]
    return PairedRows(
        table=_canonical(pairing, joined.lazy(), want).collect(),
        positions=(None if in_order else places[0], *places[1:]),
        rows=rows,
    )


def checked_frames(
    pairing: Pairing,
    want: frozenset[str],
    tally: list[RowCounts],
    *,
    if_joined: frozenset[str] = frozenset(),
) -> Iterator[pl.LazyFrame]:
    """Paired tables in which nothing is to be refused: one, or a part of a join each.

    The columns `if_joined` are there too where the files are not in one order. The row counts go
    to `tally`; files that must not be compared are refused at the latest after the last table.
    """
    if pairing.may_be_aligned():
        frame = pairing.aligned_frame(want | {"id"})
        checker = LabelCounting(pairing.plan)
        checker.pairing = pairing
        if checker._aligned_checks(frame, []) is not None:
            _refuse_first(pairing, frame, _other_targets(pairing, frame))
            tally.append(RowCounts(matched=pairing.heights[0]))
            yield frame
            return
    for frame in pairing.joined_frames(want | {"id"} | if_joined, tally):
        refusals = pairing.refusals(frame.collect_schema().names())
        _refuse_first(pairing, frame, refusals + _other_targets(pairing, frame))
        yield frame


def _refuse_first(pairing: Pairing, frame: pl.LazyFrame, refusals: list[Refusal]) -> None:
    if not refusals:
        return
    flags = [refusal.where.any().alias(str(i)) for i, refusal in enumerate(refusals)]
    found = frame.select(flags).collect(engine="streaming").row(0)
    for refusal, refused in zip(refusals, found, strict=True):
        if refused:
            order = "0|row" if "0|row" in frame.collect_schema() else "0|id"
            raise pairing.refuse(frame.sort(order), refusal)


def _other_targets(pairing: Pairing, frame: pl.LazyFrame) -> list[Refusal]:
    """The pairing holds every file's targets against the first's; this is for what that lacks."""
    names = frame.collect_schema().names()
    having = [i for i in range(1, len(pairing.sides)) if f"{i}|target" in names]
    if len(having) < 2:
        return []
    if "0|target" in names:
        missing = frame.select(pl.col("0|target").null_count()).collect(engine="streaming")
        if missing.item() == 0:
            return []
    return [_two_targets(i, j, pairing) for i, j in combinations(having, 2)]


def _two_targets(i: int, j: int, pairing: Pairing) -> Refusal:
    first, second = pairing.sides[i].name, pairing.sides[j].name
    return Refusal(
        (pl.col(f"{i}|target") != pl.col(f"{j}|target")).fill_null(False),
        lambda rows: (
            f"{first} and {second} disagree on the target of {rows}; a sample has one "
            "true class: mend the wrong file, or leave the target out of it."
        ),
    )


def _canonical(pairing: Pairing, frame: pl.LazyFrame, want: frozenset[str]) -> pl.LazyFrame:
    canonical = pairing.canonical(frame)
    kept = [
        name
        for name in canonical.collect_schema().names()
        if "|" not in name and not name.startswith("__hash") and ("id" in want or name != "__id")
    ]
    return canonical.select(kept)
