"""Read finished runs for reports: as JSON, without importing torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.run_document import DAMAGES, PREDICTIONS, RUN, damaged, finished_document

HISTORY, TIMING = "history.jsonl", "timing.jsonl"
SPLITS = ("train", "validation", "test")
MOST_EPOCHS = 10**9  # that a run may have
RATES = ("error_rate", "negative_flip_rate", "churn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of one epoch: a loss, or a rate on a split."""

    epoch: int
    what: str
    split: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A finished run: its settings, its history, and its training time."""

    name: str
    folder: Path
    method: str
    model: str
    data: str
    seed: int | None
    old: tuple[str, ...]
    parameters: int | None
    points: tuple[Point, ...]
    seconds: float | None
    members: int
    members_seconds: float | None  # training time of its ensemble's members
    samples_a_second: float | None
    epochs: int

    @property
    def predictions(self) -> Path:
        """Path of the prediction table of the test set."""
        return self.folder / PREDICTIONS


def measured_split(row: Mapping[str, Any]) -> str | None:
    """Return the split that the rates of a row are of, besides train; None if it has no rates.

    A run with a validation split is measured on it, any other run on the test split.

    >>> measured_split({"epoch": 1, "train": {}, "validation": {"error_rate": 0.25}})
    'validation'
    """
    return next((split for split in ("validation", "test") if split in row), None)


def read_run(path: str | os.PathLike[str]) -> RunFolder:
    """Read the finished run in a folder."""
    folder = Path(path)
    document = finished_document(folder)
    try:
        config = document["config"]
        found: dict[str, Any] = {
            "method": "adopted" if "adopted" in document else str(config["method"]),
            "model": str(config["model"]),
            "data": str(config["data"]),
            "old": tuple(str(old) for old in config["old"]),
            "seed": _whole((config.get("seeds") or {}).get("seed")),
            "parameters": _whole(document.get("parameters")),
        }
        members = [folder / str(place) for place in document.get("members", ())]
    except DAMAGES as problem:
        raise damaged(folder / RUN, problem) from problem
    timing = _lines(folder / TIMING)
    return RunFolder(
        name=folder.resolve().name if folder.name in ("", ".", "..") else folder.name,
        folder=folder,
        points=tuple(_points(_lines(folder / HISTORY), folder / HISTORY)),
        members=len(members),
        members_seconds=_seconds_of(members),
        **_cost(timing, folder / TIMING),
        **found,
    )


def _lines(path: Path) -> list[Any]:
    if not os.path.isfile(path):
        return []
    try:
        # Only a line feed ends a line: other line separators may be part of a name.
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except DAMAGES as problem:
        raise damaged(path, problem) from problem


def _points(rows: list[Any], path: Path) -> list[Point]:
    points = []
    try:
        for row in rows:
            epoch = _whole(row["epoch"])
            if epoch is None or not 0 <= epoch <= MOST_EPOCHS:
                raise ValueError("an epoch that no run has")
            for name, value in row.get("losses", {}).items():
                loss = float(value)
                points.append(Point(epoch=epoch, what=f"loss {name}", split="train", value=loss))
            for split in SPLITS:
                rates = row.get(split) or {}
                # If there are several old models, the last one is the one that is replaced.
                olds = list((rates.get("old") or {}).values())
                found = {**(olds[-1] if olds else {}), "error_rate": rates.get("error_rate")}
                points += [
                    Point(epoch=epoch, what=name, split=split, value=float(found[name]))
                    for name in RATES
                    if found.get(name) is not None
                ]
    except DAMAGES as problem:
        raise damaged(path, problem) from problem
    return [point for point in points if math.isfinite(point.value)]


def _cost(rows: list[Any], path: Path) -> dict[str, Any]:
    try:
        seconds = [float(row["seconds"]) for row in rows]
        speeds = sorted(float(row["samples_a_second"]) for row in rows)
        if not all(math.isfinite(value) for value in (*seconds, *speeds)):
            raise ValueError("a time that is no number")
    except DAMAGES as problem:
        raise damaged(path, problem) from problem
    return {
        "seconds": sum(seconds) if seconds else None,
        "samples_a_second": speeds[len(speeds) // 2] if speeds else None,
        "epochs": len(rows),
    }


def _seconds_of(members: Sequence[Path]) -> float | None:
    """Return the training time of the members; None if one of them no longer exists."""
    costs = [_cost(_lines(place / TIMING), place / TIMING)["seconds"] for place in members]
    return None if None in costs else float(sum(costs))


def _whole(value: Any) -> int | None:
    """Return a whole number or None; raise for anything else."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"expected a whole number, not {type(value).__name__}")
    return value
