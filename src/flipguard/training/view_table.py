"""Stored views as a folder: a table in one flat file, and a record of its finished chunks.

::

    logits.bin    rows of one width: view 0 of all samples, then view 1, …
    views.json    the identity of the views, the table's shape, a checksum of each finished chunk
    .lock         held by the process that reads or extends the table

A chunk counts once its checksum is recorded, which happens after its bytes are on disk. So all
chunks that count are complete, even if a process was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError, printable
from flipguard.files import atomic_write
from flipguard.formatting import format_bytes
from flipguard.locks import InUseError, alone_in
from flipguard.run_document import DAMAGES
from flipguard.runs.folder import remove_leftovers
from flipguard.training.interrupting import time_is_up

SCHEMA = "flipguard.views/1"
TABLE, DONE = "logits.bin", "views.json"
CHUNK = 4096  # samples of one view
BETWEEN = 1.0  # seconds between two records of the finished chunks

Rows: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.int32]


class Chunk(NamedTuple):
    """Some samples of one view, and the table's row of the first of them."""

    number: int
    view: int
    start: int
    stop: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The size of a table."""

    views: int
    samples: int
    width: int  # numbers of a row
    number_bytes: Literal[2, 4]

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.width * self.number_bytes

    @property
    def size(self) -> int:
        """Bytes of the table."""
        return self.views * self.samples * self.row

    def chunks(self) -> list[Chunk]:
        """Return the chunks, each of which is computed and recorded at once."""
        starts = product(range(self.views), range(0, self.samples, CHUNK))
        return [
            Chunk(
                number, view, start, min(start + CHUNK, self.samples), view * self.samples + start
            )
            for number, (view, start) in enumerate(starts)
        ]

    def __str__(self) -> str:
        views = "1 view" if self.views == 1 else f"{self.views:,} views"
        return f"{views} of {self.samples:,} samples ({format_bytes(self.size)})"


class ViewStore:
    """A table in a folder, which is written chunk by chunk."""

    def __init__(self, folder: Path, shape: TableShape, *, of: Mapping[str, Any]) -> None:
        self.folder, self.shape = folder, shape
        self._of = dict(of)
        self._done: dict[int, str] = {}
        self._recorded = time.monotonic()

    @contextmanager
    def held(self, *, deadline: float | None, report: Callable[[str], None]) -> Iterator[bool]:
        """Context manager: lock the folder; give False if time was up before it was free."""
        with ExitStack() as stack:
            try:
                stops = partial(time_is_up, deadline)
                stack.enter_context(alone_in(self.folder, report=report, stops=stops))
            except InUseError:
                yield False
            else:
                yield True

    def begin(self) -> list[Chunk]:
        """Open the table, or make a new one; return the recorded chunks that are damaged."""
        with self._told_if_it_fails():
            remove_leftovers(self.folder)
        if not (self.folder / DONE).exists():
            need_room(self.shape, self.folder, there=self._taken())
            with self._told_if_it_fails(), (self.folder / TABLE).open("wb") as file:
                # A sparse file: chunks that are not written take no space on the disk.
                file.truncate(self.shape.size)
                os.fsync(file.fileno())
            self._done = {}
            self.record()
            return []
        self._done = self._read()
        with self._told_if_it_fails():
            damaged = self._drop_damaged()
        if self.missing():
            need_room(self.shape, self.folder, there=self._taken())
        return damaged

    def missing(self) -> list[Chunk]:
        """Return the chunks that are still to be computed."""
        return [chunk for chunk in self.shape.chunks() if chunk.number not in self._done]

    def write(self, chunk: Chunk, rows: Rows) -> None:
        """Write a chunk."""
        # Not through a memory map, which kills the process if the disk is full.
        held = np.ascontiguousarray(rows, dtype=self._kind).tobytes()
        if len(held) != (chunk.stop - chunk.start) * self.shape.row:
            raise InputError(
                f"Expected rows of {self.shape.width} numbers for {chunk.stop - chunk.start} "
                f"samples, but got {list(rows.shape)}."
            )
        with self._told_if_it_fails(), (self.folder / TABLE).open("r+b") as file:
            file.seek(chunk.row * self.shape.row)
            file.write(held)
        self._done[chunk.number] = _checksum(held)
        if time.monotonic() - self._recorded >= BETWEEN:
            self.record()

    def record(self) -> None:
        """Record the checksums of the chunks written so far, so that they count."""
        with self._told_if_it_fails(), (self.folder / TABLE).open("r+b") as file:
            os.fsync(file.fileno())
        shape = self.shape
        document = {
            "schema": SCHEMA,
            "of": self._of,
            "shape": [shape.views, shape.samples, shape.width],
            "number_bytes": shape.number_bytes,
            "chunk": CHUNK,
            "done": {str(index): self._done[index] for index in sorted(self._done)},
        }
        with atomic_write(self.folder / DONE) as path:
            path.write_text(json.dumps(document, indent=1) + "\n")
        self._recorded = time.monotonic()

    def table(self) -> Rows:
        """Return all rows as a memory map, which reads them when they are used."""
        shape = self.shape
        with self._told_if_it_fails():
            found: Rows = np.memmap(
                self.folder / TABLE,
                dtype=self._kind,
                mode="r",
                shape=(shape.views * shape.samples, shape.width),
            )
        return found

    @property
    def _kind(self) -> str:
        return f"<i{self.shape.number_bytes}"

    def _read(self) -> dict[int, str]:
        """Return the recorded checksums; raise if they belong to another table."""
        path, shape = self.folder / DONE, self.shape
        try:
            document = json.loads(path.read_text())
            is_shape = [*document["shape"], document["number_bytes"], document["chunk"]]
            done = {int(index): str(told) for index, told in document["done"].items()}
            if document["schema"] != SCHEMA or document["of"] != json.loads(json.dumps(self._of)):
                raise ValueError("it is of other views")
        except DAMAGES as problem:
            raise InputError(
                f"Expected {printable(str(path))} to describe stored views, but it is damaged "
                f"({type(problem).__name__}); remove {printable(str(self.folder))} to store them "
                "again."
            ) from problem
        wanted = [shape.views, shape.samples, shape.width, shape.number_bytes, CHUNK]
        if is_shape != wanted:
            raise InputError(
                f"Expected {printable(str(path))} to describe views, samples, numbers per row, "
                f"bytes per number and samples per chunk as {wanted}, but got "
                f"{printable(str(is_shape))}; remove {printable(str(self.folder))} to store them "
                "again."
            )
        table = self.folder / TABLE
        size = table.stat().st_size if table.is_file() else 0
        if size != shape.size:
            raise InputError(
                f"Expected {printable(str(table))} to be a table of {shape.size:,} bytes, but got "
                f"{size:,}; remove {printable(str(self.folder))} to store it again."
            )
        return done

    def _drop_damaged(self) -> list[Chunk]:
        damaged = []
        with (self.folder / TABLE).open("rb") as file:
            for chunk in self.shape.chunks():
                if chunk.number not in self._done:
                    continue
                file.seek(chunk.row * self.shape.row)
                held = file.read((chunk.stop - chunk.start) * self.shape.row)
                if _checksum(held) != self._done[chunk.number]:
                    del self._done[chunk.number]
                    damaged.append(chunk)
        return damaged

    def _taken(self) -> int:
        """Return the bytes that the table takes on the disk already."""
        table = self.folder / TABLE
        return table.stat().st_blocks * 512 if table.exists() else 0

    @contextmanager
    def _told_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise InputError(
                f"Expected to store views at {printable(str(self.folder))}, but could not "
                f"({problem.strerror or problem}); make room or choose another `out=` (views that "
                "were stored before are kept)."
            ) from problem


def need_room(shape: TableShape, folder: Path, *, there: int = 0) -> None:
    """Raise if the disk has no room for a table."""
    near = folder.absolute()
    while not near.exists():
        near = near.parent
    free = shutil.disk_usage(near).free
    if shape.size - there > free:
        raise InputError(
            f"Expected room for {shape} at {printable(str(folder))}, but got {format_bytes(free)}; "
            "make room, or store fewer `views`, or only their highest logits by `views_top`."
        )


def _checksum(held: bytes) -> str:
    return hashlib.blake2b(held, digest_size=8).hexdigest()
