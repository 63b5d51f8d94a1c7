"""Whether two Parquet files hold the same column, told from their bytes without decoding them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    import pyarrow.parquet as pq

    one, two = pq.read_metadata(first), pq.read_metadata(second)
    if one.num_rows != two.num_rows or one.num_row_groups != two.num_row_groups:
        return None
    if not one.num_row_groups or _type(one, first_column) != _type(two, second_column):
        return None
    pairs = []
    for a, b in zip(_chunks(one, first_column), _chunks(two, second_column), strict=True):
        if a is None or b is None or _description(a) != _description(b):
            return None
        pairs.append((_start(a), _start(b), int(a.total_compressed_size)))
    return pairs


def _type(metadata: Any, column: str) -> tuple[object, ...] | None:
    """What the stored values mean: the same bytes can be a number, a time or a text."""
    for i in range(len(metadata.schema.names)):
        found = metadata.schema.column(i)
        if found.path == column:
            nesting = (found.max_definition_level, found.max_repetition_level)
            return (found.physical_type, str(found.logical_type), *nesting)
    return None


def _chunks(metadata: Any, column: str) -> Iterator[Any]:
    first = metadata.row_group(0)
    paths = [first.column(i).path_in_schema for i in range(first.num_columns)]
    index = paths.index(column) if column in paths else None
    for group in range(metadata.num_row_groups):
        yield None if index is None else metadata.row_group(group).column(index)


def _description(chunk: Any) -> tuple[object, ...]:
    kept = (chunk.physical_type, chunk.encodings, chunk.compression, chunk.num_values)
    return (*kept, chunk.total_compressed_size, chunk.total_uncompressed_size)


def _start(chunk: Any) -> int:
    # The dictionary, where there is one, lies before the data pages.
    return int(chunk.dictionary_page_offset or chunk.data_page_offset)
