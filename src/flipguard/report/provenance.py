"""How the page was computed: which files, which versions, and how to make it again."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flipguard._version import __version__
from flipguard.comparison import Comparison
from flipguard.errors import InputError, printable

PACKAGES = ("numpy", "polars", "scipy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that went in; without a path it came from memory."""

    role: str
    name: str
    size: int | None
    sha256: str | None


def source_files(
    results: Iterable[Comparison], others: Iterable[tuple[str, Path]] = ()
) -> tuple[SourceFile, ...]:
    """Every prediction table of the comparisons once, with the hash of its file, then others."""
    roles: list[tuple[str, str, Path | None]] = []
    for result in results:
        plan = result.plan
        if plan is None:
            roles += [("old", result.old, None), ("new", result.new, None)]
        else:
            sides = [("old", plan.old), ("new", plan.new), *(("control", c) for c in plan.controls)]
            roles += [
                (role, side.name if side.path is None else str(side.path), side.path)
                for role, side in sides
            ]
    roles += [(role, str(path), path) for role, path in others]
    files = dict.fromkeys(path for _, _, path in roles if path is not None and os.path.isfile(path))
    # Hashing large files takes a core each.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        hashed = dict(zip(files, pool.map(_size_and_hash, files), strict=True))
    nothing = (None, None)
    found = {}
    for role, name, path in roles:
        size, sha256 = nothing if path is None else hashed.get(path, nothing)
        found[role, name] = SourceFile(role=role, name=name, size=size, sha256=sha256)
    return tuple(found.values())


def _size_and_hash(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise InputError(
            f"{printable(str(path))} was compared but can no longer be read ({problem.strerror}); "
            "put it back, or compare again."
        ) from problem


def versions() -> dict[str, str]:
    """What computed the numbers."""
    found = {"flipguard": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
