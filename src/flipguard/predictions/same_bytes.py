"""Decide from raw bytes, without decoding, whether two Parquet files hold the same column."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flipguard.predictions.parquet_footer import (
    CHILDREN,
    CHUNK,
    CODEC,
    COLUMNS,
    ENCODINGS,
    GROUPS,
    KIND,
    NAME,
    NUMBER,
    PACKED,
    PATH,
    ROWS,
    SCHEMA,
    UNPACKED,
    VALUES,
    Fields,
    read_parquet_footer,
    start,
)

# Properties that two chunks with equal bytes must share to decode to the same values.
SAME = (KIND, ENCODINGS, CODEC, VALUES, PACKED, UNPACKED)
PIECE = 1 << 22


def identical_parquet_column(
    first: Path, first_column: str, second: Path, second_column: str
) -> bool:
    """True only if both columns are stored as the very same bytes in row groups of one shape.

    Equal stored bytes of equal type, encoding and compression decode to equal values, so True is
    proof. False proves nothing: equal values can be stored in many ways.
    """
    chunks = _same_shape(first, first_column, second, second_column)
    if chunks is None or not hasattr(os, "pread"):
        return False
    with first.open("rb") as a, second.open("rb") as b, ThreadPoolExecutor() as pool:
        pieces = (
            (a.fileno(), b.fileno(), at + done, other + done, min(PIECE, size - done))
            for at, other, size in chunks
            for done in range(0, size, PIECE)
        )
        return all(pool.map(_same_piece, pieces))


def _same_piece(piece: tuple[int, int, int, int, int]) -> bool:
    a, b, at, other, size = piece
    return os.pread(a, size, at) == os.pread(b, size, other)


def _same_shape(
    first: Path, first_column: str, second: Path, second_column: str
) -> list[tuple[int, int, int]] | None:
    """(offset, offset, size) of each pair of column chunks; None if they cannot be the same."""
    one, two = read_parquet_footer(first), read_parquet_footer(second)
    if one is None or two is None or one[ROWS] != two[ROWS]:
        return None
    groups, others = one.get(GROUPS, []), two.get(GROUPS, [])
    kind = _type(one, first_column)
    if (
        not groups
        or len(groups) != len(others)
        or kind is None
        or kind != _type(two, second_column)
    ):
        return None
    pairs = []
    for group, other in zip(groups, others, strict=True):
        a, b = _chunk(group, first_column), _chunk(other, second_column)
        if a is None or b is None or [a.get(f) for f in SAME] != [b.get(f) for f in SAME]:
            return None
        pairs.append((start(a), start(b), int(a[PACKED])))
    return pairs


def _type(footer: Fields, column: str) -> Fields | None:
    """The type of the stored values: the same bytes can be a number, a time or a text."""
    # Everything except the name and the number of the field; a nested column has inner elements.
    found = [e for e in footer[SCHEMA][1:] if e.get(NAME) == column.encode()]
    if len(found) != 1 or found[0].get(CHILDREN):
        return None
    return {field: value for field, value in found[0].items() if field not in (NAME, NUMBER)}


def _chunk(group: Fields, column: str) -> Fields | None:
    chunks = [c[CHUNK] for c in group[COLUMNS] if c[CHUNK].get(PATH) == [column.encode()]]
    return chunks[0] if len(chunks) == 1 else None
