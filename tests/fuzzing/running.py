"""Runs a case through the command line, and holds what it says against the plain reading."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzzing import counting, judging
from tests.fuzzing.cases import Case
from tests.fuzzing.outcomes import (
    CELLS,
    UNLABELLED,
    Allowed,
    Counts,
    Questions,
    Reading,
    every_reading,
)

OUT = "result.json"
EXIT = {"pass": 0, "fail": 1, "inconclusive": 3}
WORST_FIRST = ("fail", "inconclusive", "pass")
SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a run left behind."""

    exit: int
    out: str
    err: str
    document: str | None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a case: accepted, refused, or what is wrong."""

    what: str
    problem: str | None = None


# -- running -------------------------------------------------------------------------------------


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Works in a folder, as a user does."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write(case: Case, folder: Path) -> None:
    """Puts the files of a case into a folder."""
    for name, data in case.files.items():
        (folder / name).write_bytes(data)


def in_process(case: Case, folder: Path, *further: str) -> Ran:
    """Runs the case by `flipguard.cli.main` in this process."""
    from flipguard.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    arguments = sys.argv
    sys.argv = ["flipguard", *case.arguments, f"--json={OUT}", *further]
    try:
        with inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
            except BaseException as problem:
                # As the interpreter would end: a panic of native code is no Exception.
                if isinstance(problem, KeyboardInterrupt):
                    raise
                sys.stderr.write(f"Traceback: {type(problem).__name__}: {problem}")
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        sys.argv = arguments
    texts = [s.buffer.getvalue().decode("utf-8", "replace") for s in (out, err)]  # type: ignore[attr-defined]
    return _ran(code, *texts, folder)


def in_subprocess(case: Case, folder: Path, *further: str) -> Ran:
    """Runs the case as a user does, in a new process."""
    command = [sys.executable, "-m", "flipguard", *case.arguments, f"--json={OUT}", *further]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS, check=False)
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return _ran(done.returncode, out, err, folder)


def _ran(code: int, out: str, err: str, folder: Path) -> Ran:
    path = folder / OUT
    document = path.read_text(encoding="utf-8") if path.exists() else None
    path.unlink(missing_ok=True)
    return Ran(exit=code, out=out, err=err, document=document)


# -- reading -------------------------------------------------------------------------------------


def expected(case: Case, folder: Path, *, in_spark: bool = False) -> Allowed:
    """Every right answer to a case whose files are in a folder."""
    paths = {role: folder / case.task[role] for role in ("old", "new")}
    controls = tuple(folder / name for name in case.task["controls"])
    task = counting.Task(
        **{**case.task, **paths, "controls": controls}  # type: ignore[arg-type]
    )
    pinned = None if case.pinned is None else folder / case.pinned

    def read(questions: Questions) -> Counts:
        counts = counting.counted(task, questions)
        if case.rules is None:
            return counts
        return judging.judged(counts, case.rules, pinned, questions)

    with warnings.catch_warnings():
        # numpy and pyarrow warn of damage before they refuse it.
        warnings.simplefilter("ignore")
        found = every_reading(read, in_spark=in_spark)
        if not case.sound:
            return found
        # A reader that passes over the damage, or refuses it, is right as well.
        for name, data in case.sound.items():
            (folder / name).write_bytes(data)
        sound = every_reading(read, in_spark=in_spark)
        write(case, folder)
    readings = [*found.readings, *(r for r in sound.readings if r not in found.readings)]
    return Allowed(readings=readings, doubts=[*found.doubts, "damage"])


# -- comparing -----------------------------------------------------------------------------------


def judge(ran: Ran, allowed: Allowed, *, may_abort: bool = False) -> Answer:
    """Whether what a run said is one of the right answers.

    Native code may end the process at a damaged file, by a signal and never by a verdict's code.
    """
    if ran.exit < 0 and may_abort:
        return Answer(what="aborted", problem=None if ran.document is None else "it left JSON")
    noise = next((t for t in ("Traceback", "this is a bug") if t in ran.err + ran.out), None)
    if noise is not None:
        return Answer(what="crashed", problem=f"it says {noise!r}")
    if ran.exit == 2:
        return _judge_refusal(ran, allowed)
    if ran.exit not in (0, 1, 3):
        return Answer(what="crashed", problem=f"it ended with exit code {ran.exit}")
    if ran.document is None:
        return Answer(what="accepted", problem="it wrote no JSON")
    if allowed.must_refuse:
        whys = "; ".join(str(r.refused) for r in allowed.readings)
        return Answer(what="accepted", problem=f"it was accepted, but must be refused: {whys}")
    document = json.loads(ran.document)
    problems = [
        differences(document, ran.exit, r.counts) for r in allowed.readings if r.counts is not None
    ]
    best = min(problems, key=len)
    return Answer(what="accepted", problem="; ".join(best) or None)


def _judge_refusal(ran: Ran, allowed: Allowed) -> Answer:
    problem = None
    lines = ran.err.splitlines()
    if "panicked at" in ran.err:
        # Rust writes where it panicked, past Python, before the panic is caught.
        lines = lines[-1:]
    if len(lines) != 1 or not lines[0].startswith("flipguard: "):
        problem = f"a refusal of {len(lines)} lines"
    elif ran.document is not None or ran.out:
        problem = "a refusal that wrote something"
    elif not allowed.may_refuse:
        problem = "it was refused, but can be counted"
    return Answer(what="refused", problem=problem)


def differences(document: dict[str, Any], exit_code: int, counts: Counts) -> list[str]:
    """Where a document differs from a count."""
    comparison = document.get("comparison", document)
    found = []
    if "comparison" in document:
        found += _verdict_differences(document, exit_code, counts)
    elif exit_code != 0:
        found.append(f"compare ended with exit code {exit_code}")
    rows = sum(counts.whole.values())
    found += _unequal("n", comparison["n"], rows)
    given = {key: n for key, n in comparison["rows"].items() if not key.endswith("_ids")}
    found += _unequal("rows", given, counts.rows)
    for side in ("only_old", "only_new"):
        named = comparison["rows"].get(f"{side}_ids", [])
        found += _unequal(f"ids {side}", len(named), min(counts.rows[side], 3))
    found += _unequal("counts", _plain(comparison["counts"]), _cells(counts.whole, counts))
    for i, cells in enumerate(counts.controls):
        told = comparison["controls"][i]["counts"]
        found += _unequal(f"control {i}", _plain(told), _cells(cells, counts))
    if counts.clusters is not None:
        found += _unequal("clusters", comparison["cluster"]["clusters"], counts.clusters)
    found += _unequal("columns", sorted(comparison["by"]), sorted(counts.groups))
    for column, groups in counts.groups.items():
        told = {
            name: _plain(group["counts"])
            for name, group in comparison["by"].get(column, {}).items()
        }
        wanted = {name: _cells(cells, counts) for name, cells in groups.items()}
        found += _unequal(f"groups of {column!r}", told, wanted)
    found += _metric_differences(comparison["metrics"], counts)
    return found


def _unequal(what: str, told: object, wanted: object) -> list[str]:
    return [] if told == wanted else [f"{what}: {told} where {wanted} is right"]


def _plain(cells: dict[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in cells.items() if value}


def _cells(cells: dict[str, int], counts: Counts) -> dict[str, int]:
    names = UNLABELLED if not counts.has_target else (*CELLS, *UNLABELLED)
    return {name: cells[name] for name in names if cells.get(name)}


def _metric_differences(metrics: dict[str, Any], counts: Counts) -> list[str]:
    found = []
    for name in ("negative_flip_rate", "positive_flip_rate", "churn", "accuracy_gain"):
        part, n = judging.fraction(name, counts.whole)
        if name != "churn" and not counts.has_target:
            n = 0
        told = metrics[name]["value"]
        if (told is None) != (n == 0) or (told is not None and abs(told - part / n) > 1e-12):
            found.append(f"{name}: {told} where {part} / {n} is right")
    return found


def _verdict_differences(document: dict[str, Any], exit_code: int, counts: Counts) -> list[str]:
    judged, verdict = counts.judged, document["verdict"]
    assert judged is not None
    found = _unequal("exit code", exit_code, EXIT[verdict])
    rows = [row for row in document["rules"] if row["metric"] != "pinned"]
    told = [
        (row["metric"], row["by"], row["group"], row["verdict"])
        for row in rows
        if row["judge"] == "point"
    ]
    found += _unequal("judged by value", sorted(told, key=str), judged.points)
    for row in rows:
        value = judged.values.get((row["metric"], row["by"], row["group"]))
        if (value is None) != (row["value"] is None) or (
            value is not None and abs(value - row["value"]) > 1e-12
        ):
            found.append(
                f"{row['metric']} of {row['group']}: {row['value']} where {value} is right"
            )
        elif value is not None and row["verdict"] in ("pass", "fail"):
            low, high = row["limit"].get("min", value), row["limit"].get("max", value)
            if (row["verdict"] == "pass") != (low <= value <= high):
                found.append(f"{row['metric']} of {row['group']}: {row['verdict']} at {value}")
    pinned = [row for row in document["rules"] if row["metric"] == "pinned"]
    flipped = sorted(str(i) for row in pinned for i in row["flipped"]) if pinned else None
    found += _unequal("pinned", flipped, judged.pinned)
    said = {row["verdict"] for row in document["rules"]} - {"not_judged"}
    if "fail" in said or verdict == "fail":
        found += _unequal(
            "verdict", verdict, next(v for v in WORST_FIRST if v in said or v == "pass")
        )
    return found


# -- telling -------------------------------------------------------------------------------------


def told(case: Case, ran: Ran, allowed: Allowed, answer: Answer, how: str) -> str:
    """Everything that is needed to look into a case that went wrong."""
    lines = [
        f"Case {case.number} of seed {case.seed} ({case.twist}), {how}: {answer.problem}",
        f"again: python -m tests.fuzzing --seed {case.seed} --case {case.number}",
        f"command: flipguard {' '.join(repr(a) for a in case.arguments)}",
        f"exit {ran.exit}; stderr: {ran.err[:600]!r}",
    ]
    for reading in allowed.readings[:4]:
        lines.append(f"plain reading: {_shown(reading)}")
    lines += [f"may be refused: {doubt}" for doubt in allowed.doubts]
    lines.append(f"flipguard: {_summary(ran.document)}")
    for name, data in case.files.items():
        lines.append(f"{name} ({len(data):,} bytes): {data[:1_500]!r}")
    return "\n".join(lines)


def _shown(reading: Reading) -> str:
    if reading.counts is None:
        return f"must be refused: {reading.refused}"
    c = reading.counts
    told = f"{c.whole}, rows {c.rows}, groups {c.groups}, clusters {c.clusters}"
    return (
        told if c.judged is None else f"{told}, points {c.judged.points}, pinned {c.judged.pinned}"
    )


def _summary(document: str | None) -> str:
    if document is None:
        return "no document"
    whole = json.loads(document)
    comparison = whole.get("comparison", whole)
    groups = {
        column: {name: _plain(group["counts"]) for name, group in groups.items()}
        for column, groups in comparison["by"].items()
    }
    return f"{_plain(comparison['counts'])}, rows {comparison['rows']}, groups {groups}"[:3_000]
