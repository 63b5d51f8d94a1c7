"""The folder of a run: the names of its files, and reading and removing them.

Training states and weights belong to `flipguard.training.checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.errors import InputError, listed, printable
from flipguard.files import atomic_write
from flipguard.locks import remove_empty
from flipguard.run_document import DAMAGES, PREDICTIONS, RUN, SCHEMA
from flipguard.runs.config import Config, RetiredError, from_run
from flipguard.runs.history import HISTORY, TIMING
from flipguard.runs.key import with_recorded_defaults

MODEL, CHECKPOINT = "model.safetensors", "checkpoints/last.pt"
VALIDATION_PREDICTIONS = "predictions/validation.npz"  # of a run with a validation split
STATUSES = ("training", "stopped", "finished")

# By a run, after `run.json`.
WRITTEN = (MODEL, PREDICTIONS, VALIDATION_PREDICTIONS, CHECKPOINT, HISTORY, TIMING)
# A temporary file: hidden, with the ID of the process that writes it.
LEFT_OVER = re.compile(r"\..+\.(\d+)(?:\.[0-9a-f]+\.partial)?")
# A temporary file of safetensors, whose name does not contain the process.
UNNAMED = re.compile(r"\.tmp[A-Za-z0-9]{6}")


def predictions_path(folder: Path, split: str) -> Path:
    """Return the path of the predictions of a split."""
    return folder / "predictions" / f"{split}.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that was started: its folder, and the contents of `run.json`."""

    folder: Path
    config: Config
    status: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...] | None
    document: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read the run in a folder."""
        path = folder / RUN
        try:
            document = json.loads(path.read_text())
            if (schema := document["schema"]) != SCHEMA:
                raise ValueError(f"its schema is {schema!r}, and not {SCHEMA!r}")
            data, status = document["data"], document["status"]
            if status not in STATUSES:
                raise ValueError(f"its status is {status!r}")
            shape = data["input_shape"]
            _texts(document.get("members", []))
            _texts(list(document.get("follows", {}).values()))
            return cls(
                folder=folder,
                config=from_run(with_recorded_defaults(document["config"], Config())),
                status=status,
                class_names=tuple(_texts(data["class_names"])),
                input_shape=None if shape is None else tuple(_sizes(shape)),
                document=document,
            )
        except (FileNotFoundError, NotADirectoryError) as problem:
            raise InputError(
                f"Expected {printable(str(folder))} to be a run, but there is no {RUN} in it; "
                "give the folder of a run."
            ) from problem
        except RetiredError as problem:
            raise InputError(
                f"Expected {printable(str(folder))} to be a run that can still be read, but it was "
                f"trained with {problem.told}, which was removed; train it again without it."
            ) from problem
        except (*DAMAGES, InputError) as problem:
            text = printable(str(problem)).rstrip(".")
            raise InputError(
                f"Expected {printable(str(path))} to describe a run, but it is damaged "
                f"({type(problem).__name__}: {text}); train it again."
            ) from problem

    @property
    def follows(self) -> Mapping[str, str]:
        """Digests of the weights that the run follows, by paths relative to its folder."""
        digests: Mapping[str, str] = self.document.get("follows", {})
        return digests

    @property
    def finished(self) -> bool:
        """Whether the run has finished and has a model."""
        return self.status == "finished"


def is_whole(run: Run) -> bool:
    """Return whether a run is finished and its weights and predictions exist."""
    files = [MODEL, PREDICTIONS]
    if run.config.scope.validation is not None:
        files.append(VALIDATION_PREDICTIONS)
    return run.finished and all((run.folder / name).exists() for name in files)


def is_finished(folder: Path) -> bool:
    """Return whether a folder has a finished run."""
    return (folder / RUN).exists() and Run.read(folder).finished


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a file with one JSON object per line, in one piece."""
    with atomic_write(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in the lines of a file; none if there is no file."""
    if not path.exists():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line that is no object")
    except DAMAGES as problem:
        raise InputError(
            f"Expected {printable(str(path))} to hold one JSON object per line, but it is damaged "
            f"({type(problem).__name__}); restore it, or train the run again."
        ) from problem
    return rows


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    for path in [*folder.glob(".*"), *folder.glob("*/.*")]:
        found = LEFT_OVER.fullmatch(path.name)
        if found is not None and path.is_file() and not _is_alive(int(found[1])):
            with suppress(OSError):
                path.unlink()
    # Only in the folder of a run: there only the run writes, and this is its process.
    for path in folder.glob(".tmp*") if (folder / RUN).exists() else ():
        if UNNAMED.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(OSError):
                path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # a process of another user
    return process != os.getpid()


@contextmanager
def begun_or_nothing(folder: Path, *, state: Path | None = None) -> Iterator[None]:
    """Context manager: remove a new run's files on an error before its first checkpoint, `state`.

    Only for the process that holds the folder's lock.
    """
    new = not (folder / RUN).exists()
    try:
        yield
    except Exception:
        if new and not (state or folder / CHECKPOINT).exists():
            forget(folder)
        raise


def forget(folder: Path) -> None:
    """Remove the files of an unfinished run."""
    if not (folder / RUN).exists() or is_finished(folder):
        return
    # `run.json` comes last: without it, the other files would belong to an unknown run.
    for name in (*WRITTEN, RUN):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for name in WRITTEN:
        remove_empty([(folder / name).parent])


def check_place(folder: Path) -> None:
    """Raise if a path cannot be the path of a folder."""
    try:
        os.lstat(folder / CHECKPOINT)  # the longest of the names in it
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(
            f"Expected {listed([str(folder)])} to be the path of a folder, but it cannot be one "
            f"({why}); choose another."
        ) from problem


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("not a list of texts where one should be")
    return values


def _sizes(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(
        type(value) is int and value > 0 for value in values
    ):
        raise TypeError("not a list of sizes where one should be")
    return values
