"""A worker process as its parent sees it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from flipguard.training import worker

GONE = "gone"
Said: TypeAlias = "tuple[Worker, str, str]"


class Worker:
    """Started at once; what it says goes to a queue, at last that it is gone and how.

    It ends with this process, and on Linux with the thread that started it.
    """

    def __init__(
        self,
        said: queue.SimpleQueue[Said],
        *,
        threads: int,
        environment: Mapping[str, str] | None = None,  # beside this process's own
    ) -> None:
        # Not forked, since other threads may hold locks here. -P: the script's folder is no place
        # to look for modules.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=None if environment is None else {**os.environ, **environment},
        )
        self._said = said
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self.tell({"path": [str(place) for place in sys.path], "threads": threads})

    def tell(self, job: Mapping[str, Any]) -> None:
        """What it is to do next."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone, which is said elsewhere
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Asks it to end the epoch under way, and to keep it."""
        self.tell({worker.STOP: True})

    def end(self) -> None:
        """Ends it, whatever it does; files are replaced as a whole, so that none is left half."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        # Processes that it had started itself, to read images, may hold the other end for a while.
        self._reader.join(timeout=1.0)
        if not self._reader.is_alive():
            self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, text = json.loads(line)
            self._said.put((self, kind, text))
        code = self._process.wait()
        self._said.put((self, GONE, f"signal {-code}" if code < 0 else f"code {code}"))
