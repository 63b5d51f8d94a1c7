"""One run in several processes: each takes its share of every batch, and the first one writes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from flipguard.errors import FlipguardError, InputError
from flipguard.training.config import Config, as_dict, from_dict
from flipguard.training.folder import Run
from flipguard.training.loop import Report

LINE, REFUSED, END = "line", "refused", "end"


def train_in_processes(
    fabric: Any, config: Config, out: Path, *, resume: bool, report: Report
) -> Run:
    """Starts the processes, passes on what they report, and waits for them."""
    from torch import multiprocessing
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    told = multiprocessing.get_context("spawn").SimpleQueue()
    refusals: list[str] = []

    def listen() -> None:
        while (said := told.get())[0] != END:
            if said[0] == LINE:
                report(said[1])
            else:
                refusals.append(said[1])

    listener = threading.Thread(target=listen)
    listener.start()
    problem: BaseException | None = None
    try:
        fabric.launch(_work, as_dict(config), out, resume, told)
    except (ProcessRaisedException, ProcessExitedException) as one:
        problem = one
    finally:
        told.put((END, ""))
        listener.join()
    if problem is not None:
        if not refusals:
            raise problem
        raise InputError(refusals[0]) from problem
    return Run.read(out)


def _work(fabric: Any, values: dict[str, Any], out: Path, resume: bool, told: Any) -> None:
    """What every process does; only the first one talks."""
    from flipguard.training.train import train_with

    def report(line: str) -> None:
        if fabric.is_global_zero:
            told.put((LINE, line))

    try:
        train_with(fabric, from_dict(values), out, resume=resume, report=report)
    except FlipguardError as problem:
        told.put((REFUSED, str(problem)))
        raise
