"""Text files before a parser sees them: opened, and checked row by row for what parsers pass over.

Polars fills a short row with missing values, takes a bare quotation mark for the start of a quoted
field, and returns a row of nulls for a blank line. So every byte is looked at once before it reads
the file, in pieces, at a small part of the cost of parsing. What is accepted here means the same to
Polars, to Python's csv module and to Spark's workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError, listed
from flipguard.predictions.compression import open_text
from flipguard.predictions.names import refuse_other_separator

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
# The index of a byte in its piece, and what is wrong there.
Fault = tuple[int, InputError]

BOM = b"\xef\xbb\xbf"
# Small enough to stay in a core's cache, where a look at every byte is cheap.
PIECE = 1 << 16
# A row has to fit in memory several times. No sensible table comes near: 20,000 scores take 400 KB.
LONGEST_ROW = 16 << 20
# csv skips blank lines, and so do we; a file with far more of them than rows is damaged.
BLANK_LINES = 1_000_000
NEWLINE, RETURN, QUOTE = ord("\n"), ord("\r"), ord('"')


class FormatError(ValueError):
    """Content that the format of a text file does not allow."""


def check_lines(path: Path) -> bool:
    """Raise for a file with an endless line; return whether the file starts with a BOM."""
    with open_text(path) as file:
        start = piece = file.read(LONGEST_ROW)
        # A newline in every piece means that no line is longer than two of them.
        while piece:
            if len(piece) == LONGEST_ROW and piece.rfind(b"\n") < 0:
                raise _too_long(path, "a line")
            # A line that holds an object takes three bytes: more newlines than that end blank ones.
            if 3 * piece.count(b"\n", 0, PIECE) > PIECE:
                blank = (3 * piece.count(b"\n") - len(piece)) // 2
                if blank > BLANK_LINES:
                    raise _too_blank(path)
            piece = file.read(LONGEST_ROW)
    return start.startswith(BOM)


def _too_long(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} has {what} of more than {LONGEST_ROW >> 20} MiB, the most that flipguard reads; "
        "check its line ends and quotation marks, or leave out the column with the long text."
    )


def _too_blank(path: Path) -> InputError:
    return InputError(f"{path} has more than {BLANK_LINES:,} blank lines; remove them.")


def refuse_doubles(path: Path, names: Iterable[str]) -> None:
    """Raise if a table names a column twice; columns without a name are ignored."""
    twice = [name for name, times in Counter(names).items() if times > 1 and name]
    if twice:
        raise InputError(
            f"{path} has more than one column called {listed(twice)}; give each column a different "
            "name."
        )


# -- separated text ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Separated:
    """The result of checking a whole file of separated text."""

    names: list[str]
    blank_lines: bool


def check_separated(path: Path, separator: str) -> Separated:
    """Check every row of a CSV or TSV file and return its header.

    Refused are rows of more or fewer fields than the header, a column that is named twice,
    quotation marks other than RFC 4180 has them, and line ends other than those of Unix and
    Windows.
    """
    rows = _Rows(path=path, separator=ord(separator))
    with open_text(path) as file:
        rest, read = b"", file.read(len(BOM)).removeprefix(BOM) or file.read(PIECE)
        while read or rest:
            rest = rows.check(rest + read, last=not read)
            if len(rest) > LONGEST_ROW:
                raise _too_long(path, f"a row at line {rows.line:,}")
            # At least as much again: a row longer than a piece is not looked at ever so often.
            read = file.read(max(PIECE, len(rest))) if read else b""
    return Separated(names=rows.names, blank_lines=rows.blank > 0)


@dataclass(slots=True)
class _Rows:
    """Checks rows as their bytes come in; `line` is where the next piece starts."""

    path: Path
    separator: int
    line: int = 1
    names: list[str] = field(default_factory=list)
    rows: int = 0
    blank: int = 0

    def check(self, piece: bytes, *, last: bool) -> bytes:
        """Checks the whole rows of a piece, which starts with one, and returns what is left."""
        if last and not piece.endswith(b"\n"):
            piece += b"\n"
        data = np.frombuffer(piece, dtype=np.uint8)
        newlines = data == NEWLINE
        wanted = newlines | (data == self.separator)
        faults: list[Fault] = []
        if b'"' in piece:
            faults += self._faulty_marks(data, last=last)
            wanted &= _outside(data)
        if b"\r" in piece and piece.count(b"\r") != piece.count(b"\r\n"):
            faults += self._faulty_returns(data)
        places = np.flatnonzero(wanted)
        if faults:
            # The first error of the file is reported, so check the rows before this one first.
            place, fault = min(faults, key=lambda found: found[0])
            places = places[places < place]
        ends = np.flatnonzero(newlines[places])
        if len(ends):
            places = places[: ends[-1] + 1]
            self._check_rows(data, places, ends)
        if faults:
            raise fault
        if not len(ends):
            return piece
        whole = int(places[-1]) + 1
        self.line += int(np.count_nonzero(newlines[:whole]))
        return piece[whole:]

    def _faulty_marks(self, data: Bytes, *, last: bool) -> list[Fault]:
        """The first quotation mark that neither encloses a field nor is doubled within one."""
        marks = np.flatnonzero(data == QUOTE)
        opening, closing = marks[::2], marks[1::2]
        before = data[opening - 1]
        starts = (opening == 0) | (before == self.separator) | (before == NEWLINE)
        # Directly after another it is the second half of a doubled mark, or of an empty field.
        wrong = opening[~(starts | (before == QUOTE))]
        after = data[np.minimum(closing + 1, len(data) - 1)]
        ends = (after == self.separator) | (after == NEWLINE) | (after == QUOTE)
        ends |= (after == RETURN) & (data[np.minimum(closing + 2, len(data) - 1)] == NEWLINE)
        # What follows the last byte of a piece is seen with the next one.
        wrong = np.concatenate([wrong, closing[~ends & (closing + 2 < len(data))]])
        if len(wrong):
            return [self._bare(data, wrong.min(), "a quotation mark in the middle of a field")]
        if last and len(opening) > len(closing):
            return [self._bare(data, opening[-1], "a quotation mark that is never closed")]
        return []

    def _faulty_returns(self, data: Bytes) -> list[Fault]:
        """The first carriage return outside quotes that is not part of a Windows line end."""
        returns = np.flatnonzero(data[:-1] == RETURN)
        returns = returns[data[returns + 1] != NEWLINE]
        returns = returns[_outside(data)[returns]]
        if not len(returns):
            return []
        line = self._line_of(data, returns[0])
        fault = InputError(
            f"{self.path} has a carriage return without a line feed in line {line:,}; end its "
            "lines with a line feed (\\n), or put text that holds one in quotation marks."
        )
        return [(int(returns[0]), fault)]

    def _check_rows(self, data: Bytes, places: Places, ends: Places) -> None:
        """Every row has as many fields as the header, and a value in one of them at least."""
        counts = np.diff(ends, prepend=-1)
        stops = places[ends]
        starts = np.concatenate([[0], stops[:-1] + 1])
        widths = stops - starts
        # Of a Windows line end the carriage return is no content.
        widths = widths - ((widths > 0) & (data[stops - 1] == RETURN))
        blank = widths == 0
        if not self.names:
            first = int(np.argmin(blank))
            if blank[first]:
                self._count(0, len(blank))
                return
            self._take_header(data, places[places < stops[first]], starts[first], widths[first])
            blank, counts, starts, widths = (
                blank[first + 1 :],
                counts[first + 1 :],
                starts[first + 1 :],
                widths[first + 1 :],
            )
            self.blank += first
        fields = len(self.names)
        wrong = np.flatnonzero((counts != fields) & ~blank)
        # Polars returns nulls for a blank line and for separators alone: only one can be left out.
        empty = np.flatnonzero((widths == fields - 1) & (counts == fields) & ~blank)
        if len(wrong) and not (len(empty) and empty[0] < wrong[0]):
            row = wrong[0]
            refuse_other_separator(str(self.path), self.names)
            raise FormatError(
                f"line {self._line_of(data, starts[row]):,} has {counts[row]:,} fields where the "
                f"header has {fields:,}"
            )
        if len(empty):
            raise InputError(
                f"{self.path} has no value in line {self._line_of(data, starts[empty[0]]):,}, only "
                "separators; remove the line."
            )
        self._count(len(blank) - int(blank.sum()), int(blank.sum()))

    def _count(self, rows: int, blank: int) -> None:
        self.rows += rows
        self.blank += blank
        if self.blank > self.rows + BLANK_LINES:
            raise _too_blank(self.path)

    def _take_header(self, data: Bytes, places: Places, start: int, width: int) -> None:
        stop = start + width
        cuts = [start - 1, *places[places >= start].tolist(), stop]
        text = [data[a + 1 : b].tobytes().decode() for a, b in pairwise(cuts)]
        self.names = [
            name[1:-1].replace('""', '"') if name.startswith('"') else name for name in text
        ]
        refuse_doubles(self.path, self.names)

    def _line_of(self, data: Bytes, place: Any) -> int:
        return self.line + int((data[:place] == NEWLINE).sum())

    def _bare(self, data: Bytes, place: Any, what: str) -> Fault:
        return int(place), InputError(
            f"{self.path} has {what} in line {self._line_of(data, place):,}; put the whole field "
            'in quotation marks and double those within it (a 5" disk as "a 5"" disk").'
        )


def _outside(data: Bytes) -> npt.NDArray[np.bool_]:
    """Where an even number of quotation marks has passed; a sum that overflows is as even."""
    return np.asarray(np.cumsum(data == QUOTE, dtype=np.uint8) % 2 == 0)
