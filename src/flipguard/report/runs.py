"""Run folders as the page needs them: read as JSON, without what trained them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flipguard.errors import InputError, printable
from flipguard.predictions.read import read_predictions
from flipguard.predictions.table import Predictions

RUN, HISTORY, TIMING = "run.json", "history.jsonl", "timing.jsonl"
SCHEMA = "flipguard.run/1"
PREDICTIONS = Path("predictions", "test.npz")
DAMAGES = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError)
SPLITS = ("train", "test")
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
    """A finished run: what it was, what it learned when, and what it cost."""

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
    members_seconds: float | None  # of the ensemble that it learned from
    samples_a_second: float | None
    epochs: int

    @property
    def predictions(self) -> Path:
        """Its prediction table of the test set."""
        return self.folder / PREDICTIONS


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder rather than a prediction file."""
    return os.path.isdir(path)


def read_run(path: str | os.PathLike[str]) -> RunFolder:
    """The run in a folder."""
    folder = Path(path)
    file = folder / RUN
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        config = document["config"]
        status = str(document["status"])
        found: dict[str, Any] = {
            "method": str(config["method"]),
            "model": str(config["model"]),
            "data": str(config["data"]),
            "old": tuple(str(old) for old in config["old"]),
            "seed": _whole((config.get("seeds") or {}).get("seed")),
            "parameters": _whole(document.get("parameters")),
        }
        members = [folder / str(place) for place in document.get("members", ())]
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected {printable(str(folder))} to be a run, but there is no {RUN} in it; "
            "give the folder that `flipguard train --out` wrote."
        ) from problem
    except DAMAGES as problem:
        raise _damaged(file, problem) from problem
    if status != "finished":
        raise InputError(
            f"Expected {printable(str(folder))} to be a finished run, but it is "
            f"{printable(status, longest=40)}; resume it first."
        )
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


def run_predictions(path: str | os.PathLike[str]) -> Predictions:
    """The predictions of a run's test set, or of a prediction file itself."""
    if not is_run(path):
        return read_predictions(path)
    run = read_run(path)
    if not run.predictions.is_file():
        raise InputError(
            f"Expected {printable(str(run.folder))} to hold {PREDICTIONS}, but it does not; write "
            f"it with: flipguard predict {run.folder} --split test --out {run.predictions}."
        )
    return replace(read_predictions(run.predictions), name=run.name)


def common_old(runs: Sequence[RunFolder]) -> str:
    """The old model that the runs were trained to follow, if they agree on one."""
    named = {old for run in runs for old in run.old}
    if len(named) != 1:
        told = "none" if not named else ", ".join(printable(n, longest=60) for n in sorted(named))
        raise InputError(
            f"Expected the runs to name one old model, but they name {told}; say which with --old."
        )
    (old,) = named
    # As it was given when they were trained, or beside them where the folders were moved together.
    places = [Path(old), *(run.folder.parent / Path(old).name for run in runs)]
    for place in places:
        if os.path.isfile(place / RUN):
            return str(place)
    raise InputError(
        f"Expected the old run {printable(old)}, which the runs name, but it is not there; say "
        "where it is with --old."
    )


def _lines(path: Path) -> list[Any]:
    if not os.path.isfile(path):
        return []
    try:
        # Only a line feed ends a line: other signs that do may stand inside a name.
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except DAMAGES as problem:
        raise _damaged(path, problem) from problem


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
                # Of several old models the last is the one that is replaced.
                olds = list((rates.get("old") or {}).values())
                found = {**(olds[-1] if olds else {}), "error_rate": rates.get("error_rate")}
                points += [
                    Point(epoch=epoch, what=name, split=split, value=float(found[name]))
                    for name in RATES
                    if found.get(name) is not None
                ]
    except DAMAGES as problem:
        raise _damaged(path, problem) from problem
    return [point for point in points if math.isfinite(point.value)]


def _cost(rows: list[Any], path: Path) -> dict[str, Any]:
    try:
        seconds = [float(row["seconds"]) for row in rows]
        speeds = sorted(float(row["samples_a_second"]) for row in rows)
        if not all(math.isfinite(value) for value in (*seconds, *speeds)):
            raise ValueError("a time that is no number")
    except DAMAGES as problem:
        raise _damaged(path, problem) from problem
    return {
        "seconds": sum(seconds) if seconds else None,
        "samples_a_second": speeds[len(speeds) // 2] if speeds else None,
        "epochs": len(rows),
    }


def _seconds_of(members: Sequence[Path]) -> float | None:
    """What the members took; unknown if one of them is no longer there."""
    costs = [_cost(_lines(place / TIMING), place / TIMING)["seconds"] for place in members]
    return None if None in costs else float(sum(costs))


def _whole(value: Any) -> int | None:
    """A number that a run may leave out, and nothing else in its place."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"expected a whole number, not {type(value).__name__}")
    return value


def _damaged(path: Path, problem: BaseException) -> InputError:
    advice = "train it again" if path.name == RUN else "restore it, or remove it to do without it"
    return InputError(
        f"Expected {printable(str(path))} to describe a run, but it is damaged "
        f"({type(problem).__name__}: {printable(str(problem))}); {advice}."
    )


def run_files(place: str) -> list[str]:
    """What a run is made of, which no page may take the place of; pages in its folder it may."""
    found = (Path(root, name) for root, _, names in os.walk(place) for name in names)
    return [str(path) for path in found if path.suffix.lower() not in (".html", ".htm")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which run plays which part: paths, the candidates by name."""

    old: str
    control: str | None
    candidates: dict[str, str]
    folders: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """Every file of every run that plays a part."""
        places = {self.old, *self.folders, *self.candidates.values()}
        return [file for place in sorted(places) for file in (run_files(place) or [place])]


def chosen_runs(places: Sequence[str], *, old: str | None, control: str | None) -> Chosen:
    """The parts of the runs that were given, as far as they follow from the runs themselves."""
    for place in places:
        if not os.path.exists(place):
            raise InputError(
                f"Expected {printable(place)} to be a run or a prediction file, but it is not "
                "there; check the path."
            )
    runs = {place: read_run(place) for place in places if is_run(place)}
    if old is None:
        if not runs:
            raise InputError(
                "Expected runs that name their old model, but got prediction files alone; say "
                "which is the old one with --old."
            )
        old = common_old(list(runs.values()))
    if control is None and len(places) > 1:
        # What is left must still have something to be measured.
        control = next((p for p, run in runs.items() if run.method == "none"), None)
    candidates = list(places)
    if len(candidates) == 1 and same_place(candidates[0], control):
        control = None  # there is nothing else to measure it by
    shown = [place for place in (*places, *([control] if control else [])) if is_run(place)]
    return Chosen(
        old=old,
        control=control,
        candidates=dict(zip(_names(candidates), candidates, strict=True)),
        folders=tuple(dict.fromkeys(os.path.normpath(place) for place in shown)),
    )


def same_place(place: str, other: str | None) -> bool:
    """Whether two paths are one, however they are written."""
    return other is not None and os.path.realpath(place) == os.path.realpath(other)


def _names(places: Sequence[str]) -> list[str]:
    """The last part of each path; the whole path where that would say the same twice."""
    last = [os.path.basename(os.path.normpath(place)) or place for place in places]
    real = [os.path.realpath(place) for place in places]
    twice = next((place for place in places if real.count(os.path.realpath(place)) > 1), None)
    if twice is not None:
        raise InputError(f"{printable(twice)} is given twice; give each candidate once.")
    return [name if last.count(name) == 1 else p for name, p in zip(last, places, strict=True)]
