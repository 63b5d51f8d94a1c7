"""Standard input, output and error, which may be closed, full or no longer read."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

# The exit code where there is no verdict, or where it could not be delivered.
NOT_DELIVERED = 2
MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
# Widths at which a page can be read; rich takes any number, and prints nothing in no columns.
COLUMNS, LINES = range(20, 1_001), range(1, 10_001)


def make_ready() -> None:
    """Open what is closed, and leave out a size of the terminal that cannot be true."""
    for number in range(len(MODES)):
        # Otherwise the next file that is opened would become standard output or error.
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    for name, mode in MODES.items():
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode, encoding="utf-8", errors="replace")  # noqa: SIM115
            setattr(sys, name, nowhere)
    for name, possible in (("COLUMNS", COLUMNS), ("LINES", LINES)):
        given = os.environ.get(name, "")
        if given and not (given.isascii() and given.isdigit() and int(given[:9]) in possible):
            del os.environ[name]


def is_closed(stream: TextIO) -> bool:
    """Whether a standard stream was closed when the program began."""
    return getattr(stream, "name", None) == os.devnull


def say(text: str) -> None:
    """Print on standard error. What cannot be told there changes no exit code."""
    if not text:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def flushed(code: int) -> int:
    """The exit code after everything was printed; another one if that failed.

    Python itself would end in 120 where its last flush fails.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as problem:
        silence(sys.stdout)
        if not isinstance(problem, BrokenPipeError):
            code = NOT_DELIVERED
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(sys.stderr)
    return code


def silence(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, to nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
