"""Jobs in real worker processes: their messages, their ends, and what is begun when."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import flipguard
from flipguard import worker_pool
from flipguard.errors import InputError
from flipguard.worker_pool import Ending, Job, PoolMonitor, PoolSettings, Schedule, WorkerPool
from tests.worker_jobs import CHATTER

SOURCE = Path(flipguard.__file__).parent


class Log(PoolMonitor):
    """Remembers everything."""

    def __init__(self) -> None:
        self.begun_jobs: list[str] = []
        self.notes: list[str] = []
        self.epochs: list[tuple[str, int, int]] = []
        self.endings: dict[str, Ending] = {}
        self.skipped_jobs: list[str] = []

    def begun(self, job: Job) -> None:
        self.begun_jobs.append(job.key)

    def note(self, job: Job, text: str) -> None:
        self.notes.append(text)

    def epoch(self, job: Job, done: int, of: int) -> None:
        self.epochs.append((job.key, done, of))

    def ended(self, job: Job | None, ending: Ending) -> None:
        self.endings["none" if job is None else job.key] = ending

    def skipped(self, job: Job) -> None:
        self.skipped_jobs.append(job.key)


def job(key: str, function: str, after: str = "", **arguments: Any) -> Job:
    return Job(
        key=key,
        call=f"tests.worker_jobs:{function}",
        arguments=arguments,
        after=frozenset(after.split()),
    )


# -- messages alone decide -----------------------------------------------------------------------


def test_what_a_job_prints_or_notes_has_no_effect(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Python runs at its start may print before the script begins.
    before = [line for line in CHATTER if "ready" not in line]
    (tmp_path / "sitecustomize.py").write_text(f"print(*{before!r}, sep='\\n', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    log = Log()
    jobs = [job("chatty", "chat"), job("next", "chat", after="chatty")]
    result = WorkerPool(PoolSettings()).run(jobs, monitor=log)
    assert result.finished == {"chatty", "next"}
    assert log.epochs == [(key, done, 3) for key in ("chatty", "next") for done in (1, 2)]
    assert log.notes == [*CHATTER, *CHATTER]
    assert log.endings == {"chatty": Ending("finished"), "next": Ending("finished")}
    printed = capfd.readouterr()
    assert printed.out == ""
    assert CHATTER[0] in printed.err


def test_no_code_reads_a_progress_line() -> None:
    """No text is matched, split or compared with the words of a progress line."""
    methods = {
        *("partition", "rpartition", "split", "rsplit", "startswith", "endswith", "removeprefix"),
        *("find", "index", "match", "fullmatch", "search", "findall", "finditer", "compile"),
    }
    words = ("epoch ", " epochs", "s left", "samples/s", "test error", "member ")
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                texts = node.args if node.func.attr in methods else []
            elif isinstance(node, ast.Compare):
                texts = [node.left, *node.comparators]
            for text in texts:
                told = text.value if isinstance(text, ast.Constant) else None
                if isinstance(told, str) and (told == "epoch" or any(w in told for w in words)):
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    # Whether a message is one about an epoch.
    assert [line.partition(":")[0] for line in found] == ["worker_pool.py"]


# -- how jobs end --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("refused", "Expected this, but got that."),
        ("diverged", "Expected finite losses."),
        ("crashed", "ZeroDivisionError: no use"),
        ("gone", "signal 9"),
    ],
)
def test_how_a_job_ends_is_told(how: Any, text: str) -> None:
    log = Log()
    jobs = [
        job("bad", "end_badly", how=how),
        job("needing", "chat", after="bad"),
        job("last", "chat", after="needing"),
        job("other", "chat"),
    ]
    result = WorkerPool(PoolSettings()).run(jobs, monitor=log)
    ending = log.endings["bad"]
    assert ending.kind == how
    assert ending.text.strip().splitlines()[-1] == text
    # What diverges concerns itself alone; all else would meet others too.
    assert result.finished == ({"other"} if how == "diverged" else set())
    assert log.skipped_jobs == (["needing", "last"] if how == "diverged" else [])
    assert result.finished | result.unfinished == {job.key for job in jobs}


def test_a_process_that_is_killed_from_outside_is_gone_and_others_finish(tmp_path: Path) -> None:
    log = Log()
    pool = WorkerPool(PoolSettings(processes=2))
    jobs = [job("endless", "run_until_stopped"), job("quick", "record", file=str(tmp_path / "a"))]

    def kill() -> None:
        while not [key for key, done, _ in log.epochs if done > 2]:
            time.sleep(0.01)
        while "quick" not in log.endings:
            time.sleep(0.01)
        endless = next(one for one, given in pool._busy.items() if given.key == "endless")
        endless._process.send_signal(signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    result = pool.run(jobs, monitor=log)
    assert log.endings["endless"] == Ending("gone", "signal 9")
    assert result.finished == {"quick"}


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_where_no_process_starts_it_is_told_of_no_job(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    log = Log()
    result = WorkerPool(PoolSettings()).run([job("a", "chat")], monitor=log)
    assert log.endings["none"].kind == ("gone" if executable == "/bin/false" else "crashed")
    assert result.unfinished == {"a"}


def test_an_exception_of_the_monitor_ends_all_processes() -> None:
    pool = WorkerPool(PoolSettings(processes=2))
    started = []

    class Raising(PoolMonitor):
        def epoch(self, job: Job, done: int, of: int) -> None:
            started.extend(pool._workers)
            raise InputError("enough")

    with pytest.raises(InputError, match="enough"):
        pool.run([job("a", "run_until_stopped"), job("b", "chat")], monitor=Raising())
    assert [worker._process.poll() for worker in started] == [-signal.SIGKILL] * 2


# -- what is begun, and until when ---------------------------------------------------------------


def test_processes_threads_and_gpus_are_as_asked(tmp_path: Path) -> None:
    jobs = [job(str(i), "record", file=str(tmp_path / str(i))) for i in range(4)]
    settings = PoolSettings(processes=2, threads=2, gpus=("3", "5"))
    assert WorkerPool(settings).run(jobs, monitor=Log()).unfinished == frozenset()
    found = [ast.literal_eval(path.read_text()) for path in tmp_path.iterdir()]
    assert {threads for _, threads, _ in found} == {2}
    by_process = {process: gpu for gpu, _, process in found}
    assert sorted(by_process.values()) in (["3", "5"], ["3"], ["5"])


def test_asked_to_stop_jobs_end_and_none_is_begun() -> None:
    pool = WorkerPool(PoolSettings())

    class Stopping(Log):
        def epoch(self, job: Job, done: int, of: int) -> None:
            super().epoch(job, done, of)
            if done == 3:
                pool.stop()

    log = Stopping()
    result = pool.run([job("a", "run_until_stopped"), job("b", "chat")], monitor=log)
    assert log.endings == {"a": Ending("stopped")}
    assert result.unfinished == {"a", "b"}


def test_after_the_deadline_there_is_a_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "GRACE", 0.3)
    pool = WorkerPool(PoolSettings())

    class Late(Log):
        """The deadline passes while a job is under way that does not mind."""

        def begun(self, job: Job) -> None:
            super().begun(job)
            pool._deadline = time.monotonic() + 0.3

    log = Late()
    jobs = [job("deaf", "run_until_stopped", deaf=True), job("b", "chat")]
    began = time.monotonic()
    result = pool.run(jobs, monitor=log, deadline=began + 600)
    assert time.monotonic() - began < 300
    assert log.begun_jobs == ["deaf"]
    assert log.endings == {}
    assert result.unfinished == {"deaf", "b"}


def test_a_deadline_may_be_far_away() -> None:
    log = Log()
    later = time.monotonic() + 60 * 1e12  # longer than any lock can wait
    assert WorkerPool(PoolSettings()).run([job("a", "chat")], monitor=log, deadline=later).finished


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    """Also where the parent is killed, and cannot tell them."""
    script = """
import os, sys
sys.path.insert(0, os.getcwd())
from flipguard.worker_pool import *
class Telling(PoolMonitor):
    def epoch(self, job, done, of):
        print(*(w._process.pid for w in pool._workers), flush=True)
pool = WorkerPool(PoolSettings())
pool.run(
    [Job(key="a", call="tests.worker_jobs:run_until_stopped", arguments={})], monitor=Telling()
)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 30
    while _is_alive(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _is_alive(child)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# -- the schedule --------------------------------------------------------------------------------


def test_the_first_job_whose_needs_are_met_is_next() -> None:
    jobs = [job("a", "", "b"), job("b", ""), job("c", "", "elsewhere"), job("d", "", "a c")]
    schedule = Schedule(jobs)
    taken = []
    while found := schedule.next():
        taken.append(found.key)
    assert taken == ["b", "c"]  # what no job makes is there already
    schedule.add_results(["b", "c"])
    found = schedule.next()
    assert found is not None
    assert found.key == "a"
    assert schedule.next() is None
    assert [lost.key for lost in schedule.drop_dependents(["a"])] == ["d"]


def test_a_job_may_make_several_results() -> None:
    both = Job(key="both", call="", arguments={}, makes=frozenset({"x", "y"}))
    jobs = [both, job("needs x", "", "x"), job("needs y", "", "y")]
    schedule = Schedule(jobs)
    assert schedule.next() is both
    assert schedule.next() is None
    schedule.add_results(["x"])
    assert [lost.key for lost in schedule.drop_dependents(["y"])] == ["needs y"]
    found = schedule.next()
    assert found is not None
    assert found.key == "needs x"
