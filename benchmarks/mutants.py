"""How many small changes of the source the tests notice.

    python benchmarks/mutants.py --seed 24

First the quick tests run once, and it is recorded which of them executes which line. Then sites are
drawn from all files under test, and one change is made at each, in a copy of the repository.
The tests that execute the changed line run until one fails, the quickest first, so that each test
function has as much time as any other. `benchmarks/mutants_equivalent.toml` lists the changes that
alter nothing a test could see, judged by hand, each with its reason.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import platform
import random
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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mutant_lines import (
    MOST_SECONDS,
    MOST_TESTS,
    PACKAGE,
    ROOT,
    UNDER_TEST,
    Recorded,
    function_of,
    options_of_pytest,
    recorded_in,
)
from mutating import Mutant, sites

EQUIVALENT = ROOT / "benchmarks" / "mutants_equivalent.toml"
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md")
COPIED += ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "requirements.lock")
# A change may make a loop endless, or use up the memory. The seconds are of CPU: other work of the
# machine must not be taken for a change that is noticed.
SPARE_SECONDS, MOST_BYTES = 30.0, 12 * 2**30
# What is loaded once, before any child. None of these runs anything in another thread until it is
# used, so that a child finds no lock held.
LOADED = ("numpy", "scipy.special", "scipy.stats", "scipy.optimize", "torch", "torch.func")
LOADED += ("pytest", "hypothesis", "hypothesis.extra.numpy", "pandas", "pyarrow", "polars")
LOADED += ("rich.console", "typer", "statsmodels.api", "sklearn.metrics", "torchmetrics")


def main() -> None:
    """Draw, run, and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mutants", type=int, default=600)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[""], help="files whose path begins so")
    parser.add_argument("--recorded", type=Path, help="keep the recorded lines in this file")
    parser.add_argument(
        "--again", action="store_true", help="those that survived in --out and are not equivalent"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/mutants.json")
    given = parser.parse_args()
    os.environ |= {"CI": "true", "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        slots = [_copied(Path(folder) / str(i)) for i in range(given.processes)]
        path = given.recorded or Path(folder) / "recorded.json"
        if not path.exists():
            recorded_in(slots, path)
        began = time.monotonic()
        recorded = Recorded(json.loads(path.read_text()))
        drawn = draw(given.seed, given.mutants, given.only)
        kept: list[dict[str, Any]] = []
        if given.again:
            kept = json.loads(given.out.read_text())["rows"]
            drawn = _survived(kept, drawn)
        rows = run_all(drawn, recorded, slots)
    if given.again:
        rows = _second(kept, rows)
    minutes = (time.monotonic() - began) / 60
    document = {
        "command": f"python benchmarks/mutants.py --seed {given.seed} --mutants {given.mutants}"
        f" --processes {given.processes}",
        "seed": given.seed,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "sites": sum(len(found) for found in _all_sites(given.only)),
        "tests": len(recorded.tests),
        "most": {"seconds": MOST_SECONDS, "tests": MOST_TESTS},
        "minutes": {
            "recording": round(recorded.minutes, 1),
            "all": round(recorded.minutes + minutes, 1),
        },
        "rows": rows,
    }
    if given.again:
        # The first run stays the one that is told of.
        first = json.loads(given.out.read_text())
        document |= {name: first[name] for name in ("minutes", "tests", "machine", "most")}
    given.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(Counter(row["outcome"] for row in rows))


def _survived(kept: Sequence[Mapping[str, Any]], drawn: Sequence[Mutant]) -> list[Mutant]:
    same = {_key(row) for row in tomllib.loads(EQUIVALENT.read_text())["mutant"]}
    alive = {
        _key(row)
        for row in kept
        if row["outcome"] == row.get("again", row)["outcome"] == "survived"
        and _key(row) not in same
    }
    return [mutant for mutant in drawn if _key(_row(mutant)) in alive]


def _second(kept: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first run's rows, with what became of its survivors after tests were added."""
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
                killer = function_of(rows[number].get("killer", ""))
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
        self.limit = math.ceil(SPARE_SECONDS + 5 * seconds)
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
            _forked(lambda: _tested(slot, tests, self.report), slot, self.limit)

    def ended(self) -> bool:
        """Whether the tests are over; what takes too long is ended."""
        done, status = os.waitpid(self.id, os.WNOHANG)
        self.late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        # Where it waits for what never comes it uses no CPU.
        if not done and time.monotonic() - self.began > 10 * self.limit:
            self.late = True
            os.killpg(self.id, signal.SIGKILL)
            os.waitpid(self.id, 0)
            done = self.id
        if done:
            self.path.write_bytes(self.source)
            os.utime(self.path, ns=(self.times.st_atime_ns, self.times.st_mtime_ns))
        return bool(done)

    def found(self) -> dict[str, Any]:
        """Return what became of the mutant."""
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


def _forked(work: Callable[[], None], slot: Path, limit: int) -> None:
    """Do the work of a child, and end."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
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
    code = pytest.main(["-q", "-x", *options_of_pytest(slot), *files], plugins=[plugin])
    report.write_text(json.dumps([int(code), plugin.killer]))


if __name__ == "__main__":
    main()
