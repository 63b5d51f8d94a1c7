"""Merge results of the same study that differ only in their seeds.

So a study can be run a few seeds at a time, also on several machines: copy the results to another
machine and run other seeds there, to have all seeds in one table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipguard.errors import InputError
from flipguard.studies.collect import differences
from flipguard.studies.plan import StudyPlan, plan_study
from flipguard.studies.results import Result, Row, archive_result, read_result

# The facts that both results need to be added up.
ADDED = ("command", "runs", "seconds")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The result to write, and what happened to the result that existed before."""

    result: Result
    note: str | None = None


def merge_with_existing(path: Path, new: Result, plan: StudyPlan) -> Joined:
    """Return a new result, merged with the existing one if they differ only in their seeds.

    If both have a seed, the new values are used. An existing result that cannot be merged is moved
    aside, so nothing is lost.
    """
    if not path.exists():
        return Joined(result=new)
    try:
        before = read_result(path, new.study)
    except InputError:
        return _put_aside(path, new, "that cannot be read", written="before")
    why = _why_not(before, new, plan)
    if why is not None:
        return _put_aside(path, new, why, written=str(before.facts.get("written", "before")))
    if set(before.seeds) <= set(new.seeds):
        return Joined(result=new)
    seeds = tuple(sorted({*before.seeds, *new.seeds}))
    added = not set(before.seeds) & set(new.seeds)
    facts = _facts(before.facts, new.facts, added=added)
    if added:  # together they may have as many seeds as the scale
        facts["differences"] = differences(dataclasses.replace(plan, seeds=seeds))
    both = dataclasses.replace(
        new,
        seeds=seeds,
        rows=tuple(
            _joined(earlier, later, (before.seeds, new.seeds), seeds)
            for earlier, later in zip(before.rows, new.rows, strict=True)
        ),
        facts=facts,
    )
    listed = ", ".join(str(seed) for seed in seeds)
    return Joined(result=both, note=f"now has the seeds {listed}, with those of its result before")


def _put_aside(path: Path, new: Result, why: str, *, written: str) -> Joined:
    kept = archive_result(path, written=written)
    return Joined(result=new, note=f"had a result {why}; it is now {kept}")


def _why_not(before: Result, new: Result, plan: StudyPlan) -> str | None:
    """Why two results cannot be merged, as the end of a sentence "had a result …"."""
    if sorted(before.given) != sorted(new.given):
        return "of other settings"
    # On another device or by another torch the same seed is another run.
    if before.facts.get("device") != new.facts.get("device"):
        return "of another device"
    if _torch(before) != _torch(new):
        return "by another version of torch"
    if _samples(before) not in (None, _samples(new)):
        return "of other data of that name"
    # The names of runs are made of all that decides what they become, also of what a scale or a
    # method says by itself, which may have been otherwise when the result was made.
    if not matches_plan(before, plan):
        return "of runs that would be others now"
    if set(before.seeds) <= set(new.seeds):
        return None
    if new.study.histogram is not None:
        return "of other seeds, and histograms are not joined"
    both = set(before.seeds) & set(new.seeds)
    if both not in (set(), set(new.seeds)):
        return "of which some seeds are in this one, and some are not"
    shapes, now = ([_shape(row, one.seeds) for row in one.rows] for one in (before, new))
    if None in shapes or shapes != now or not before.facts.keys() >= set(ADDED):
        return "of another form"
    return None


def _torch(result: Result) -> Any:
    return result.facts.get("versions", {}).get("torch")


def _samples(result: Result) -> Any:
    return result.facts.get("setting", {}).get("samples")


def run_names(plan: StudyPlan) -> dict[int, dict[str, list[str]]]:
    """Return the names of runs by line and side of the update, one per seed."""
    names: dict[int, dict[str, list[str]]] = {}
    for update in plan.updates:
        for side, name in update.names.items():
            names.setdefault(update.line, {}).setdefault(side, []).append(name)
    return names


def matches_plan(result: Result, plan: StudyPlan) -> bool:
    """Return whether a result comes from the runs that the plan would make for its seeds."""
    planned = plan_study(
        plan.study, plan.scale, seeds=result.seeds, out=Path(), machine=plan.machine
    )
    names = run_names(planned)
    found = {
        row.place: {side: list(runs) for side, runs in row.runs.items()}
        for row in result.rows
        if row.why_not is None
    }
    return found == names


def _shape(row: Row, seeds: Sequence[int]) -> Any:
    """Return what must be equal in two rows; None if the numbers of values and seeds differ."""
    lists = [*row.values.values(), *row.runs.values()]
    lists += [values for curves in row.curves.values() for values in curves.values()]
    if any(len(values) != len(seeds) for values in lists):
        return None
    curves = {split: set(curves) for split, curves in row.curves.items()}
    return row.place, row.why_not, row.notes, set(row.values), set(row.runs), curves


def _joined(
    earlier: Row, later: Row, of: tuple[Sequence[int], Sequence[int]], seeds: Sequence[int]
) -> Row:
    def by_seed(old: Sequence[Any], new: Sequence[Any]) -> tuple[Any, ...]:
        found = dict(zip(of[0], old, strict=True)) | dict(zip(of[1], new, strict=True))
        return tuple(found[seed] for seed in seeds)

    def tables(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        return {name: by_seed(old[name], new[name]) for name in new}

    return dataclasses.replace(
        later,
        values=tables(earlier.values, later.values),
        runs=tables(earlier.runs, later.runs),
        curves={
            split: {k: list(v) for k, v in tables(earlier.curves[split], curves).items()}
            for split, curves in later.curves.items()
        },
    )


def _facts(before: Mapping[str, Any], new: Mapping[str, Any], *, added: bool) -> dict[str, Any]:
    """Return the facts of the merged result: those of the new one, with the costs of both."""
    if not added:
        return {**before, "written": new["written"]}
    facts = {
        **new,
        "command": f"{before['command']} && {new['command']}",
        "runs": before["runs"] + new["runs"],
        "seconds": round(before["seconds"] + new["seconds"], 1),
    }
    if before.get("processes") != new.get("processes"):
        facts.pop("processes", None)
    setting = before.get("setting", {})
    if "samples" in new.get("setting", {}) and "samples" not in setting:
        facts["setting"] = {k: v for k, v in new["setting"].items() if k != "samples"}
    return facts
