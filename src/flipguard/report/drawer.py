"""Draw charts in a separate process, because V8 kills its process when memory runs out.

Run as a program, this file is that process. It reads one request per line and writes one answer
per line.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, TypeAlias

Drawer: TypeAlias = "subprocess.Popen[bytes]"

# By the id of the process that started it: after a fork, two processes must not share a drawer.
_running: dict[int, Drawer] = {}
_one_at_a_time = threading.Lock()
# One chart takes about a second. A process that needs longer than this hangs, and is killed.
SECONDS_PER_ANSWER = 120.0


def drawn(what: str, of: Any) -> Any:
    """Call a function of vl-convert in the drawing process and return its result."""
    from flipguard.errors import InputError

    with _one_at_a_time:
        drawer = _running.get(os.getpid()) or _started()
        answer = b""
        patience = threading.Timer(SECONDS_PER_ANSWER, drawer.kill)
        patience.start()
        try:
            with suppress(BrokenPipeError):
                _tell(drawer, json.dumps([what, of]))
                answer = _told(drawer)
        finally:
            patience.cancel()
            if not answer:  # the process died, or would give this answer to the next request
                _end(drawer)
    if not answer:
        raise InputError(
            "The charts of the page could not be drawn: the process that draws them died, probably "
            "because it ran out of memory or address space (`ulimit -v`). Allow more memory, or "
            "leave out the page."
        )
    value, problem = json.loads(answer)
    if problem is not None:
        raise ValueError(problem)
    return value


def _started() -> Drawer:
    # Run as a file, because `python -m` would import the whole package. It uses the same sys.path.
    places = os.pathsep.join(place for place in sys.path if place)
    drawer = subprocess.Popen(  # noqa: S603 (this file, by this Python)
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": places},
    )
    _running[os.getpid()] = drawer
    return drawer


def _tell(drawer: Drawer, text: str) -> None:
    if drawer.stdin is not None:
        drawer.stdin.write(text.encode() + b"\n")
        drawer.stdin.flush()


def _told(drawer: Drawer) -> bytes:
    return b"" if drawer.stdout is None else drawer.stdout.readline()


def _end(drawer: Drawer) -> None:
    _running.pop(os.getpid(), None)
    drawer.kill()
    for pipe in (drawer.stdin, drawer.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    drawer.wait()


@atexit.register
def _end_all() -> None:
    drawer = _running.get(os.getpid())
    if drawer is not None:
        _end(drawer)


def _serve() -> None:
    """Answer requests until the input ends."""
    import vl_convert

    for request in sys.stdin.buffer:
        what, of = json.loads(request)
        value, problem = None, None
        try:
            value = getattr(vl_convert, what)(of)
        except Exception as told:
            problem = f"{type(told).__name__}: {told}"
        sys.stdout.buffer.write(json.dumps([value, problem]).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
