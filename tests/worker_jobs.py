"""Jobs for the worker processes of `test_worker_pool.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flipguard.errors import DivergedError, InputError
from flipguard.worker_process import JobContext

# What looks like progress or like a message, but is neither.
CHATTER = (
    "epoch 7/9  task 1.000  test error 5.00 %  1,000 samples/s  10 MiB memory  3 s left",
    "  epoch 8/9",
    "finished",
    '{"ready": true}',
    '{"job": "chatty", "epoch": 7, "of": 9}',
    '{"job": "chatty", "ended": "stopped"}',
    '["line", "epoch 7/9"]',
    "{",
)


def chat(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Say all kinds of things by all ways, and report two epochs of three as messages."""
    context.epoch(1, 3)
    for line in CHATTER:
        print(line, flush=True)
        print(line, file=sys.stderr, flush=True)
        os.write(1, f"{line}\n".encode())
        subprocess.run([sys.executable, "-S", "-c", f"print({line!r})"], check=True)
        context.note(line)
    context.epoch(2, 3)
    return True


def record(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Write which GPU and how many threads it has, and the time."""
    import torch

    found = [os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads(), os.getpid()]
    Path(arguments["file"]).write_text(repr(found))
    return True


def end_badly(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Come to the end that is asked for."""
    how = arguments["how"]
    if how == "refused":
        raise InputError("Expected this, but got that.")
    if how == "diverged":
        raise DivergedError("Expected finite losses.")
    if how == "crashed":
        raise ZeroDivisionError("no use")
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def run_until_stopped(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Tell that it goes on until it is asked to stop; with `deaf`, go on even then."""
    for epoch in range(10_000):
        context.epoch(epoch, 10_000)
        if context.stop_requested() and not arguments.get("deaf"):
            return False
        time.sleep(0.02)
    return True
