"""Write Arrow files piece by piece, with metadata in their schema.

Polars encodes the pieces. It cannot store metadata in an Arrow file, so the schema and the footer
are made here, with just enough of FlatBuffers for that. `arrow_footer` reads them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import IO

import polars as pl

from flipguard.predictions.arrow_footer import (
    BATCHES,
    BLOCK,
    FIELDS,
    KEY,
    MAGIC,
    METADATA,
    SCHEMA,
    VALUE,
    FlatTable,
)

# Fields of the tables in Message.fbs, by their number, and the numbers of their contents.
VERSION, KIND, HEADER, BODY = 0, 1, 2, 3
V5, SCHEMA_KIND, BATCH_KIND = 4, 1, 3
PREFIX = struct.Struct("<Ii")  # of a message: this mark, and the length of its description
MARK = 0xFFFFFFFF
END = PREFIX.pack(MARK, 0)


def write_arrow(
    pieces: Iterable[pl.DataFrame], stream: IO[bytes], metadata: Mapping[str, str]
) -> None:
    """Write frames of one schema as the record batches of an Arrow file."""
    at = stream.write(MAGIC.ljust(8, b"\0"))
    blocks = bytearray()
    schema = b""
    for piece in pieces:
        encoded = io.BytesIO()
        # Other libraries read the older types of Arrow too.
        piece.rechunk().write_ipc_stream(encoded, compat_level=pl.CompatLevel.oldest())
        content = encoded.getbuffer()
        for start, body, stop in _messages(content):
            description = bytes(content[start + PREFIX.size : body])
            kind = FlatTable.root(description).number(KIND, "<B")
            if kind == BATCH_KIND:
                blocks += BLOCK.pack(at, body - start, stop - body)
                at += stream.write(content[start:stop])
            elif kind != SCHEMA_KIND:
                raise ValueError(f"An Arrow file in pieces holds no message of kind {kind}.")
            elif not schema:
                schema = description
                at += stream.write(_schema_message(schema, metadata))
    footer = _footer(schema, metadata, bytes(blocks))
    stream.write(END + footer + struct.pack("<i", len(footer)) + MAGIC)


def _messages(content: memoryview) -> Iterator[tuple[int, int, int]]:
    """Where each message of an Arrow stream starts, where its body does, and where it ends."""
    start = 0
    while True:
        _, length = PREFIX.unpack_from(content, start)
        if not length:
            return
        body = start + PREFIX.size + length
        message = FlatTable.root(bytes(content[start + PREFIX.size : body]))
        stop = body + message.number(BODY, "<q")
        yield start, body, stop
        start = stop


class _Buffer:
    """A FlatBuffer in the making; a table comes before everything that it refers to."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def _align(self, to: int) -> None:
        self.data += bytes(-len(self.data) % to)

    def point(self, slot: int, target: int | None = None) -> None:
        """Let an offset point to a target, or to what is added next."""
        self._align(8)
        target = len(self.data) if target is None else target
        struct.pack_into("<I", self.data, slot, target - slot)

    def table(self, slot: int, *fields: int) -> list[int]:
        """Add a table at which an offset points; return where each field's four bytes are."""
        self._align(8)
        names = len(self.data)
        offsets = [0] * (max(fields) + 1)
        for i, field in enumerate(fields):
            offsets[field] = 4 + 4 * i
        self.data += struct.pack("<HH", 4 + 2 * len(offsets), 4 + 4 * len(fields))
        self.data += struct.pack(f"<{len(offsets)}H", *offsets)
        self.point(slot)
        table = len(self.data)
        self.data += struct.pack("<i", table - names) + bytes(4 * len(fields))
        return [table + offsets[field] for field in fields]

    def number(self, slot: int, value: int) -> None:
        """Set a number of one or two bytes."""
        struct.pack_into("<H", self.data, slot, value)

    def text(self, slot: int, text: str) -> None:
        """Add a text at which an offset points."""
        encoded = text.encode()
        self.point(slot)
        self.data += struct.pack("<I", len(encoded)) + encoded + b"\0"

    def structs(self, slot: int, content: bytes, size: int) -> None:
        """Add a list of structs, which start at a multiple of eight bytes."""
        self._align(8)
        self.data += bytes(4)
        struct.pack_into("<I", self.data, slot, len(self.data) - slot)
        self.data += struct.pack("<I", len(content) // size) + content

    def schema(self, slot: int, message: bytes, metadata: Mapping[str, str]) -> None:
        """Add the schema of a message, with metadata."""
        fields, pairs = self.table(slot, FIELDS, METADATA)
        self.point(pairs)
        at = len(self.data) + 4
        self.data += struct.pack("<I", len(metadata)) + bytes(4 * len(metadata))
        for i, (key, value) in enumerate(metadata.items()):
            name, content = self.table(at + 4 * i, KEY, VALUE)
            self.text(name, key)
            self.text(content, value)
        self._align(8)
        here = len(self.data)
        self.data += message
        self.point(fields, here + FlatTable.root(message).table(HEADER).followed(FIELDS))

    def finished(self) -> bytes:
        """The bytes, a multiple of eight."""
        self._align(8)
        return bytes(self.data)


def _schema_message(message: bytes, metadata: Mapping[str, str]) -> bytes:
    buffer = _Buffer()
    version, kind, header = buffer.table(0, VERSION, KIND, HEADER)
    buffer.number(version, V5)
    buffer.number(kind, SCHEMA_KIND)
    buffer.schema(header, message, metadata)
    description = buffer.finished()
    return PREFIX.pack(MARK, len(description)) + description


def _footer(message: bytes, metadata: Mapping[str, str], blocks: bytes) -> bytes:
    buffer = _Buffer()
    version, schema, batches = buffer.table(0, VERSION, SCHEMA, BATCHES)
    buffer.number(version, V5)
    buffer.structs(batches, blocks, BLOCK.size)
    buffer.schema(schema, message, metadata)
    return buffer.finished()
