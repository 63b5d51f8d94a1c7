"""Which files a side means: those that a pattern matches, of a list, or the parts in a folder.

Reading them belongs to `read`, and joining their tables to `joined_files`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from flipguard.errors import InputError, listed
from flipguard.predictions.formats import COMPRESSIONS, FORMATS, format_of
from flipguard.run_document import RUN, is_run, run_files

if TYPE_CHECKING:
    import polars as pl

GivenPath: TypeAlias = str | os.PathLike[str]
PATTERN_SIGNS = frozenset("*?[")
# What Spark and other writers call the files of a table that they write as a folder.
PART = "part"
# Such writers also put marks of success and checksums into the folder.
IGNORED = ("_", ".")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files that are one side, in order, and what the side is called in outputs."""

    paths: tuple[Path, ...]
    name: str


class FileRows(NamedTuple):
    """One of several files of a side, and its rows."""

    path: Path
    frame: pl.LazyFrame


def files_of_side(given: GivenPath | Sequence[GivenPath]) -> SideFiles | None:
    """Return the files of a pattern, of a list of paths, or of a folder of parts.

    None for any other path: one file, or the folder of a run. Files are sorted by their paths; a
    list keeps its order.
    """
    if not isinstance(given, str | os.PathLike):
        return _files_of_list(list(given))
    text = os.fspath(given)
    if os.path.isdir(text):
        return None if is_run(text) else _parts_in(text)
    if os.path.exists(text) or not PATTERN_SIGNS & set(text):
        return None
    found = [Path(path) for path in sorted(glob.glob(text, recursive=True))]
    if not found:
        raise InputError(f"No file matches the pattern {text}; check its folder and its spelling.")
    return SideFiles(_only_files(found, text), f"{text} ({_count(found)})")


def files_read(given: GivenPath) -> list[str]:
    """Return all files that reading a side may open, which no output may overwrite."""
    if is_run(given):
        return [os.fspath(given), *run_files(given)]
    try:
        several = files_of_side(given)
    except InputError:
        # Reading it will raise.
        several = None
    return [os.fspath(given), *(map(str, several.paths) if several is not None else ())]


def is_list_of_paths(given: object) -> bool:
    """Return whether a value is a list or tuple of `pathlib.Path` objects, and not of labels."""
    return (
        isinstance(given, list | tuple)
        and bool(given)
        and all(isinstance(one, os.PathLike) for one in given)
    )


def refuse_file_names(given: object, argument: str) -> None:
    """Refuse a list that may be labels or paths: every text in it ends as a file's name does."""
    if not isinstance(given, list | tuple) or not given:
        return
    if any(isinstance(one, os.PathLike) for one in given):
        raise InputError(
            f"Expected `{argument}` to be a list of paths or of labels, but it has both; give "
            "pathlib.Path objects alone for several files."
        )
    if all(isinstance(one, str) and _looks_like_a_file(one) for one in given):
        raise InputError(
            f"`{argument}` is a list of texts such as {listed(given, most=1)}, which may be files "
            "or labels; give pathlib.Path objects for files, or an array for labels."
        )


def _looks_like_a_file(text: str) -> bool:
    suffixes = [suffix.lower() for suffix in Path(text).suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in FORMATS


def _files_of_list(given: list[GivenPath]) -> SideFiles:
    if not given:
        raise InputError("Expected at least one path of a prediction file, but the list is empty.")
    found: list[Path] = []
    for one in given:
        several = files_of_side(one)
        found += [Path(one)] if several is None else several.paths
    paths = _only_files(found, "the list")
    more = len(paths) - 1
    rest = f" and {more:,} more file{'' if more == 1 else 's'}" if more else ""
    return SideFiles(paths, f"{paths[0]}{rest}")


def _only_files(found: list[Path], where: str) -> tuple[Path, ...]:
    folder = next((path for path in found if os.path.isdir(path)), None)
    if folder is not None:
        raise InputError(
            f"{folder} is a folder, but {where} must name the files of one side; name the files in "
            "it, or give each run as another side."
        )
    seen: dict[str, Path] = {}
    for path in found:
        first = seen.setdefault(os.path.realpath(path), path)
        if first is not path:
            raise InputError(f"{path} is the same file as {first}; give each file once.")
    _one_format(found)
    return tuple(found)


def _one_format(paths: Sequence[Path]) -> None:
    kinds = {path: format_of(path)[0] for path in paths if os.path.exists(path)}
    other = next((path for path in kinds if kinds[path] != kinds[paths[0]]), None)
    if other is not None:
        raise InputError(
            f"{paths[0]} and {other} are of two formats, and the files of one side must be of one; "
            "name those of one format."
        )


def _parts_in(folder: str) -> SideFiles:
    """Return the files of a folder that holds nothing but the parts of one table."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith(IGNORED))
    paths = [Path(folder, name) for name in names]
    suffixes = {_suffix(name) for name in names}
    if names and all(map(_is_part, paths)) and len(suffixes) == 1:
        return SideFiles(_only_files(paths, folder), f"{folder} ({_count(paths)})")
    known = next((f"*{suffix}" for suffix in sorted(suffixes) if suffix), None)
    pattern = "" if known is None else f", or several files with a pattern: {folder}/{known}"
    raise InputError(
        f"{folder} is a folder, not a file of predictions, and no run, because there is no {RUN} "
        f"in it; name a file or a run{pattern}."
    )


def _is_part(path: Path) -> bool:
    return path.name.startswith(PART) and os.path.isfile(path)


def _suffix(name: str) -> str:
    """Return the known suffix of a file's name, with its compression; empty if there is none."""
    if not _looks_like_a_file(name):
        return ""
    path = Path(name)
    return "".join(path.suffixes[-2:]) if path.suffix in COMPRESSIONS else path.suffix


def _count(paths: Iterable[Path]) -> str:
    n = len(list(paths))
    return f"{n:,} file{'' if n == 1 else 's'}"
