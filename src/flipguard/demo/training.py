"""Training the runs of a plan, as many at once as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from flipguard.demo.plan import Task
from flipguard.errors import InputError

Told = Callable[[int, int], None]


def train_all(tasks: Sequence[Task], *, progress: Told) -> None:
    """Trains every run once what it needs is there; runs that are finished are left as they are."""
    _refuse_others(tasks)
    waiting, running = list(tasks), dict[Future[None], Task]()
    finished: set[str] = set()
    # Started anew and not forked, so that no thread of this process is copied halfway.
    own = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=_cores(), mp_context=own)
    try:
        while waiting or running:
            ready = [task for task in waiting if task.after <= finished]
            for task in ready[: _cores() - len(running)]:
                waiting.remove(task)
                running[pool.submit(_train, task.config, task.folder)] = task
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                try:
                    future.result()
                except BrokenProcessPool as problem:
                    raise InputError(
                        "Expected the training processes to live, but one of them was ended from "
                        "outside, perhaps for want of memory; run the demo again, which goes on "
                        "from what is finished."
                    ) from problem
                finished.add(running.pop(future).name)
                progress(len(finished), len(tasks))
    finally:
        # After a problem the others would go on for nothing.
        pool.shutdown(cancel_futures=True)


def _refuse_others(tasks: Sequence[Task]) -> None:
    """A folder may hold another demonstration, which is told before anything is trained."""
    from flipguard.training.checks import check_folder, completed

    for task in tasks:
        check_folder(task.folder, completed(task.config)[1], resume=True)


def _train(config: Any, folder: Path) -> None:
    from flipguard.training import train

    train(config, folder, resume=True, report=lambda _: None)


def _cores() -> int:
    return max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 1)
