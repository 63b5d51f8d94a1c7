"""The footer of a Parquet file, parsed by these few lines: where its columns are, and of what type.

Just enough of Thrift's compact protocol to see, before Polars follows an offset, that it lies in
the file; and to tell whether two files hold the same bytes of a column.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from flipguard.predictions.text import FormatError

MAGIC = b"PAR1"
# A larger footer describes too many columns; parsing it here would take seconds.
LARGEST_FOOTER = 1 << 20
MOST_PAGES = 2_000
# Statistics in a header may hold long texts; such a page is left to Polars.
LONGEST_HEADER = 1 << 13

# Fields of the structs in parquet.thrift.
SCHEMA, ROWS, GROUPS = 2, 3, 4
COLUMNS, GROUP_ROWS, CHUNK = 1, 3, 3
KIND, ENCODINGS, PATH, CODEC, VALUES, UNPACKED, PACKED, DATA, DICTIONARY = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    11,
)
# Of the header of a page: sizes, and the headers of the three kinds of pages.
PAGE_UNPACKED, PAGE_PACKED, PAGES, PAGE_VALUES = 2, 3, (5, 7, 8), 1
# Of an element of the schema.
NAME, CHILDREN, NUMBER = 4, 5, 9
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
INTEGERS = (4, 5, 6)

Fields = dict[int, Any]
# What comes of bytes that were altered: any value may be missing, or of another kind.
DAMAGE = (
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    RecursionError,
    struct.error,
)


def read_parquet_footer(path: Path) -> Fields | None:
    """The file's metadata by the numbers of its fields; None if it is too long to be read here."""
    status = path.stat()
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, size: int, _changed: int) -> Fields | None:
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if start != MAGIC or end[4:] != MAGIC:
            raise FormatError("its first or last bytes are not those of Parquet")
        if not 0 < length <= size - 12:
            raise FormatError(f"its footer claims {length:,} bytes, but the file has {size:,}")
        if length > LARGEST_FOOTER:
            return None
        file.seek(size - 8 - length)
        try:
            footer = _Compact(file.read(length)).fields()
            column_names(footer)
            _check(footer, size)
            _check_pages(footer, file)
        except DAMAGE as problem:
            raise FormatError("its footer or a page is damaged") from problem
    return footer


def column_names(footer: Fields) -> list[str]:
    """The names of the columns; elements within a nested column follow it and are passed over."""
    names, inside = [], [footer[SCHEMA][0].get(CHILDREN, 0)]
    for element in footer[SCHEMA][1:]:
        while not inside[-1]:
            inside.pop()
        if len(inside) == 1:
            names.append(element[NAME].decode())
        inside[-1] -= 1
        inside.append(element.get(CHILDREN, 0))
    return names


def _check(footer: Fields, size: int) -> None:
    """Whether all offsets in the footer lie inside the file."""
    groups = footer.get(GROUPS, [])
    if footer[ROWS] != sum(group[GROUP_ROWS] for group in groups):
        raise ValueError("The rows of the groups do not add up.")
    for group in groups:
        for column in group[COLUMNS]:
            chunk = column[CHUNK]
            if (
                start(chunk) < len(MAGIC)
                or start(chunk) + chunk[PACKED] > size
                or chunk[VALUES] < 0
            ):
                raise ValueError("A column lies outside the file.")


def _check_pages(footer: Fields, file: IO[bytes]) -> None:
    """Whether the first pages claim sizes that can be: Polars takes memory for any number."""
    left = MOST_PAGES
    for group in footer.get(GROUPS, []):
        for column in group[COLUMNS]:
            at, end = start(column[CHUNK]), start(column[CHUNK]) + column[CHUNK][PACKED]
            while at < end and left:
                file.seek(at)
                data = file.read(min(LONGEST_HEADER, end - at))
                page = _Compact(data)
                try:
                    header = page.fields()
                except (IndexError, ValueError):
                    if len(data) == LONGEST_HEADER:
                        break
                    raise
                numbers = [header[PAGE_UNPACKED], header[PAGE_PACKED]]
                numbers += [header[kind][PAGE_VALUES] for kind in PAGES if kind in header]
                if min(numbers) < 0 or max(numbers) >= 1 << 31:
                    raise ValueError("A page claims a size that cannot be.")
                at += page.at + header[PAGE_PACKED]
                left -= 1


def start(chunk: Fields) -> int:
    """Where a column chunk begins."""
    # The dictionary, where there is one, lies before the data pages.
    return int(chunk.get(DICTIONARY) or chunk[DATA])


class _Compact:
    """Reads values as Thrift's compact protocol writes them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        """The number of bytes read so far."""
        return self._at

    def fields(self) -> Fields:
        """A struct."""
        found: Fields = {}
        last = 0
        while (head := self._byte()) != 0:
            last = last + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            found[last] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind)
        return found

    def _value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == BINARY:
            return self._take(self._varint())
        if kind == STRUCT:
            return self.fields()
        if kind in (LIST, SET):
            head = self._byte()
            return [self._value(head & 15) for _ in range(self._length(head >> 4))]
        if kind == DOUBLE:
            return struct.unpack("<d", self._take(8))[0]
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        if kind == MAP:
            size = self._varint()
            head = self._byte() if size else 0
            return [(self._value(head >> 4), self._value(head & 15)) for _ in range(size)]
        raise ValueError("An unknown kind of value.")

    def _length(self, short: int) -> int:
        return short if short < 15 else self._varint()

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("A value is longer than the footer.")
        self._at += size
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7

    def _integer(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
