"""Train the runs of the demo, as many at once as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flipguard.demo.plan import Task
from flipguard.errors import InputError
from flipguard.worker_pool import Ending, Job, PoolMonitor, PoolSettings, WorkerPool

ProgressCallback = Callable[[int, int], None]


def train_all(tasks: Sequence[Task], *, progress: ProgressCallback) -> None:
    """Train every run after the runs that it needs; finished runs are left as they are."""
    from flipguard.training.devices import cores
    from flipguard.training.jobs import train_job_for

    _refuse_others(tasks)
    folders = {task.name: task.folder for task in tasks}
    jobs = [
        train_job_for(task.config, task.folder, after=[folders[name] for name in task.after])
        for task in tasks
    ]
    monitor = _DemoMonitor(len(tasks), progress)
    WorkerPool(PoolSettings(processes=cores())).run(jobs, monitor=monitor)
    if monitor.problem is not None:
        raise monitor.problem


class _DemoMonitor(PoolMonitor):
    """Counts finished runs, and keeps the first problem until what is under way is finished."""

    def __init__(self, count: int, progress: ProgressCallback) -> None:
        self.problem: Exception | None = None
        self._finished, self._count, self._progress = 0, count, progress

    def ended(self, job: Job | None, ending: Ending) -> None:
        if ending.kind == "finished":
            self._finished += 1
            self._progress(self._finished, self._count)
        elif self.problem is None:
            self.problem = _problem(job, ending)


def _problem(job: Job | None, ending: Ending) -> Exception:
    if ending.kind == "crashed":
        return RuntimeError(
            f"In the process of {'no run' if job is None else job.key}:\n{ending.text}"
        )
    if ending.kind == "gone":
        return InputError(
            "Expected the training processes to finish, but one of them was killed, perhaps "
            "because memory ran out; run the demo again, which goes on from what is finished."
        )
    return InputError(ending.text)


def _refuse_others(tasks: Sequence[Task]) -> None:
    """Refuse a folder that holds runs of another demo, before anything is trained."""
    from flipguard.training.checks import check_folder, completed

    for task in tasks:
        check_folder(task.folder, completed(task.config)[1], resume=True)
