"""What goes wrong while a file is read, as one sentence that names the file.

Polars reads when a result is asked for, so a damaged file shows itself anywhere. And where it meets
what its authors thought impossible, it panics: an exception that is no `Exception`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from flipguard.archives import first_sentence
from flipguard.errors import InputError
from flipguard.predictions.text import FormatError

if TYPE_CHECKING:
    from flipguard.predictions.table import Predictions

FAULTS: tuple[type[BaseException], ...] = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    UnicodeDecodeError,
    FormatError,
)


def unreadable(name: str, problem: BaseException) -> InputError:
    """The sentence for a file that its format's reader gives up on."""
    text = first_sentence(problem)
    text = text if len(text) <= 160 else text[:159] + "…"
    return InputError(
        f"{name} cannot be read ({text}); it may be truncated, or its suffix may not match its "
        "format."
    )


@contextmanager
def naming(source: Predictions | str) -> Iterator[None]:
    """Says which file it was when reading it breaks."""
    try:
        yield
    except FAULTS as problem:
        name = source if isinstance(source, str) else source.name
        raise unreadable(name, problem) from problem


@contextmanager
def naming_any(sides: Iterable[Predictions]) -> Iterator[None]:
    """When a query over several files breaks, reads each alone to say which one it was."""
    try:
        yield
    except FAULTS:
        for side in sides:
            with naming(side):
                side.frame.select(pl.all().null_count()).collect(engine="streaming")
        raise


@contextmanager
def without_panic_text() -> Iterator[None]:
    """Discards what Rust prints about a panic, for the moment in which a schema is read.

    Rust writes to file descriptor 2, which the whole process shares: for that moment, what other
    threads write to standard error is lost too.
    """
    try:
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except (OSError, AttributeError):
        # There is no standard error to keep clean.
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
