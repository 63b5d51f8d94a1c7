"""Where results go: the terminal, files written whole or not at all, and standard output."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flipguard.errors import InputError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from flipguard.engines.plan import Progress

# A plain line no more often than this, where nobody watches a bar.
SECONDS_PER_LINE = 10.0


def refuse_two_on_stdout(*destinations: str | None) -> None:
    """Only one document fits on standard output."""
    if sum(destination == "-" for destination in destinations) > 1:
        raise InputError("Only one output can be - (standard output); write the others to files.")


def show(parts: Iterable[RenderableType], *, stdout_taken: bool) -> None:
    """Prints to the terminal, unless standard output carries a document."""
    if stdout_taken:
        return
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part)


def write_text(text: str, destination: str | None) -> None:
    """Writes a document to a file, whole or not at all, or to standard output."""
    if destination is None:
        return
    if destination == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with replacing(destination) as partial:
        partial.write_text(text, encoding="utf-8")


def write_table(table: pl.DataFrame, destination: str | None) -> None:
    """Writes a table in the format that the file's name tells, or as CSV to standard output."""
    if destination is None:
        return
    if destination == "-":
        sys.stdout.write(table.write_csv())
        sys.stdout.flush()
        return
    from flipguard.predictions.read import format_of

    kind, compression = format_of(Path(destination))
    if kind == "npz" or (compression is not None and kind == "jsonl"):
        raise InputError(
            f"{destination} cannot hold the flips; use .csv, .tsv, .jsonl, .parquet or .arrow."
        )
    with replacing(destination) as partial:
        if kind in ("csv", "tsv"):
            table.write_csv(
                partial,
                separator="," if kind == "csv" else "\t",
                compression={None: "uncompressed", ".gz": "gzip", ".zst": "zstd"}[compression],
            )
        elif kind == "jsonl":
            table.write_ndjson(partial)
        elif kind == "parquet":
            table.write_parquet(partial)
        else:
            table.write_ipc(partial)


@contextmanager
def replacing(destination: str) -> Iterator[Path]:
    """A file beside the destination that takes its place at the end, if nothing went wrong."""
    path = Path(destination)
    # The suffix stays last: writers choose a format by it.
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as problem:
        raise InputError(
            f"{destination} cannot be written ({problem.strerror or problem}); choose another place."
        ) from problem
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A bar with the time left on a terminal, a plain line now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        bars = Bars(
            TextColumn(what),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
        return
    started = last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_PER_LINE and done:
            last = now
            left = (now - started) * (total - done) / done
            print(f"{what}: {done / total:.0%}, about {left:.0f} s left", file=sys.stderr)

    yield line
