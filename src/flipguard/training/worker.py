"""A process that does jobs for another one: the main script of a worker process.

It is run as a script, by its path, and not as a module: before torch is imported, which takes
seconds, its life is already tied to that of its parent. It imports nothing of the parent's own
script, so a script without a guard around its main part can use worker processes as well.

It reads one JSON object per line from standard input: first where modules are found, then jobs.
A job names a function as ``module:name`` and its arguments. The function is also given `report`,
which sends a line of text, and `stops`, which tells whether the parent has asked to stop; it
returns whether it finished. Answers go to what was standard output. When the input ends, the
process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

READY, LINE, ENDED, FAILED = "ready", "line", "ended", "failed"
REFUSED, DIVERGED = "refused", "diverged"
FINISHED, STOPPED = "finished", "stopped"  # how it ended; stopped: time was up
STOP = "stop"  # what it is told amid a job


def main() -> None:
    """Answers until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    _die_with_parent()
    answer = _Answers()
    told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(told, stop), daemon=True).start()
    settings = told.get()
    # Where the caller finds its own modules, so that a factory in one of them is found here.
    sys.path[:] = settings["path"]
    try:
        import torch

        from flipguard.errors import DivergedError, FlipguardError

        torch.set_num_threads(settings["threads"])
        answer(READY)
        while True:
            job = told.get()
            try:
                finished = _function(job["call"])(
                    job["arguments"], report=partial(answer, LINE), stops=stop.is_set
                )
                answer(ENDED, FINISHED if finished else STOPPED)
            except DivergedError as problem:
                answer(DIVERGED, str(problem))
            except FlipguardError as problem:
                answer(REFUSED, str(problem))
    except Exception:
        answer(FAILED, traceback.format_exc())


class _Answers:
    """Lines to whoever started this; what a model prints goes to the standard error instead."""

    def __init__(self) -> None:
        self._to = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __call__(self, kind: str, said: str = "") -> None:
        try:
            self._to.write(json.dumps([kind, said]) + "\n")
            self._to.flush()
        except OSError:
            os._exit(1)  # nobody is there


def _function(call: str) -> Callable[..., bool]:
    module, _, name = call.partition(":")
    found: Callable[..., bool] = getattr(importlib.import_module(module), name)
    return found


def _listen(told: queue.SimpleQueue[dict[str, Any]], stop: threading.Event) -> None:
    """Passes on what is told. An end means that nobody waits any more, or that the caller died.

    Then it must not go on: a run that is resumed would be written by two.
    """
    for line in sys.stdin:
        said = json.loads(line)
        if STOP in said:
            stop.set()
        else:
            told.put(said)
    os._exit(0)


def _die_with_parent() -> None:
    """On Linux the kernel ends it together with its parent, whatever it is doing."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    main()
