"""Parse the footer of an Arrow file: the names of its columns, and its metadata.

Polars drops a column whose name is there already, and panics later; and it does not hand out the
metadata of a schema. So both are read here, with just enough of FlatBuffers for that.
"""

from __future__ import annotations

import struct
from pathlib import Path

from flipguard.errors import InputError
from flipguard.predictions.text import FormatError

MAGIC = b"ARROW1"
RELATIVES = {b"\xff\xff\xff\xff": "an Arrow stream", b"FEA1": "a Feather file of version 1"}

# Fields of the tables in File.fbs and Schema.fbs, by their number.
SCHEMA, BATCHES = 1, 3
FIELDS, METADATA = 1, 2
NAME = KEY = 0
VALUE = 1
# Where a record batch is: its offset, the length of its description, and that of its content.
BLOCK = struct.Struct("<qi4xq")


def read_arrow_footer(path: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the columns in their order, and the metadata of the schema."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        file.seek(max(0, size - 10))
        end = file.read()
        _refuse_relatives(path, start)
        if not start.startswith(MAGIC) or end[4:] != MAGIC:
            raise FormatError("its first or last bytes are not those of an Arrow file")
        length = int.from_bytes(end[:4], "little")
        if not 0 < length <= size - 18:
            raise FormatError(f"its footer claims {length:,} bytes, but the file has {size:,}")
        file.seek(size - 10 - length)
        footer = FlatTable.root(file.read(length))
    try:
        for offset, description, content in footer.blocks(BATCHES):
            if min(offset, description, content) < 0 or offset + description + content > size:
                raise ValueError("A record batch lies outside the file.")
        schema = footer.table(SCHEMA)
        names = [field.text(NAME) for field in schema.tables(FIELDS)]
        return names, {pair.text(KEY): pair.text(VALUE) for pair in schema.tables(METADATA)}
    except (IndexError, ValueError, struct.error) as problem:
        raise FormatError("its footer is damaged") from problem


def _refuse_relatives(path: Path, start: bytes) -> None:
    for magic, what in RELATIVES.items():
        if start.startswith(magic):
            raise InputError(
                f"{path} is {what}, which flipguard does not read; write it as an Arrow file "
                "(Feather version 2) or as Parquet."
            )


class FlatTable:
    """A table of FlatBuffers: its fields are offsets from where it begins."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: bytes) -> FlatTable:
        """The table that a buffer holds."""
        return cls(data, int.from_bytes(data[:4], "little"))

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise ValueError("An offset points before the footer.")
        return int(struct.unpack_from(form, self._data, at)[0])

    def _field(self, number: int) -> int | None:
        """Where a field is; None if the table does not have it."""
        names = self._at - self._read("<i", self._at)
        if 4 + 2 * number >= self._read("<H", names):
            return None
        found = self._read("<H", names + 4 + 2 * number)
        return self._at + found if found else None

    def _followed(self, at: int) -> int:
        return at + self._read("<I", at)

    def followed(self, number: int) -> int:
        """The index of the byte to which a field points."""
        at = self._field(number)
        if at is None:
            raise ValueError("A table is missing.")
        return self._followed(at)

    def table(self, number: int) -> FlatTable:
        """The table in a field."""
        return FlatTable(self._data, self.followed(number))

    def number(self, number: int, form: str) -> int:
        """The number in a field; 0 if the table does not have it."""
        at = self._field(number)
        return 0 if at is None else self._read(form, at)

    def _vector(self, number: int) -> tuple[int, int]:
        """Where the elements of a field begin, and how many there are."""
        at = self._field(number)
        if at is None:
            return 0, 0
        at = self._followed(at)
        count = self._read("<I", at)
        if count > len(self._data):
            raise ValueError("A list is longer than the footer.")
        return at + 4, count

    def tables(self, number: int) -> list[FlatTable]:
        """The tables in a field."""
        at, count = self._vector(number)
        return [FlatTable(self._data, self._followed(at + 4 * i)) for i in range(count)]

    def blocks(self, number: int) -> list[tuple[int, ...]]:
        """The blocks in a field."""
        at, count = self._vector(number)
        return [BLOCK.unpack_from(self._data, at + BLOCK.size * i) for i in range(count)]

    def text(self, number: int) -> str:
        """The text in a field."""
        at, count = self._vector(number)
        if at + count > len(self._data):
            raise ValueError("A text is longer than the footer.")
        return self._data[at : at + count].decode()
