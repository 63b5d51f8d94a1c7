"""The main script of a worker process, which does the jobs that its parent process sends.

It is started by its path and not as a module, so that the process is set to end together with its
parent before torch is imported, which takes seconds. It does not import the parent's main script,
so a script without an ``if __name__ == "__main__"`` guard can use worker processes as well.

It knows nothing of training. It reads one JSON object per line from standard input:

- first the paths of modules and the number of threads: ``{"path": [...], "threads": 1}``;
- then jobs: ``{"job": "k", "call": "module:function", "arguments": {...}}``;
- at any time: ``{"stop": true}``.

The function gets the arguments and a `JobContext`, and returns whether it finished. The answers go
to the original standard output, also one JSON object per line:

- ``{"ready": true}`` when the first job can be sent;
- during a job, ``{"job": "k", "epoch": 3, "of": 30}`` and ``{"job": "k", "note": "…"}``;
- at the end of a job, one of ``{"job": "k", "ended": "finished"}`` or ``"stopped"``,
  ``{"job": "k", "refused": "…"}``, ``{"job": "k", "diverged": "…"}`` and
  ``{"job": "k", "crashed": "…"}``, which holds a traceback and is the last message of the process.

Everything that a job prints goes to standard error. When the input ends, so does the process.
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
from collections.abc import Callable, Mapping
from typing import Any


class JobContext:
    """Sends the progress of a job to the parent process, and tells whether to stop."""

    def __init__(
        self, key: str, send: Callable[..., None], stop_requested: Callable[[], bool]
    ) -> None:
        self._key, self._send = key, send
        self.stop_requested = stop_requested

    def note(self, text: str) -> None:
        """Send a sentence for people."""
        self._send(job=self._key, note=text)

    def epoch(self, done: int, of: int) -> None:
        """Send the number of finished epochs."""
        self._send(job=self._key, epoch=done, of=of)


def run_worker() -> None:
    """Do jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C does
    _die_with_parent()
    send = _Messages()
    received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(received, stop), daemon=True).start()
    settings = received.get()
    # The parent's module paths, so that a model factory in one of its modules is found.
    sys.path[:] = settings["path"]
    key: str | None = None
    try:
        import torch

        torch.set_num_threads(settings["threads"])
        send(ready=True)
        while True:
            job = received.get()
            key = job["job"]
            send(job=key, **_ending(job, JobContext(job["job"], send, stop.is_set)))
            key = None
    except Exception:
        send(job=key, crashed=traceback.format_exc())


def _ending(job: Mapping[str, Any], context: JobContext) -> dict[str, str]:
    """Do a job, and return how it ended."""
    from flipguard.errors import DivergedError, FlipguardError

    module, _, name = job["call"].partition(":")
    try:
        function: Callable[..., bool] = getattr(importlib.import_module(module), name)
        return {"ended": "finished" if function(job["arguments"], context) else "stopped"}
    except DivergedError as problem:
        return {"diverged": str(problem)}
    except FlipguardError as problem:
        return {"refused": str(problem)}


class _Messages:
    """Writes messages to the original standard output; from now on, prints go to standard error."""

    def __init__(self) -> None:
        self._to = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __call__(self, **message: Any) -> None:
        try:
            self._to.write(json.dumps(message) + "\n")
            self._to.flush()
        except OSError:
            os._exit(1)  # the parent has ended


def _listen(received: queue.SimpleQueue[dict[str, Any]], stop: threading.Event) -> None:
    """Receive messages until the input ends, then exit.

    The input ends when the parent closes it or dies. A job must not continue then, because two
    processes would write to a run that is resumed.
    """
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            stop.set()
        else:
            received.put(message)
    os._exit(0)


def _die_with_parent() -> None:
    """On Linux, ask the kernel to end this process together with its parent."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    run_worker()
