"""Results of the same study that differ in their seeds alone become one.

So a study can be run a few seeds at a time, also on several machines: whoever copies the results of
one to the other, and goes on there with other seeds, has all of them in one table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipguard.errors import InputError
from flipguard.studies.results import Result, Row, read_result

# What has to be the same, beside what was set: on another device or by another version of torch
# the same seed is another run, and a table would mix them.
ALIKE = ("device", "versions", "differences", "setting")


def joined_with(path: Path, new: Result) -> Result:
    """A new result with the seeds of the one that is there, if only its seeds are others.

    Where both have a seed, the new one's values are taken. The new result alone if there is none
    beside it, or one of other settings.
    """
    try:
        before = read_result(path, new.study)
    except InputError:  # there is none, or nobody could read it
        return new
    both = set(before.seeds) & set(new.seeds)
    # Of some seeds in both, nobody could say how many runs there were in all.
    if both not in (set(), set(new.seeds)) or not _are_alike(before, new):
        return new
    if set(before.seeds) <= set(new.seeds):
        return new
    seeds = tuple(sorted({*before.seeds, *new.seeds}))
    return dataclasses.replace(
        new,
        seeds=seeds,
        rows=tuple(
            _joined(earlier, later, (before.seeds, new.seeds), seeds)
            for earlier, later in zip(before.rows, new.rows, strict=True)
        ),
        facts=_facts(before.facts, new.facts, added=not both),
    )


def _are_alike(before: Result, new: Result) -> bool:
    def shape(result: Result) -> list[Any]:
        return [(row.place, row.why_not, row.notes, set(row.values)) for row in result.rows]

    # The bins of a histogram are laid by what is in it.
    plain = not any(row.histogram for row in (*before.rows, *new.rows))
    same = all(before.facts.get(name) == new.facts.get(name) for name in ALIKE)
    return plain and same and before.given == new.given and shape(before) == shape(new)


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
    """Where and when: of the new one, with what the runs of both cost."""
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
    return facts
