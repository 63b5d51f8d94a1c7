"""Progress of long work: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flipguard.cli.output import say
from flipguard.formatting import format_percent
from flipguard.progress import bar_on_terminal

if TYPE_CHECKING:
    from flipguard.engines.plan import Progress

# The least time between two lines of progress if standard error is not a terminal.
SECONDS_PER_LINE = 10.0


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show progress: a bar with the time left on a terminal, otherwise a line now and then."""
    with bar_on_terminal(what) as bar:
        yield bar or _lines(what)


def _lines(what: str) -> Progress:
    """Return what prints a line now and then."""
    started = last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_PER_LINE and done:
            last = now
            left = (now - started) * (total - done) / done
            say(f"{what}: {format_percent(done / total, decimals=0)}, about {left:.0f} s left")

    return line
