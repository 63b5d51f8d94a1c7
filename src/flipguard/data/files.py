"""What every reader of files shares: damage, missing files, and where data sets are kept."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from pathlib import Path

from flipguard.archives import DAMAGE
from flipguard.errors import InputError, listed

VARIABLE = "FLIPGUARD_DATA"


def data_root(root: Path | None) -> Path:
    """The folder of the named data sets: as given, else the environment's, else ``data``."""
    if root is not None:
        return located(root)
    return located(os.environ.get(VARIABLE) or "data")


def located(place: str | Path) -> Path:
    """A path with the home folder in place of ``~``; refused if no file could have it."""
    try:
        path = Path(place).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)
    except (OSError, RuntimeError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(
            f"Expected {listed([str(place)])} to be the path of data, but it cannot be looked up "
            f"({str(why).rstrip('.')}); check its spelling and who may read it."
        ) from problem
    return path


class AbsentError(InputError):
    """Data that is well named, and whose files are not on this machine."""


def absent(name: str, path: Path, how: str) -> AbsentError:
    """The refusal of a named data set whose files are not there."""
    return AbsentError(
        f"Expected `{name}` to be at {path}, but got no such file; {how}, or name the folder that "
        f"holds it, by `data_root` or {VARIABLE}."
    )


def unreadable(path: Path, kind: str, problem: BaseException | str) -> InputError:
    """The refusal of a file that is there but cannot be read."""
    why = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
    return InputError(
        f"Expected {path} to be {kind}, but got a file that cannot be read ({why}); it may be "
        "truncated or of another format, so copy it again."
    )


def read_bytes(path: Path, kind: str) -> bytes:
    """The content of a file, unpacked if its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as file:
                return file.read()
        return path.read_bytes()
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected {path} to be {kind}, but got no such file; check the path."
        ) from problem
    except MemoryError as problem:
        raise unreadable(path, kind, "it holds more than fits in memory") from problem
    except DAMAGE as problem:
        raise unreadable(path, kind, problem) from problem


def packed_or_not(folder: Path, *names: str) -> Path | None:
    """The first of some files that is in a folder, as it is or with .gz behind its name."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None
