"""Join the rows of several files by their ids if the files differ in order.

Integer ids that lie close together, as row numbers do, are looked up in a table of rows. All others
meet through a 128-bit hash: sorting fixed-size hashes is several times faster than joining on text,
and parts of the hash range can be done one after the other, so that memory stays bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.engines.pairing import SEED, Pairing
from flipguard.engines.plan import RowCounts
from flipguard.predictions.read import name_file_on_error

HASHES = ("__hash_a", "__hash_b")
SEEDS = (SEED, 0x85EBCA6B)
# The range of ids in a lookup table may be this many times the number of rows.
ROOM_PER_ROW = 4
MOST_THREADS = 8
ROWS_WORTH_THREADS = 100_000
SMALL = frozenset({pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32})

IntArray = npt.NDArray[np.int64]  # or of 32 bits, for row numbers


def joined_frames(
    pairing: Pairing, want: frozenset[str], tally: list[RowCounts]
) -> Iterator[pl.LazyFrame]:
    """Paired tables of the rows that all sides have; the row counts of each go to `tally`."""
    found = _looked_up(pairing, want)
    if found is None:
        yield from _hashed_frames(pairing, want, tally)
        return
    tally.append(found.rows)
    if pairing.plan.progress is not None:
        pairing.plan.progress(1, 1)
    yield found.table.lazy()


# -- by a table of rows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Joined:
    table: pl.DataFrame
    rows: RowCounts


def _looked_up(pairing: Pairing, want: frozenset[str]) -> _Joined | None:
    """The join by a table of rows, in the order of the first side.

    None if ids are of another kind, or if something is wrong with them: the join by hashes says
    what.
    """
    if pairing.ids not in SMALL or pairing.parts > 1:
        return None
    sides = range(len(pairing.sides))
    ids = [_ids(pairing, i) for i in sides]
    if any(column.null_count() for column in ids):
        return None
    low, high = min(_int(x.min()) for x in ids), max(_int(x.max()) for x in ids)
    if high - low >= ROOM_PER_ROW * max(len(x) for x in ids):
        return None
    spots = [_spots(x, low) for x in ids]
    del ids
    if not _is_unique(spots[0], high - low + 1):
        return None
    places: list[IntArray] = []
    for own in spots[1:]:
        rows_of = _rows_of(own, high - low + 1)
        if rows_of is None:
            return None
        places.append(_taken(rows_of, spots[0]))
    heights = [len(own) for own in spots]
    del spots, own, rows_of
    return _common(pairing, want, heights, places)


def _common(
    pairing: Pairing, want: frozenset[str], heights: list[int], places: list[IntArray]
) -> _Joined | None:
    """The rows of the first side that all others have too; -1 in `places` where one does not."""
    kept: list[IntArray | None] = [None, *places]
    both = common = heights[0]
    if any(place.min() < 0 for place in places):
        in_all = np.logical_and.reduce([place >= 0 for place in places])
        both, common = int((places[0] >= 0).sum()), int(in_all.sum())
        kept = [np.flatnonzero(in_all), *(place[in_all] for place in places)]
    if common == 0:
        return None
    if pairing.plan.on_missing == "error" and any(common < height for height in heights):
        return None
    rows = RowCounts(
        matched=common,
        only_old=heights[0] - both,
        only_new=heights[1] - both,
        not_in_control=both - common,
    )
    return _Joined(pl.concat(_gathered(pairing, want, kept), how="horizontal"), rows)


def _ids(pairing: Pairing, i: int) -> pl.Series:
    with name_file_on_error(pairing.sides[i]):
        return pairing.id_list(i).collect(engine="streaming").to_series()


def _int(value: Any) -> int:
    return int(value)


def _spots(ids: pl.Series, low: int) -> IntArray:
    """Where each id is in a table that begins with the lowest one."""
    numbers = ids.to_numpy().astype(np.int64, copy=False)
    return numbers - low if low else numbers


def _is_unique(spots: IntArray, room: int) -> bool:
    seen = np.zeros(room, dtype=np.bool_)
    seen[spots] = True
    return int(np.count_nonzero(seen)) == len(spots)


def _rows_of(spots: IntArray, room: int) -> npt.NDArray[np.int32] | None:
    """The row of each id, -1 where there is none; None if an id is there twice."""
    rows = np.full(room, -1, dtype=np.int32)
    every = np.arange(len(spots), dtype=np.int32)

    def put(part: slice) -> None:
        rows[spots[part]] = every[part]

    _in_threads(put, len(spots))
    return rows if int(np.count_nonzero(rows >= 0)) == len(spots) else None


def _taken(values: npt.NDArray[Any], places: IntArray) -> npt.NDArray[Any]:
    """`values[places]`, in threads: what takes the time is memory that is read all over."""
    out = np.empty(len(places), dtype=values.dtype)

    def take(part: slice) -> None:
        np.take(values, places[part], out=out[part], mode="clip")

    _in_threads(take, len(places))
    return out


def _in_threads(work: Callable[[slice], None], n: int) -> None:
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    step = -(-n // threads)
    parts = [slice(start, start + step) for start in range(0, n, step)]
    if n < ROWS_WORTH_THREADS:
        work(slice(0, n))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, parts))


def _gathered(
    pairing: Pairing, want: frozenset[str], kept: list[IntArray | None]
) -> Iterator[pl.DataFrame]:
    for i, rows in enumerate(kept):
        # Error messages use the ids of the first side.
        asked = want - {"row"} if i == 0 else want - {"row", "id"}
        with name_file_on_error(pairing.sides[i]):
            table = pairing.side_frame(i, asked).collect(engine="streaming")
        columns = [c if rows is None else _gather(c, rows) for c in table.get_columns()]
        if "row" in want:
            place = np.arange(table.height) if rows is None else rows
            columns.append(pl.Series(f"{i}|row", place, dtype=pl.Int64))
        yield pl.DataFrame(columns)


def _gather(column: pl.Series, rows: IntArray) -> pl.Series:
    if column.dtype in SMALL and not column.null_count():
        # Several times as fast as by Polars.
        return pl.Series(column.name, _taken(column.to_numpy(), rows), dtype=column.dtype)
    return column.gather(rows)


# -- by hashes ---------------------------------------------------------------------------------


def _hashed_frames(
    pairing: Pairing, want: frozenset[str], tally: list[RowCounts]
) -> Iterator[pl.LazyFrame]:
    """Paired tables, a part of the hash range each."""
    missing: list[tuple[int, int]] = []
    for part in range(pairing.parts):
        tables = [_hashed(pairing, i, want, part) for i in range(len(pairing.sides))]
        if not _same_rows(tables):
            tables, rows, absent = _inner(tables)
            missing += absent
        else:
            rows = RowCounts(matched=tables[0].height)
        tally.append(rows)
        if pairing.plan.progress is not None:
            pairing.plan.progress(part + 1, pairing.parts)
        yield pl.concat(
            [tables[0], *(table.drop(HASHES) for table in tables[1:])], how="horizontal"
        ).lazy()
    if sum(rows.matched for rows in tally) == 0:
        raise pairing.nothing_in_common()
    if missing and pairing.plan.on_missing == "error":
        problem = pairing.lacking(pairing.only_in)
        assert problem is not None
        raise problem


def _hashed(pairing: Pairing, i: int, want: frozenset[str], part: int) -> pl.DataFrame:
    """One side's part of the hash range, in the order of its hashes."""
    side_id = pl.col(f"{i}|id")
    hashes = [side_id.hash(seed=s).alias(h) for h, s in zip(HASHES, SEEDS, strict=True)]
    frame = pairing.side_frame(i, want | {"id"}).with_columns(hashes)
    if pairing.parts > 1:
        frame = frame.filter(pl.col(HASHES[0]) % pairing.parts == part)
    if "id" not in want:
        frame = frame.drop(f"{i}|id")
    first = HASHES[0]
    with name_file_on_error(pairing.sides[i]):
        # One key sorts four times as fast as two; the second decides in the one case in a
        # hundred thousand where two different ids share the first.
        table = frame.sort(first).collect(engine="streaming")
    no_id = pl.Series([None], dtype=pairing.ids).hash(seed=SEEDS[0])[0]
    if (table[first] == no_id).any():
        _refuse_missing_id(pairing, i)
    if table.select((pl.col(first) == pl.col(first).shift(1)).any()).item():
        pairing.raise_if_duplicates(i)
        table = table.sort(HASHES)
    return table


def _refuse_missing_id(pairing: Pairing, i: int) -> None:
    missing = pairing.id_list(i).select(pl.all().null_count())
    if missing.collect(engine="streaming").item():
        raise pairing.missing_id(i)


def _same_rows(tables: list[pl.DataFrame]) -> bool:
    first = tables[0].select(HASHES)
    return all(first.equals(table.select(HASHES)) for table in tables[1:])


def _inner(
    tables: list[pl.DataFrame],
) -> tuple[list[pl.DataFrame], RowCounts, list[tuple[int, int]]]:
    """The rows that all sides have, and how many each lacks."""
    keys = [table.select(HASHES) for table in tables]
    both = keys[0].join(keys[1], on=HASHES, how="inner")
    common = both
    for key in keys[2:]:
        common = common.join(key, on=HASHES, how="inner")
    common = common.sort(HASHES)
    rows = RowCounts(
        matched=common.height,
        only_old=keys[0].height - both.height,
        only_new=keys[1].height - both.height,
        not_in_control=both.height - common.height,
    )
    absent = [(i, k.height - common.height) for i, k in enumerate(keys) if k.height > common.height]
    kept = [common.join(t, on=HASHES, how="left", maintain_order="left") for t in tables]
    return kept, rows, absent
