"""Progress of long work: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flipguard.cli.output import say
from flipguard.formatting import format_percent

if TYPE_CHECKING:
    from flipguard.engines.plan import Progress

# The least time between two lines of progress if standard error is not a terminal.
SECONDS_PER_LINE = 10.0


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show progress: a bar with the time left on a terminal, otherwise a line now and then."""
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
            say(f"{what}: {format_percent(done / total, decimals=0)}, about {left:.0f} s left")

    yield line
