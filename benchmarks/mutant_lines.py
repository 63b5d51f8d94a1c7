"""Which of the quick tests execute which line of the files under test."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from mutating import Mutant

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/flipguard"
UNDER_TEST = ("methods", "losses", "statistics", "counts.py", "metrics.py", "gate.py")
# The other modules that the gate is made of.
UNDER_TEST += ("corrections.py", "planning.py", "inconclusive.py")
# What runs in a few minutes on one core, and the examples in the docstrings under test.
TESTS = ("tests/statistics", "tests/losses", "tests/methods")
TESTS += ("tests/test_counts.py", "tests/test_gate.py", "tests/test_metrics.py")
TESTS += ("tests/test_corrections.py", "tests/test_planning.py", "tests/test_api.py")
TESTS += ("tests/test_policy.py", "tests/test_pages.py", "tests/test_doubts.py")
TESTS += ("tests/test_means.py", "tests/test_controls.py", "tests/test_peers.py")
TESTS += ("tests/training/test_loop.py", "tests/training/test_members.py")
TESTS += ("tests/training/test_fine_tune.py",)
TESTS += tuple(f"{PACKAGE}/{part}" for part in UNDER_TEST)
# What is said outside of functions is also seen where it is listed.
DECLARED = {"tests/test_pages.py", "tests/methods/test_departures.py"}
DECLARED |= {"tests/methods/test_options.py", "tests/losses/test_edges.py"}
# The tests of one change together, in seconds of CPU when the lines were recorded.
MOST_SECONDS, MOST_TESTS = 8.0, 400
Lines = dict[str, dict[int, list[int]]]


def recorded_in(slots: Sequence[Path], path: Path) -> None:
    """Run the tests, a share in each copy of the repository, and write what they execute."""
    began = time.monotonic()
    shares = [path.with_name(f"{path.stem}-{i}.json") for i in range(len(slots))]
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(share), *_test_files()[i :: len(slots)]],
            cwd=slot,
            env={**os.environ, "PYTHONPATH": str(slot / "src")},
        )
        for i, (slot, share) in enumerate(zip(slots, shares, strict=True))
    ]
    codes = [child.wait() for child in running]
    if any(codes):
        sys.exit("The tests could not be run.")
    document: dict[str, Any] = {"tests": [], "seconds": [], "lines": {}}
    for share in shares:
        part = json.loads(share.read_text())
        share.unlink()
        first = len(document["tests"])
        document["tests"] += part["tests"]
        document["seconds"] += part["seconds"]
        for file, lines in part["lines"].items():
            known = document["lines"].setdefault(file, {})
            for line, tests in lines.items():
                known.setdefault(line, []).extend(first + test for test in tests)
    document["minutes"] = (time.monotonic() - began) / 60
    path.write_text(json.dumps(document))


def _test_files() -> list[str]:
    found = []
    for name in TESTS:
        path = ROOT / name
        pattern = "test_*.py" if name.startswith("tests") else "*.py"
        listed = sorted(path.rglob(pattern)) if path.is_dir() else [path] if path.exists() else []
        found += [str(file.relative_to(ROOT)) for file in listed]
    return found


class Recorded:
    """Which tests execute which line, and how long each takes."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.tests: list[str] = document["tests"]
        self.seconds: list[float] = document["seconds"]
        self.minutes: float = document["minutes"]
        self.kills: Counter[tuple[str, str]] = Counter()  # by file under test and test function
        self.lines: Lines = {
            file: {int(line): tests for line, tests in lines.items()}
            for file, lines in document["lines"].items()
        }

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests of a mutant, in the order in which they run."""
        lines = self.lines.get(mutant.file, {})
        found: set[int] = set()
        for line in range(mutant.start[0], mutant.end[0] + 1):
            found.update(lines.get(line, ()))
        if not found and mutant.scope is not None:
            # A default, or a line that the interpreter files under another one.
            for line in range(mutant.scope[0], mutant.scope[1] + 1):
                found.update(lines.get(line, ()))
        if mutant.scope is None:
            found |= self._users(mutant)
            found = found or {t for tests in lines.values() for t in tests}
        if mutant.scope is None or mutant.start[0] < mutant.scope[0]:
            found |= self._in(DECLARED)
        # What killed others of this file runs first.
        return sorted(
            self._capped(found), key=lambda test: -self.kills[mutant.file, function_of(test)]
        )

    def _users(self, mutant: Mutant) -> set[int]:
        """The tests that execute a line that names what a statement outside functions assigns."""
        found: set[int] = set()
        for file, lines in self.lines.items():
            for node in ast.walk(ast.parse((ROOT / PACKAGE / file).read_bytes())):
                name = getattr(node, "id", None) or getattr(node, "attr", None)
                if name in mutant.names:
                    found.update(lines.get(node.lineno, ()))
        words = re.compile(r"\b(" + "|".join(map(re.escape, mutant.names or ("",))) + r")\b")
        files = {test.partition("::")[0] for test in self.tests}
        named = {file for file in files if mutant.names and words.search(_read(file))}
        return found | self._in(named)

    def _in(self, files: Set[str]) -> set[int]:
        return {i for i, test in enumerate(self.tests) if test.partition("::")[0] in files}

    def _capped(self, found: Iterable[int]) -> list[str]:
        # Quick ones first; each waits until all test functions have had as much time as its own.
        had: dict[str, float] = defaultdict(float)
        order = []
        for test in sorted(found, key=lambda i: self.seconds[i]):
            name = function_of(self.tests[test])
            had[name] += self.seconds[test]
            order.append((had[name], test))
        chosen, seconds = [], 0.0
        for _, test in sorted(order)[:MOST_TESTS]:
            if chosen and seconds + self.seconds[test] > MOST_SECONDS:
                continue
            chosen.append(test)
            seconds += self.seconds[test]
        return [self.tests[test] for test in chosen]

    def taken(self, tests: Sequence[str]) -> float:
        """Return the seconds that these tests took."""
        place = {test: i for i, test in enumerate(self.tests)}
        return sum(self.seconds[place[test]] for test in tests)


def function_of(test: str) -> str:
    """Return a test's name without its parameters."""
    return test.partition("[")[0]


def _read(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def options_of_pytest(slot: Path) -> list[str]:
    """Return options under which the tests of a copy disturb no other copy."""
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    base = str(slot / "pytest")
    return [
        *quiet,
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"),
        "--basetemp",
        base,
    ]


class _Recording:
    """Says to the coverage which test runs, and keeps how much CPU time it took."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.began = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)
        self.began = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.process_time() - self.began
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:  # skipped tests notice nothing
            self.failed.add(report.nodeid)


def record(path: Path, tests: Sequence[str]) -> None:
    """Run these tests once, in this process, and write which lines each executes."""
    import coverage
    import pytest

    folder = Path.cwd() / PACKAGE
    watched = [str(folder / part) + ("" if part.endswith(".py") else "/*") for part in UNDER_TEST]
    data = coverage.Coverage(data_file=None, include=watched, config_file=False)
    data.start()
    plugin = _Recording(data)
    pytest.main(["-q", "-m", "not slow", *options_of_pytest(Path.cwd()), *tests], plugins=[plugin])
    data.stop()
    names = [name for name in plugin.seconds if name not in plugin.failed]
    place = {name: i for i, name in enumerate(names)}
    lines: dict[str, dict[int, list[int]]] = {}
    found = data.get_data()
    for file in found.measured_files():
        by_line = found.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(folder))] = {
            line: [place[c] for c in contexts if c in place] for line, contexts in by_line.items()
        }
    document = {
        "tests": names,
        "seconds": [round(plugin.seconds[name], 4) for name in names],
        "lines": lines,
    }
    path.write_text(json.dumps(document))
    if plugin.failed:
        print("Failed or skipped, and not used:", *sorted(plugin.failed), sep="\n  ")


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2:])
