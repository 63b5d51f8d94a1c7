"""Runs `python -m flipguard` many times without starting Python and importing torch each time.

    PYTHONPATH=CHECKOUT/src python -P server.py CHECKOUT

Imports other libraries once, but nothing of flipguard. For each job, a line of JSON on standard
input, it forks, and the child runs the module as `python -m` does. Polars is not imported before
the fork, because its threads would not survive it.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("torch", "torch._dynamo", "lightning.fabric", "safetensors.torch", "torchvision"),
    *("numpy", "scipy.stats", "scipy.special", "scipy.optimize", "rich.console", "rich.table"),
    *("typer", "jinja2", "markupsafe", "PIL.Image"),
)


def main() -> None:
    found = importlib.util.find_spec("flipguard")
    source = Path(sys.argv[1]).resolve() / "src"
    if found is None or not Path(str(found.origin)).resolve().is_relative_to(source):
        raise SystemExit(f"Expected flipguard to be imported from {source}, but got {found}.")
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answers.close()
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _run(job: dict[str, Any]) -> None:
    """Run one command and end the process with its exit code."""
    signal.alarm(job["limit"])
    os.chdir(job["folder"])
    for number, (path, flags) in enumerate(
        [
            (os.devnull, os.O_RDONLY),
            (job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (job["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ]
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = ["flipguard", *job["arguments"]]
    code = 0
    try:
        runpy.run_module("flipguard", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
