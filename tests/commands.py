"""flipguard's commands, run in this process: importing torch anew would be most of their time."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from flipguard.cli import main


@dataclass(frozen=True)
class Ran:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


def flipguard(*arguments: str | Path, folder: Path | None = None, columns: int = 100) -> Ran:
    """Run a command as if it was typed in this folder."""
    # With a buffer below, because documents are written as bytes.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["flipguard", *map(str, arguments)])
        patch.setenv("COLUMNS", str(columns))
        patch.delenv("FLIPGUARD_ALLOW_CODE", raising=False)
        if folder is not None:
            patch.chdir(folder)
        with pytest.raises(SystemExit) as stopped:
            main()
    return Ran(int(stopped.value.code or 0), *map(_text, (out, err)))


def _text(printed: io.TextIOWrapper) -> str:
    printed.flush()
    printed.seek(0)
    return printed.read()
