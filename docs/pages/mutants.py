"""The page about mutation tests: how many small changes of the source the tests notice."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from pages.places import ROOT, committed

KILLED = ("killed", "timeout")


def mutants_page() -> str:
    """Return the page, from the committed rows and the list of equivalent changes."""
    document = committed("mutants")
    rows, reasons = document["rows"], _reasons()
    same = [row for row in rows if row["outcome"] == "survived" and _key(row) in reasons]
    judged = [row for row in rows if row not in same]
    alive = [row for row in judged if row["outcome"] == "survived"]
    machine, minutes, most = document["machine"], document["minutes"], document["most"]
    lines = [
        "# What the tests notice",
        "",
        f"Measured by `{document['command']}` (Python {machine['python']}, {machine['cores']} cores, "
        f"{minutes['all']:.0f} minutes, {minutes['recording']:.0f} of them to record which test executes which line). "
        "The files of `methods/`, `losses/` and `statistics/`, with `counts.py`, `metrics.py`, `gate.py` and the other "
        "modules of the gate (`corrections.py`, `planning.py`, `inconclusive.py`), have "
        f"{document['sites']:,} places where a small change can be made: an operator, a comparison, a number, a condition, "
        "a sign, an axis, a call, a statement. "
        f"{len(rows)} of these places were drawn at random with seed {document['seed']}, and one change was made at each. "
        "A change is *killed* if a test fails with it.",
        "",
        f"For each change, the tests that execute the changed line are run, out of {document['tests']:,} quick tests and examples in "
        "docstrings: the quickest first, until one fails, at most "
        f"{most['seconds']:.0f} seconds of CPU or {most['tests']} tests. Code that tests run in other processes does not count. "
        "The seed was not selected: missing tests were added with draws of other seeds, and then this seed ran once. "
        "Modules were merged and renamed after this run, which has not been repeated: files have their earlier names here.",
        "",
        *_shares(rows, same),
        "",
    ]
    added = [row for row in alive if row.get("again", {}).get("outcome") in KILLED]
    if added:
        left = len(alive) - len(added)
        lines += [
            f"After that run, tests were added for {len(added)} of the {len(alive)} survivors. With these tests, "
            f"{_percent(len(judged) - left, len(judged))} of the changes are killed.",
            "",
        ]
    lines += ["## Survivors", "", *_survivors(alive)]
    lines += ["", "## Equivalent changes", "", *_equivalent(same, reasons)]
    return "\n".join(lines) + "\n"


def _shares(rows: Sequence[dict], same: Sequence[dict]) -> list[str]:
    lines = [
        "| part | changes | equivalent | killed by a failing test | by running too long | survived | killed of those not equivalent |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    parts = dict.fromkeys(row["file"].partition("/")[0] for row in rows)
    for part in (*parts, ""):
        some = [row for row in rows if not part or row["file"].partition("/")[0] == part]
        equal = sum(row in same for row in some)
        failed, late = (sum(row["outcome"] == outcome for row in some) for outcome in KILLED)
        alive = len(some) - equal - failed - late
        name = f"`{part}`" if part else "**all**"
        lines.append(
            f"| {name} | {len(some)} | {equal} | {failed} | {late} | {alive} "
            f"| {_percent(failed + late, len(some) - equal)} |"
        )
    return lines


def _survivors(alive: Sequence[dict]) -> list[str]:
    if not alive:
        return ["None."]
    lines = ["| file | line | becomes | tests | later |", "|---|---|---|---:|---|"]
    for row in alive:
        again = "killed" if row.get("again", {}).get("outcome") in KILLED else ""
        lines.append(
            f"| `{row['file']}` | {_code(row['before'])} | {_code(row['after'])} | {row['tests']} | {again} |"
        )
    return lines


def _equivalent(same: Sequence[dict], reasons: dict[tuple[str, ...], str]) -> list[str]:
    if not same:
        return ["None."]
    lines = [
        "These changes were reviewed by hand: they change nothing that a test could see. They are left out of the rates above.",
        "",
        "| file | line | becomes | reason |",
        "|---|---|---|---|",
    ]
    for row in same:
        lines.append(
            f"| `{row['file']}` | {_code(row['before'])} | {_code(row['after'])} | {reasons[_key(row)]} |"
        )
    return lines


def _reasons() -> dict[tuple[str, ...], str]:
    listed = tomllib.loads((ROOT / "benchmarks" / "mutants_equivalent.toml").read_text())
    return {_key(row): row["reason"] for row in listed.get("mutant", [])}


def _key(row: dict) -> tuple[str, ...]:
    return row["file"], row["before"], row["after"]


def _code(text: str) -> str:
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
