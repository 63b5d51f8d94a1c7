"""`run.json`: read and checked without torch and without tables.

Its settings belong to `flipguard.runs.config`, and its history to `flipguard.runs.history`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flipguard.errors import InputError, printable

RUN, SCHEMA = "run.json", "flipguard.run/1"
# The predictions of a run on its test set, in its folder.
PREDICTIONS = "predictions/test.npz"
DAMAGES = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError)


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder of a run."""
    return os.path.isfile(os.path.join(path, RUN))


def finished_document(folder: Path) -> dict[str, Any]:
    """Return the contents of `run.json` of a finished run; raise for any other folder."""
    file = folder / RUN
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        status = str(document["status"])
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected {printable(str(folder))} to be a run, but there is no {RUN} in it; "
            "give the folder of a run."
        ) from problem
    except DAMAGES as problem:
        raise damaged(file, problem) from problem
    if status != "finished":
        raise InputError(
            f"Expected {printable(str(folder))} to be a finished run, but it is "
            f"{printable(status, longest=40)}; {how_to_finish(folder, document)}."
        )
    return document


def how_to_finish(folder: Path, document: Mapping[str, Any]) -> str:
    """Return in words what finishes an unfinished run, by the contents of its `run.json`."""
    if "adopted" in document:
        return f"adopt it again with: flipguard adopt … --out {printable(str(folder))}"
    return f"continue it with: flipguard train --out {printable(str(folder))} --resume"


def predictions_of(folder: Path) -> Path:
    """Return the path of the predictions of a finished run on its test set; raise without them."""
    finished_document(folder)
    path = folder / PREDICTIONS
    if not os.path.isfile(path):
        raise InputError(
            f"Expected {printable(str(folder))} to hold {PREDICTIONS}, but it does not; write it "
            f"with: flipguard predict {printable(str(folder))} --split test --out "
            f"{printable(str(path))}."
        )
    return path


def run_files(place: str | os.PathLike[str]) -> list[str]:
    """Return the files of a run that a page must not overwrite: all but HTML pages."""
    found = (Path(root, name) for root, _, names in os.walk(place) for name in names)
    return [str(path) for path in found if path.suffix.lower() not in (".html", ".htm")]


def run_name(folder: str | os.PathLike[str]) -> str:
    """Return a run's path as given, or the name of its folder where the path has only dots.

    >>> run_name("runs/v1/"), run_name("../v2")
    ('runs/v1', '../v2')
    """
    path = Path(folder)
    return path.resolve().name if path.name in ("", "..") else str(path)


def damaged(path: Path, problem: BaseException) -> InputError:
    """Return the error for a file of a run that cannot be understood."""
    advice = "train it again" if path.name == RUN else "restore it, or remove it to do without it"
    return InputError(
        f"Expected {printable(str(path))} to describe a run, but it is damaged "
        f"({type(problem).__name__}: {printable(str(problem))}); {advice}."
    )
