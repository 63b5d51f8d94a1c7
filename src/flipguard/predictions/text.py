"""Files of text before a parser sees them: opened, and checked for what parsers pass over."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from flipguard.errors import InputError, listed

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# Small enough to stay in a core's cache, where a look at every byte is cheap.
PIECE = 1 << 16
ROWS_LOOKED_AT = 1_000
BYTES_LOOKED_AT = 8 << 20
NEWLINE, QUOTE = ord("\n"), ord('"')


class RaggedError(ValueError):
    """A row has more or fewer fields than the header."""


def opened(path: Path) -> IO[bytes]:
    """The file's text as bytes; whether it is compressed is told by its first bytes."""
    with path.open("rb") as file:
        start = file.read(4)
    for magic, codec in MAGIC.items():
        if start.startswith(magic):
            import pyarrow as pa

            stream: IO[bytes] = pa.input_stream(str(path), compression=codec)
            return stream
    return path.open("rb")


# -- separated text ----------------------------------------------------------------------------


def check_fields(path: Path, separator: str) -> None:
    """Refuses a header that names a column twice, and rows of more or fewer fields than it.

    The table's parser fills a short row with missing values, so that a file cut in its last line
    would be short of a target and no error; and it sees a long row only if it is asked for every
    column. So all delimiters are looked at once, at a small part of the cost of parsing them.
    """
    names = _header(path, separator)
    twice = [name for name, times in Counter(names).items() if times > 1 and name]
    if twice:
        raise InputError(
            f"{path} has more than one column called {listed(twice)}; give each column a name of "
            "its own."
        )
    if len(names) < 2 or _regular(path, ord(separator), len(names)):
        return
    # Blank lines, or a quotation mark in the midst of a field, are irregular and no error: only
    # a real parser can tell, and it takes ten times as long.
    with opened(path) as file, _as_text(file) as text:
        rows = csv.reader(text, delimiter=separator)
        try:
            for row in rows:
                if row and len(row) != len(names):
                    raise RaggedError(
                        f"line {rows.line_num:,} has {len(row):,} fields where the header has "
                        f"{len(names):,}"
                    )
        except csv.Error:
            # A field too long for this parser; what is wrong with it is left to the table's own.
            return


def _as_text(file: IO[bytes]) -> io.TextIOWrapper:
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")


def _header(path: Path, separator: str) -> list[str]:
    with opened(path) as file, _as_text(file) as text:
        try:
            return next((row for row in csv.reader(text, delimiter=separator) if row), [])
        except csv.Error:
            return []


def _regular(path: Path, separator: int, fields: int) -> bool:
    """Whether each `fields`-th delimiter outside quotes, and no other, ends a line."""
    rest = b""
    with opened(path) as file:
        while True:
            read = file.read(PIECE)
            if not read and rest and not rest.endswith(b"\n"):
                read = b"\n"
            piece = rest + read
            if not read:
                return not piece
            found = _delimiters(piece, separator)
            lines = np.flatnonzero(found[1] == NEWLINE)
            if not len(lines):
                rest = piece
                continue
            marks = found[1][: lines[-1] + 1]
            if len(marks) != fields * len(lines) or not (marks[fields - 1 :: fields] == 10).all():
                return False
            rest = piece[int(found[0][lines[-1]]) + 1 :]


def _delimiters(piece: bytes, separator: int) -> tuple[Any, Any]:
    """Where separators and line ends are, outside quotes, and which of the two each is."""
    data = np.frombuffer(piece, dtype=np.uint8)
    wanted = (data == separator) | (data == NEWLINE)
    if b'"' in piece:
        # Outside is where an even number of quotes has passed; a sum that overflows is as even.
        wanted &= np.cumsum(data == QUOTE, dtype=np.uint8) % 2 == 0
    places = np.flatnonzero(wanted)
    return places, data[places]


# -- JSON Lines --------------------------------------------------------------------------------


def check_scalars(path: Path, columns: Iterable[str]) -> None:
    """Refuses lists and objects as ids and classes, which as text would be classes of their own."""
    with opened(path) as file:
        for number, line in enumerate(islice(_first_lines(file), ROWS_LOOKED_AT), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                return  # The table's own parser says what is wrong with it.
            for column in columns:
                value = row.get(column) if isinstance(row, dict) else None
                if isinstance(value, list | dict):
                    told = "a list" if isinstance(value, list) else "an object"
                    raise InputError(
                        f"{path} has {told} in column '{column}' at line {number:,}, where an id "
                        "or a class is one name or one integer; write the value itself."
                    )


def _first_lines(file: IO[bytes]) -> Iterable[bytes]:
    start = file.read(BYTES_LOOKED_AT)
    lines = start.split(b"\n")
    # The last of many may be cut.
    return lines[:-1] if len(start) == BYTES_LOOKED_AT else [line for line in lines if line.strip()]
