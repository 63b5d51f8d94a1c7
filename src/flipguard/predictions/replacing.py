"""Writing a file whole or not at all, with the standard library alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flipguard.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` that takes its place at the end, and vanishes if anything fails."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name a file in it to write to.")
    if not path.parent.is_dir():
        raise InputError(
            f"{path} cannot be written because {path.parent} is no folder; create it first."
        )
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as problem:
        told = problem.strerror or str(problem) or type(problem).__name__
        raise InputError(
            f"{path} cannot be written ({told}); choose a place with room that you may write to."
        ) from problem
    finally:
        # Where the name itself is what the disk refuses, there is nothing to remove either.
        with suppress(OSError):
            partial.unlink(missing_ok=True)
