"""Train the runs of the demo, as many at once as there are cores."""

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
    """Train every run after the runs that it needs; finished runs are left as they are."""
    _refuse_others(tasks)
    waiting, running = list(tasks), dict[Future[None], Task]()
    finished: set[str] = set()
    # Spawned and not forked: a fork would copy threads of this process in any state.
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
                        "Expected the training processes to finish, but one of them was killed, "
                        "perhaps because memory ran out; run the demo again, which goes on "
                        "from what is finished."
                    ) from problem
                finished.add(running.pop(future).name)
                progress(len(finished), len(tasks))
    finally:
        # After an error the other runs would be trained in vain.
        pool.shutdown(cancel_futures=True)


def _refuse_others(tasks: Sequence[Task]) -> None:
    """Refuse a folder that holds runs of another demo, before anything is trained."""
    from flipguard.training.checks import check_folder, completed

    for task in tasks:
        check_folder(task.folder, completed(task.config)[1], resume=True)


def _train(config: Any, folder: Path) -> None:
    from flipguard.training import train

    train(config, folder, resume=True, report=lambda _: None)


def _cores() -> int:
    return max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 1)
