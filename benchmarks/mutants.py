"""How many small changes of the source the tests notice.

    python benchmarks/mutants.py --seed 24

First the quick tests run once, and it is recorded which of them executes which line. Then sites are
drawn from all of the files under test, and one change is made at each, in a copy of the repository.
The tests that execute the changed line run until one fails: first one case of each test function,
the quickest first, then the others. `benchmarks/mutants_equivalent.toml` lists the changes
that change nothing that a test could observe, judged by hand, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mutating import Mutant, sites

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/flipguard"
UNDER_TEST = ("methods", "losses", "statistics", "counts.py", "metrics.py", "gate.py")
# Tests that run in a few minutes on one core, and the examples in docstrings of the tested files.
TESTS = (
    *("tests/statistics", "tests/losses", "tests/methods", "tests/references"),
    *(
        "tests/test_counts.py",
        "tests/test_gate.py",
        "tests/test_metrics.py",
        "tests/test_policy.py",
        "tests/test_api.py",
        "tests/test_pages.py",
    ),
    *("tests/test_doubts.py", "tests/test_peers.py", "tests/test_ensemble.py"),
    *("tests/test_equality.py", "tests/test_matrix.py", "tests/test_markdown.py"),
    *("tests/training/test_loop.py", "tests/training/test_refusals.py"),
    *("tests/training/test_members.py", "tests/training/test_one_phase.py"),
    *("tests/training/test_fine_tune.py", "tests/training/test_starts.py"),
    *("tests/training/test_measuring.py", "tests/training/test_views.py"),
    *(f"{PACKAGE}/{part}" for part in UNDER_TEST),
)
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md")
COPIED += ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "requirements.lock")
# Statements outside functions are also covered by tests that list the names they assign.
DECLARED = {"tests/test_pages.py", "tests/methods/test_registry.py"}
# At most this time for all tests of one change, by the times measured while recording.
MOST_SECONDS, MOST_TESTS = 12.0, 400
# A change may cause an endless loop or use up the memory.
SPARE_SECONDS, MOST_BYTES = 30.0, 12 * 2**30
# Modules that are imported once, before any child is forked. None of them starts a thread on
# import, so a child finds no lock held.
LOADED = (
    "numpy",
    "scipy.special",
    "scipy.stats",
    "scipy.optimize",
    "torch",
    "torch.func",
    "pytest",
)
LOADED += ("hypothesis", "hypothesis.extra.numpy", "pandas", "pyarrow", "polars", "rich.console")
LOADED += ("typer", "statsmodels.api", "sklearn.metrics", "torchmetrics")
EQUIVALENT = ROOT / "benchmarks" / "mutants_equivalent.toml"

Lines = dict[str, dict[int, list[int]]]


def main() -> None:
    """Draw, run, and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mutants", type=int, default=600)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[""], help="files whose path begins so")
    parser.add_argument("--recorded", type=Path, help="keep the recorded lines in this file")
    parser.add_argument("--again", action="store_true", help="those that survived in --out")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/mutants.json")
    given = parser.parse_args()
    os.environ |= {"CI": "true", "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        slots = [_copied(Path(folder) / str(i)) for i in range(given.processes)]
        if given.recorded is None or not given.recorded.exists():
            path = given.recorded or Path(folder) / "recorded.json"
            command = [sys.executable, __file__, str(path)]
            subprocess.run(command, cwd=slots[0], check=True, env=_environment(slots[0]))
        recorded = Recorded(json.loads((given.recorded or path).read_text()))
        minutes = (time.monotonic() - began) / 60
        drawn = draw(given.seed, given.mutants, given.only)
        kept: list[dict[str, Any]] = []
        if given.again:
            kept = json.loads(given.out.read_text())["rows"]
            drawn = _survived(kept, drawn)
        rows = run_all(drawn, recorded, slots)
    if given.again:
        rows = _second(kept, rows)
    document = {
        "command": f"python benchmarks/mutants.py --seed {given.seed} --mutants {given.mutants}"
        f" --processes {given.processes}",
        "seed": given.seed,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "sites": sum(len(found) for found in _all_sites(given.only)),
        "tests": len(recorded.tests),
        "most": {"seconds": MOST_SECONDS, "tests": MOST_TESTS},
        "minutes": {
            "recording": round(minutes, 1),
            "all": round((time.monotonic() - began) / 60, 1),
        },
        "rows": rows,
    }
    if given.again:
        document |= {"minutes": json.loads(given.out.read_text())["minutes"]}
    given.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(Counter(row["outcome"] for row in rows))


def _survived(kept: Sequence[Mapping[str, Any]], drawn: Sequence[Mutant]) -> list[Mutant]:
    alive = {_key(row) for row in kept if row["outcome"] == "survived"}
    return [mutant for mutant in drawn if _key(_row(mutant)) in alive]


def _second(kept: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the first run, with the outcome of its survivors after tests were added."""
    found = {_key(row): row for row in rows}
    for row in kept:
        if _key(row) in found:
            row["again"] = {k: found[_key(row)].get(k) for k in ("outcome", "killer")}
    return kept


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("file", "before", "after"))


def _copied(slot: Path) -> Path:
    """A copy of the repository, in which sources are changed."""
    slot.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *COPIED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (slot / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, slot / name)
    return slot


def _environment(slot: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(slot / "src")}


def _files(only: Sequence[str] = ("",)) -> list[str]:
    folder = ROOT / PACKAGE
    found = []
    for part in UNDER_TEST:
        path = folder / part
        found += [path] if path.is_file() else sorted(path.glob("*.py"))
    names = [str(path.relative_to(folder)) for path in found]
    return [name for name in names if name.startswith(tuple(only))]


def _all_sites(only: Sequence[str]) -> Iterable[list[list[Mutant]]]:
    for name in _files(only):
        yield sites(name, (ROOT / PACKAGE / name).read_bytes())


def draw(seed: int, count: int, only: Sequence[str] = ("",)) -> list[Mutant]:
    """Draw sites without replacement, each as likely as any other, and one mutant of each."""
    rng = random.Random(seed)
    every = [site for found in _all_sites(only) for site in found]
    return [rng.choice(site) for site in rng.sample(every, min(count, len(every)))]


class Recorded:
    """Which tests execute which line, and how long each takes."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.tests: list[str] = document["tests"]
        self.seconds: list[float] = document["seconds"]
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
            # A default, or a line that the interpreter counts as another one.
            for line in range(mutant.scope[0], mutant.scope[1] + 1):
                found.update(lines.get(line, ()))
        if mutant.scope is None:
            found |= self._users(mutant)
            found = found or {t for tests in lines.values() for t in tests}
        # Tests that killed other mutants of this file run first.
        return sorted(
            self._capped(found), key=lambda test: -self.kills[mutant.file, _function(test)]
        )

    def _users(self, mutant: Mutant) -> set[int]:
        """The tests that execute a line with a name that a statement outside functions assigns."""
        found: set[int] = set()
        for file, lines in self.lines.items():
            for node in ast.walk(ast.parse((ROOT / PACKAGE / file).read_bytes())):
                name = getattr(node, "id", None) or getattr(node, "attr", None)
                if name in mutant.names:
                    found.update(lines.get(node.lineno, ()))
        words = re.compile(r"\b(" + "|".join(map(re.escape, mutant.names or ("",))) + r")\b")
        files = {test.partition("::")[0] for test in self.tests}
        named = {file for file in files if mutant.names and words.search(_read(file))} | DECLARED
        return found | {i for i, t in enumerate(self.tests) if t.partition("::")[0] in named}

    def _capped(self, found: Iterable[int]) -> list[str]:
        by_function: dict[str, list[int]] = defaultdict(list)
        for test in sorted(found, key=lambda i: self.seconds[i]):
            by_function[_function(self.tests[test])].append(test)
        order = sorted(
            (turn, self.seconds[test], test)
            for tests in by_function.values()
            for turn, test in enumerate(tests)
        )
        chosen, seconds = [], 0.0
        for _, taken, test in order[:MOST_TESTS]:
            if chosen and seconds + taken > MOST_SECONDS:
                continue
            chosen.append(test)
            seconds += taken
        return [self.tests[test] for test in chosen]

    def taken(self, tests: Sequence[str]) -> float:
        """Return the seconds that these tests took."""
        place = {test: i for i, test in enumerate(self.tests)}
        return sum(self.seconds[place[test]] for test in tests)


def _function(test: str) -> str:
    return test.partition("[")[0]


def _read(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def run_all(
    drawn: Sequence[Mutant], recorded: Recorded, slots: Sequence[Path]
) -> list[dict[str, Any]]:
    """Run the tests of every mutant, as many at once as there are copies."""
    _load()
    free, running = list(slots), {}
    waiting = list(enumerate(drawn))[::-1]
    rows: dict[int, dict[str, Any]] = {}
    while waiting or running:
        while waiting and free:
            number, mutant = waiting.pop()
            tests = recorded.of(mutant)
            if not tests:
                rows[number] = {**_row(mutant), "outcome": "survived", "tests": 0, "seconds": 0.0}
                continue
            child = _Child(mutant, tests, free.pop(), recorded.taken(tests))
            running[child.id] = (number, child)
        for process, (number, child) in list(running.items()):
            if child.ended():
                del running[process]
                free.append(child.slot)
                rows[number] = {**_row(child.mutant), **child.found()}
                killer = _function(rows[number].get("killer", ""))
                recorded.kills[child.mutant.file, killer] += 1
                print(len(rows), json.dumps(rows[number], ensure_ascii=False), flush=True)
        time.sleep(0.02)
    return [rows[i] for i in range(len(drawn))]


def _load() -> None:
    """Import what every child needs, except the package itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LOADED:
            importlib.import_module(name)
    gc.freeze()


def _row(mutant: Mutant) -> dict[str, Any]:
    before, after = mutant.shown((ROOT / PACKAGE / mutant.file).read_bytes())
    return {
        "file": mutant.file,
        "line": mutant.start[0],
        "kind": mutant.kind,
        "before": before,
        "after": after,
    }


class _Child:
    """A process in which one mutant's tests run."""

    def __init__(self, mutant: Mutant, tests: Sequence[str], slot: Path, seconds: float) -> None:
        self.mutant, self.tests, self.slot = mutant, tests, slot
        self.limit = SPARE_SECONDS + 5 * seconds
        self.path = slot / PACKAGE / mutant.file
        self.times = self.path.stat()
        self.source = self.path.read_bytes()
        self.path.write_bytes(mutant.applied(self.source))
        self.report = slot / "report.json"
        self.report.unlink(missing_ok=True)
        self.began = time.monotonic()
        self.late = False
        self.id = os.fork()
        if self.id == 0:
            _forked(lambda: _tested(slot, tests, self.report), slot)

    def ended(self) -> bool:
        """Whether the tests have finished; a process that takes too long is ended."""
        done, _ = os.waitpid(self.id, os.WNOHANG)
        if not done and time.monotonic() - self.began > self.limit:
            self.late = True
            os.killpg(self.id, signal.SIGKILL)
            os.waitpid(self.id, 0)
            done = self.id
        if done:
            self.path.write_bytes(self.source)
            os.utime(self.path, ns=(self.times.st_atime_ns, self.times.st_mtime_ns))
        return bool(done)

    def found(self) -> dict[str, Any]:
        """Return the outcome of the mutant."""
        row: dict[str, Any] = {
            "tests": len(self.tests),
            "seconds": round(time.monotonic() - self.began, 1),
        }
        if self.late:
            return {"outcome": "timeout", **row}
        if not self.report.exists():  # it ended the process
            return {"outcome": "killed", "killer": "the process ended", **row}
        code, killer = json.loads(self.report.read_text())
        if code == 0:
            return {"outcome": "survived", **row}
        return {"outcome": "killed", "killer": killer or f"pytest ended with {code}", **row}


def _forked(work: Callable[[], None], slot: Path) -> None:
    """Do the work of a child, and end."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        os.chdir(slot)
        os.environ |= {"PYTHONPATH": str(slot / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(slot / "src")]
        sink = os.open(str(slot / "output.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


class _Selected:
    """Lets pytest run the chosen tests in the chosen order, and remembers the first to fail."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {test: i for i, test in enumerate(tests)}
        self.killer = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(chosen, key=lambda item: self.place[item.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.killer:
            self.killer = report.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.killer:
            self.killer = report.nodeid


def _tested(slot: Path, tests: Sequence[str], report: Path) -> None:
    import pytest

    plugin = _Selected(tests)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    code = pytest.main(["-q", "-x", *_options(slot), *files], plugins=[plugin])
    report.write_text(json.dumps([int(code), plugin.killer]))


def _options(slot: Path) -> list[str]:
    base = str(slot / "pytest")
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return [*quiet, "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "--basetemp", base]


class _Recording:
    """Tells coverage which test is running, and records how long it took."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:  # skipped tests notice nothing
            self.failed.add(report.nodeid)


def record(path: Path) -> None:
    """Run the quick tests once, in this process, and write which lines each executes."""
    import coverage
    import pytest

    folder = Path.cwd() / PACKAGE
    watched = [str(folder / part) + ("" if part.endswith(".py") else "/*") for part in UNDER_TEST]
    data = coverage.Coverage(data_file=None, include=watched, config_file=False)
    data.start()
    plugin = _Recording(data)
    tests = [name for name in TESTS if Path(name).exists()]
    pytest.main(["-q", "-m", "not slow", *_options(Path.cwd()), *tests], plugins=[plugin])
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


def equivalent() -> dict[tuple[str, ...], str]:
    """Return the reason of each change that was judged to be equivalent."""
    rows = tomllib.loads(EQUIVALENT.read_text())["mutant"]
    return {_key(row): row["reason"] for row in rows}


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        record(Path(sys.argv[1]))
    else:
        main()
