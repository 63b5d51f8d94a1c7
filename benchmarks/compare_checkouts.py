"""Compare what two checkouts of flipguard do: weights, predictions, documents and texts.

    python benchmarks/compare_checkouts.py BEFORE AFTER [--only PART ...] [--case NAME] [--quick]

Runs the same commands of `python -m flipguard` with the sources of each checkout, in one Python
environment and with the same inputs, and compares every file and every printed line. It is meant
for changes that must not change behaviour. Exit code 0: no difference; 1: differences, which are
listed; 2: the comparison could not be made.

`--numbers` compares texts by their numbers alone, and knows the keys that are renamed.
`--renamed-keys` leaves out the names of runs that are named after their settings.
What is never compared is listed in `checkouts/records.py`.

A checkout that has no uncommitted changes in `src` is run as BEFORE once: its folder is kept in
DIR and used again. AFTER is always run. Sources must not change while cases run, so BEFORE and
AFTER are best worktrees that stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from checkouts import evidence, training
from checkouts.case import Case
from checkouts.inputs import write_inputs
from checkouts.records import Reading, files_of, first_difference

HERE = Path(__file__).resolve().parent
PARTS = (
    *("train", "members", "resume", "processes", "finetune"),
    *("evidence", "study", "spark", "demo"),
)
OPTIONAL = ("spark", "demo")  # only if they are named
LIMIT = 900  # seconds of a command, on a machine that does much else
STOPPED = -signal.SIGALRM  # how a command ends that took longer
LIBRARIES = ("torch", "numpy", "polars", "pyarrow", "scipy", "rich", "typer", "lightning")


@dataclass(slots=True, kw_only=True)
class Side:
    """A checkout and the folder in which its cases are run."""

    name: str
    checkout: Path
    folder: Path

    def environment(self, case: Case | None = None) -> dict[str, str]:
        """The variables of its processes: the same on both sides but for the sources."""
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
        return {
            **kept,
            "PYTHONPATH": str(self.checkout / "src"),
            "PYTHONHASHSEED": "0",
            "PYTHONUTF8": "1",
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            **({} if case is None else case.environment),
        }

    def done(self, case: Case) -> Path:
        return self.folder / case.part / case.name / "done"


class Server:
    """A process of `checkouts/server.py`, which runs commands one at a time."""

    def __init__(self, side: Side) -> None:
        command = [sys.executable, "-P", str(HERE / "checkouts/server.py"), str(side.checkout)]
        self._process = subprocess.Popen(
            command,
            env=side.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], folder: Path, out: Path, err: Path) -> int:
        job = {
            "arguments": list(arguments),
            "folder": str(folder),
            "out": str(out),
            "err": str(err),
            "limit": LIMIT,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("A process that runs commands has ended; see its messages above.")
        return int(answer)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_case(side: Side, case: Case, server: Server) -> None:
    """Carry out the commands of a case and keep what each printed and how it ended."""
    folder = side.folder / case.part / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    codes = []
    suffix = "log" if case.timed else "txt"
    for number, arguments in enumerate(case.commands, start=1):
        out, err = (folder / f"{number}.{stream}.{suffix}" for stream in ("stdout", "stderr"))
        if case.cold or case.environment:
            code = _run_cold(side, case, arguments, folder, (out, err))
        else:
            code = server.run(arguments, folder, out, err)
        if code == STOPPED:
            raise SystemExit(
                f"{side.name}: {case.part}/{case.name} took more than {LIMIT} s; run the same "
                "command again when the machine has less to do."
            )
        codes.append(f"{code}  {' '.join(arguments)}\n")
    (folder / "codes.txt").write_text("".join(codes))
    (folder / "done").touch()


def _run_cold(
    side: Side, case: Case, arguments: Sequence[str], folder: Path, streams: tuple[Path, Path]
) -> int:
    with streams[0].open("wb") as out, streams[1].open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flipguard", *arguments],
            cwd=folder,
            env=side.environment(case),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return STOPPED
        finally:
            # The processes that it started, too: they would wait for each other forever.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Work:
    """The cases of one side, which one or two threads carry out; setup comes first."""

    def __init__(self, side: Side, cases: Sequence[Case], failures: list[BaseException]) -> None:
        self.side, self.failures = side, failures
        left = [case for case in cases if not side.done(case).exists()]
        self.setup = [case for case in left if case.part == "setup"]
        self.others: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in left:
            if case.part != "setup":
                self.others.put(case)
        self.count = len(left)
        self.ready = threading.Event()

    def carry_out(self, *, first: bool) -> None:
        try:
            server = Server(self.side)
            if first:
                for case in self.setup:
                    run_case(self.side, case, server)
                self.ready.set()
            self.ready.wait()
            while not self.failures:
                try:
                    case = self.others.get_nowait()
                except queue.Empty:
                    break
                run_case(self.side, case, server)
            server.end()
        except BaseException as problem:
            self.failures.append(problem)
            self.ready.set()


def run_sides(sides: Sequence[Side], cases: Sequence[Case]) -> None:
    """Run both sides at once, or what is left of one with two processes."""
    failures: list[BaseException] = []
    works = [Work(side, cases, failures) for side in sides]
    works = [work for work in works if work.count]
    threads = [
        threading.Thread(target=work.carry_out, kwargs={"first": not place})
        for work in works
        for place in range(2 if len(works) == 1 else 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def cases_of(parts: Sequence[str], *, quick: bool, methods: Any) -> list[Case]:
    """All cases of some parts, those that train first of all what others start from."""

    def every() -> Iterator[Case]:
        yield from training.setup_cases()
        yield from training.process_cases()
        yield from training.study_cases()
        yield from training.member_cases()
        yield from training.train_cases(methods)
        yield from training.resume_cases(methods)
        yield from training.fine_tune_cases()
        yield from evidence.evidence_cases(spark="spark" in parts)
        if "demo" in parts:
            yield from training.demo_cases()

    return [
        case
        for case in every()
        if case.part in (*parts, "setup") and (not quick or case.quick or case.part in OPTIONAL)
    ]


def methods_in(checkout: Path) -> list[dict[str, Any]]:
    """The training methods that a checkout lists."""
    side = Side(name="list", checkout=checkout, folder=checkout)
    command = [sys.executable, "-P", "-m", "flipguard", "methods", "--json"]
    answer = subprocess.run(command, env=side.environment(), capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"`flipguard methods --json` fails in {checkout}: {answer.stderr}")
    return list(json.loads(answer.stdout))


def identity_of(checkout: Path) -> str | None:
    """What decides what a checkout writes: its sources, these scripts and the libraries.

    None if its sources have changes that are not committed.
    """
    git = ["git", "-C", str(checkout)]
    changes = subprocess.run(
        [*git, "status", "--porcelain", "--", "src"], capture_output=True, text=True
    )
    tree = subprocess.run([*git, "rev-parse", "HEAD:./src"], capture_output=True, text=True)
    if changes.returncode or tree.returncode or changes.stdout.strip():
        return None
    known = hashlib.sha256(tree.stdout.strip().encode())
    for path in sorted([Path(__file__).resolve(), *(HERE / "checkouts").glob("*.py")]):
        if path.name != "records.py":  # which only reads
            known.update(path.read_bytes())
    known.update(f"{sys.executable} {platform.python_version()}".encode())
    for library in LIBRARIES:
        try:
            known.update(f"{library} {version(library)}".encode())
        except PackageNotFoundError:
            known.update(library.encode())
    return known.hexdigest()[:10]


def differences_of(
    case: Case, sides: Sequence[Side], *, numbers: bool, renamed_keys: bool
) -> list[str]:
    """What differs in a case: a line or three for each file."""
    readings = tuple(
        Reading(
            root=side.folder, checkout=side.checkout, numbers=numbers, renamed_keys=renamed_keys
        )
        for side in sides
    )
    if case.part == "setup":
        folders = [side.folder / "setup" for side in sides]
    else:
        folders = [side.folder / case.part / case.name for side in sides]
    before, after = (
        files_of(folder, reading) for folder, reading in zip(folders, readings, strict=True)
    )
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after or name not in before:
            found.append(f"{name}: only {'before' if name in before else 'after'}")
            continue
        what = first_difference(before[name], after[name], (readings[0], readings[1]))
        if what is not None:
            found.append(f"{name}: {what}")
    return found


def prepared(given: argparse.Namespace) -> list[Side]:
    """Both sides with their folders, in which the inputs lie."""
    sides = []
    for name, checkout in (("before", given.before), ("after", given.after)):
        if not (checkout / "src/flipguard").is_dir():
            raise SystemExit(
                f"Expected a checkout of flipguard, but {checkout} has no src/flipguard."
            )
        identity = identity_of(checkout) if name == "before" else None
        # Names of the same length, because what is printed is wrapped.
        folder = given.out / (f"before-{identity}" if identity else f"{name:-<17}")
        if not identity:
            shutil.rmtree(folder, ignore_errors=True)
        if not (folder / "complete-inputs").exists():
            shutil.rmtree(folder / "inputs", ignore_errors=True)
            write_inputs(folder / "inputs")
            (folder / "complete-inputs").touch()
        sides.append(Side(name=name, checkout=checkout.resolve(), folder=folder.resolve()))
    return sides


def report(given: argparse.Namespace, sides: Sequence[Side], cases: Sequence[Case]) -> int:
    """Print what differs; the number of cases that do."""
    counts, different, seen_setup = Counter(case.part for case in cases), 0, False
    refused = 0
    for case in cases:
        if case.part == "setup" and seen_setup:
            continue
        seen_setup = seen_setup or case.part == "setup"
        found = differences_of(case, sides, numbers=given.numbers, renamed_keys=given.renamed_keys)
        codes = (sides[1].folder / case.part / case.name / "codes.txt").read_text()
        refused += any(line[:1] not in "013" for line in codes.splitlines())
        if found:
            different += 1
            print(f"{case.part}/{case.name}: {len(found)} differences")
            for line in found if given.all else found[:3]:
                print(f"    {line}")
    for part, count in counts.items():
        print(f"{part}: {count} cases")
    print(
        f"{refused} of {len(cases)} cases have a command that is refused, most of them on purpose"
    )
    print(f"{different} cases differ" if different else "no difference")
    return different


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another checkout")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some parts")
    parser.add_argument("--case", default="", help="only cases whose names match this expression")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--numbers", action="store_true", help="compare texts by their numbers")
    parser.add_argument("--renamed-keys", action="store_true", help="ignore names of runs")
    parser.add_argument("--all", action="store_true", help="list all differences of a case")
    parser.add_argument("--out", type=Path, default=Path(".build/compare_checkouts"))
    return parser.parse_args()


def main() -> int:
    given, began = parsed(), time.monotonic()
    given.out = given.out.resolve()
    parts = given.only or [part for part in PARTS if part not in OPTIONAL]
    sides = prepared(given)
    cases = [
        case
        for case in cases_of(parts, quick=given.quick, methods=methods_in(given.before))
        if case.part == "setup" or re.search(given.case, case.name)
    ]
    run_sides(sides, cases)
    different = report(given, sides, cases)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s, of which {used.ru_utime + used.ru_stime:.0f} s on processors")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
