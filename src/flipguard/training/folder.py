"""A run as a folder: what is in it, and how it is written so that nothing is ever half there.

::

    run.json                configuration, versions, data, status
    history.jsonl           a line an epoch
    timing.jsonl            a line an epoch: seconds and samples a second
    model.safetensors       the weights, when it is finished
    predictions/test.npz    a prediction table, when it is finished
    checkpoints/last.pt     what a stopped run goes on from
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.errors import InputError, printable
from flipguard.training.config import Config, as_dict, from_dict

SCHEMA = "flipguard.run/1"
RUN, HISTORY, TIMING = "run.json", "history.jsonl", "timing.jsonl"
MODEL, CHECKPOINT = "model.safetensors", "checkpoints/last.pt"
# A temporary file: hidden, with the number of the process that writes it.
LEFT_OVER = re.compile(r"\..+\.(\d+)(?:\.[0-9a-f]+\.partial)?")
# What safetensors writes before it is a file of weights; the name does not say by whom.
UNNAMED = re.compile(r"\.tmp[A-Za-z0-9]{6}")


def predictions_of(folder: Path, split: str) -> Path:
    """Where the predictions of a split lie."""
    return folder / "predictions" / f"{split}.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that was begun: its folder, and what `run.json` says."""

    folder: Path
    config: Config
    status: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...] | None
    document: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """The run in a folder."""
        path = folder / RUN
        try:
            document = json.loads(path.read_text())
            config = from_dict(document["config"])
            shape = document["data"]["input_shape"]
            return cls(
                folder=folder,
                config=config,
                status=document["status"],
                class_names=tuple(document["data"]["class_names"]),
                input_shape=None if shape is None else tuple(shape),
                document=document,
            )
        except (FileNotFoundError, NotADirectoryError) as problem:
            raise InputError(
                f"Expected {printable(str(folder))} to be a run, but there is no {RUN} in it; "
                "give the folder that `flipguard train --out` wrote."
            ) from problem
        except (KeyError, TypeError, ValueError, OSError) as problem:
            raise InputError(
                f"Expected {printable(str(path))} to describe a run, but it is damaged "
                f"({type(problem).__name__}: {printable(str(problem))}); train it again."
            ) from problem

    @property
    def finished(self) -> bool:
        """Whether it has a model."""
        return self.status == "finished"


def is_finished(folder: Path) -> bool:
    """Whether there is a run in a folder, and it has a model."""
    return (folder / RUN).exists() and Run.read(folder).finished


def write_run(folder: Path, config: Config, *, status: str, **more: Any) -> None:
    """Writes `run.json`."""
    document = {"schema": SCHEMA, "status": status, "config": as_dict(config), **more}
    text = json.dumps(document, indent=1) + "\n"
    with written(folder / RUN) as path:
        path.write_text(text)


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a file of one JSON object a line, whole."""
    with written(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of such a file; none if there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when all is written and on disk; else it is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _to_disk(temporary)
        temporary.replace(path)
        _to_disk(path.parent)
    except OSError as problem:
        raise InputError(
            f"Expected to write {printable(str(path))}, but could not "
            f"({problem.strerror or problem}); make room or choose another `--out`, and what was "
            "there before is still there."
        ) from problem
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def save(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a file by a function that takes a path."""
    from safetensors import SafetensorError

    with written(path) as temporary:
        try:
            write(temporary)
        except InputError as problem:
            if isinstance(problem.__cause__, OSError):
                raise problem.__cause__ from None  # told with the name of the file that is meant
            raise
        except (RuntimeError, SafetensorError) as problem:
            # What torch and safetensors raise when a disk is full, in words of their own.
            raise OSError("the disk did not take all of it") from problem


def sweep(folder: Path) -> None:
    """Removes what killed processes were writing: temporary files whose process is gone."""
    for path in [*folder.glob(".*"), *folder.glob("*/.*")]:
        found = LEFT_OVER.fullmatch(path.name)
        if found is not None and path.is_file() and not _is_alive(int(found[1])):
            with suppress(OSError):
                path.unlink()
    # Only where a run was begun: there nobody but the run writes, and whoever sweeps is the run.
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
        return True  # somebody else's
    return process != os.getpid()


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
