"""Work in a child process, which may be killed without harm to the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def finding_tests() -> dict[str, str]:
    """The environment of a process that imports `tests`, and `flipguard` from where we do."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def script(module: str, *arguments: str | Path) -> str:
    """What a script that forks printed. It sees no GPU: torch does not fork where it saw one."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def forked(work: Callable[[], object]) -> int:
    """The number of a child that does the work, and ends with 1 if that fails."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as problem:
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def was_killed(work: Callable[[], object], *, after: float | None = None) -> bool:
    """Whether the child that does the work was killed, after so many seconds or by itself.

    If it was not, it must have ended well.
    """
    child = forked(work)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the run failed"
    return False
