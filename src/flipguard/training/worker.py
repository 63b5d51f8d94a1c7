"""A process that trains members for another: what it is told, one after the other.

It is run as a script, by its path, and not as a module: before torch is imported, which takes
seconds, it is already tied to the life of whoever started it. It imports nothing of the caller's
own script, so that a script without a guard around its main part can train side by side as well.

It is told on its standard input, a line each: first where modules are found, then members. It
answers on what was its standard output. Told to stop, it ends the epoch under way, and keeps it.
When the input ends, so does it, at once.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

READY, LINE, ENDED, FAILED = "ready", "line", "ended", "failed"
REFUSED, DIVERGED = "refused", "diverged"
FINISHED, STOPPED = "finished", "stopped"  # how it ended; stopped: time was up
STOP = "stop"  # what it is told amid a member


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
        from flipguard.training.config import from_dict
        from flipguard.training.interrupting import ask_elsewhere
        from flipguard.training.lock import InUseError
        from flipguard.training.several import train_several
        from flipguard.training.train import train_with

        torch.set_num_threads(settings["threads"])
        ask_elsewhere(stop.is_set)
        answer(READY)
        while True:
            job = told.get()
            waits = job.get("waits", False)
            try:
                if "together" in job:  # several runs, each with a configuration and a folder
                    in_time = train_several(
                        [from_dict(one["config"]) for one in job["together"]],
                        [Path(one["folder"]) for one in job["together"]],
                        report=lambda line: answer(LINE, line),
                    )
                    answer(ENDED, FINISHED if in_time else STOPPED)
                    continue
                run = train_with(
                    None,
                    from_dict(job["config"]),
                    Path(job["folder"]),
                    resume=True,
                    waits=waits,
                    report=lambda line: answer(LINE, line),
                )
                answer(ENDED, run.status)
            except InUseError as problem:
                if waits:  # time was up before another process had trained it
                    answer(ENDED, STOPPED)
                else:
                    answer(REFUSED, str(problem))
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
