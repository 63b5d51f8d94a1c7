"""How the page was computed: which files, which versions, and how to make it again."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
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
    found: dict[tuple[str, str], SourceFile] = {}
    hashes: dict[Path, str] = {}
    for result in results:
        plan = result.plan
        roles: list[tuple[str, str, Path | None]]
        if plan is None:
            roles = [("old", result.old, None), ("new", result.new, None)]
        else:
            sides = [("old", plan.old), ("new", plan.new), *(("control", c) for c in plan.controls)]
            roles = [
                (role, side.name if side.path is None else str(side.path), side.path)
                for role, side in sides
            ]
        for role, name, path in roles:
            if (role, name) not in found:
                found[role, name] = _source(role, name, path, hashes)
    for role, path in others:
        found[role, str(path)] = _source(role, str(path), path, hashes)
    return tuple(found.values())


def _source(role: str, name: str, path: Path | None, hashes: dict[Path, str]) -> SourceFile:
    if path is None or not os.path.isfile(path):
        return SourceFile(role=role, name=name, size=None, sha256=None)
    try:
        if path not in hashes:
            with path.open("rb") as file:
                hashes[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return SourceFile(role=role, name=name, size=path.stat().st_size, sha256=hashes[path])
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
