"""A state to go on from, read back."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flipguard.errors import InputError


@contextmanager
def state_at(path: Path, *, of: Path) -> Iterator[dict[str, Any]]:
    """The state in a file; what fails to be taken over from it is damage, and told as such."""
    try:
        with zipfile.ZipFile(path) as archive:
            altered = archive.testzip()  # which torch does not look at
        if altered is not None:
            raise zipfile.BadZipFile(altered)
        yield torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:
        raise InputError(
            f"Expected {path} to be a state to go on from, but it is damaged "
            f"({type(problem).__name__}); remove {of} to begin again."
        ) from problem
