"""A state to go on from: what it is of, and how it is read back."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flipguard.errors import InputError, printable
from flipguard.training.config import Config, decisive


def state_digest(config: Config, *, data: str, follows: Mapping[str, str], formula: int = 0) -> str:
    """A digest of everything that decides a state: settings, formula, data, weights followed.

    The keys of `follows` are paths. The digest does not depend on them, so a folder of runs may be
    moved. Without a change of the method's formula, `formula` does not change the digest.
    """
    what = [decisive(config), data, list(follows.values()), *([formula] if formula else [])]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@contextmanager
def state_at(path: Path, *, of: Path, digest: str | list[str]) -> Iterator[dict[str, Any]]:
    """The state in a file; what fails to be taken over from it is damage, and told as such."""
    try:
        with zipfile.ZipFile(path) as archive:
            altered = archive.testzip()  # which torch does not look at
        if altered is not None:
            raise zipfile.BadZipFile(altered)
        state = torch.load(path, map_location="cpu", weights_only=True)
        is_same = state["digest"] == digest
    except Exception as problem:
        raise _damaged(path, of, problem) from problem
    if not is_same:
        raise InputError(
            f"Expected {printable(str(path))} to be a checkpoint of this run, but it was saved "
            "with other settings, other data, another version of the method's formula, or other "
            "weights of old models or members; restore "
            f"these, or remove {printable(str(of))} to begin again."
        )
    try:
        yield state
    except Exception as problem:
        raise _damaged(path, of, problem) from problem


def _damaged(path: Path, of: Path, problem: Exception) -> InputError:
    return InputError(
        f"Expected {printable(str(path))} to be a checkpoint to resume from, but it is damaged "
        f"({type(problem).__name__}); remove {printable(str(of))} to begin again."
    )
