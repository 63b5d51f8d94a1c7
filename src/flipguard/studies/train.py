"""Train the runs of a plan as jobs of a pool, and report their progress.

Nothing is lost by stopping: an unfinished run resumes from its checkpoint, and a finished one is
never trained again.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from flipguard.errors import InputError
from flipguard.runs.config import Seeds, as_dict
from flipguard.studies.run_graph import PlannedRun
from flipguard.training.checks import check_folder
from flipguard.training.jobs import adopt_job_for, train_job_for, train_several_job_for
from flipguard.worker_pool import Ending, Job, PoolMonitor, PoolSettings, WorkerPool

ProgressCallback = Callable[[int, int], None]
Finished = Callable[[Collection[Path]], None]
Group = tuple[PlannedRun, ...]  # trained by one job
# The share that must be done before progress is shown: earlier estimates include the start.
TELLING = 0.05
# The most runs in one network: more would fill a GPU, and would all end together and late.
MOST_FUSED = 16


def train_runs(
    nodes: Sequence[PlannedRun],
    settings: PoolSettings,
    *,
    fuse: bool = False,
    cost: Callable[[PlannedRun], float],
    deadline: float | None = None,
    progress: ProgressCallback = lambda _done, _total: None,
    finished: Finished = lambda _: None,
    report: Callable[[str], None] = lambda _: None,
) -> int:
    """Train every run that is not finished; return how many there were.

    They are started in this order as far as their needs allow. `finished` gets the folders of runs
    that have finished, while others are running. With `fuse`, runs without a method that differ
    only by seed become one network.

    If a run diverges, it is skipped with all runs that need it, and named at the end. Any other
    error, such as a full disk, would affect other runs too: no more runs are started, and the
    running ones are finished.
    At the deadline, by `time.monotonic`, all stop after their current epoch.
    """
    left = [node for node in nodes if not node.is_finished]
    for node in left:
        check_folder(node.folder, node.config, resume=True)
    if not left:
        return 0
    groups = _groups(left, max(len(settings.gpus), 1)) if fuse else [(node,) for node in left]
    jobs = [_job(group, cost, deadline) for group in groups]
    monitor = _StudyMonitor(jobs, groups, progress, finished, report)
    WorkerPool(settings).run(jobs, monitor=monitor, deadline=deadline)
    monitor.raise_problems()
    return len(left)


class _StudyMonitor(PoolMonitor):
    """Reports the progress of all runs, and collects what could not be trained."""

    def __init__(
        self,
        jobs: Sequence[Job],
        groups: Sequence[Group],
        progress: ProgressCallback,
        finished: Finished,
        report: Callable[[str], None],
    ) -> None:
        self._groups = {job.key: group for job, group in zip(jobs, groups, strict=True)}
        self._progress, self._tell_finished, self._report = progress, finished, report
        # Shares of the work, in milliseconds.
        self._units = {job.key: max(round(1000 * job.cost), 1) for job in jobs}
        self._share = dict.fromkeys(self._units, 0.0)  # of a job that is done
        self._total, self._done = sum(self._units.values()), 0.0
        self._under_way: set[str] = set()
        self._finished: set[Path] = set()  # and not reported yet
        self._diverged: list[str] = []
        self._failed: str | None = None

    def begun(self, job: Job) -> None:
        """Count a running job."""
        self._under_way.add(job.key)

    def epoch(self, job: Job, done: int, of: int) -> None:
        """Report the share that is done."""
        self._reach(job, done / of)

    def ended(self, job: Job | None, ending: Ending) -> None:
        """Keep what went wrong for the end."""
        if job is not None:
            self._under_way.discard(job.key)
            self._finished |= set(map(Path, self.made(job, ending)))
        if ending.kind == "finished" and job is not None:
            self._reach(job, 1.0)
        elif ending.kind == "diverged" and job is not None:
            lost = [node for node in self._groups[job.key] if not node.is_finished]
            self._diverged += [
                f"{_name(node)} could not be trained: {ending.text}" for node in lost
            ]
            self._report(f"{self._diverged[-1]} Runs that need it are skipped, others continue.")
            self._reach(job, 1.0)
        elif ending.kind != "stopped" and self._failed is None:
            self._failed = self._failure(job, ending)
            if self._under_way:
                self._report(f"{self._failed} Running jobs are finished first.")

    def made(self, job: Job, ending: Ending) -> Collection[str]:
        """Return its finished runs; in a group, those that did not diverge were trained alone."""
        if ending.kind == "diverged":
            return [str(node.folder) for node in self._groups[job.key] if node.is_finished]
        return super().made(job, ending)

    def skipped(self, job: Job) -> None:
        """Count it as done."""
        self._reach(job, 1.0)

    def meanwhile(self) -> None:
        """Report the runs that have finished."""
        if self._finished:
            self._tell_finished(frozenset(self._finished))
            self._finished.clear()

    def raise_problems(self) -> None:
        """Raise if a run could not be trained."""
        if self._failed is not None:
            raise InputError(self._failed)
        if self._diverged:
            others = len(self._diverged) - 1
            more = f" {others} other run{'s'[: others - 1]} diverged as well." if others else ""
            raise InputError(self._diverged[0] + more)

    def _reach(self, job: Job, share: float) -> None:
        self._done += self._units[job.key] * (share - self._share[job.key])
        self._share[job.key] = share
        if self._done >= TELLING * self._total:
            self._progress(min(round(self._done), self._total), self._total)

    def _failure(self, job: Job | None, ending: Ending) -> str:
        where = "A run" if job is None else _name(self._groups[job.key][0])
        if ending.kind == "refused":
            return f"{where} could not be trained: {ending.text}"
        if ending.kind == "gone":
            return (
                f"{where} could not be trained: its process was killed ({ending.text}), perhaps "
                "because memory ran out; run the same command again with fewer `processes=` to "
                "resume."
            )
        last = (ending.text.strip().splitlines() or [ending.kind])[-1]
        return f"{where} could not be trained ({last}); finished runs are kept."


def _job(group: Group, cost: Callable[[PlannedRun], float], deadline: float | None) -> Job:
    after = frozenset[Path]().union(*(node.after for node in group))
    total = sum(map(cost, group))
    if len(group) == 1:
        (node,) = group
        if node.adopted:
            return adopt_job_for(node.config, node.folder, cost=total)
        return train_job_for(node.config, node.folder, after=after, cost=total, deadline=deadline)
    runs = [(node.config, node.folder) for node in group]
    return train_several_job_for(runs, after=after, cost=total, deadline=deadline)


def _groups(nodes: Sequence[PlannedRun], gpus: int) -> list[Group]:
    """Return groups of runs that can be one network; each GPU gets a share of a large group."""
    alike: defaultdict[str, list[PlannedRun]] = defaultdict(list)
    for node in nodes:
        alike[_kind(node)].append(node)
    groups: list[Group] = []
    for some in alike.values():
        size = min(-(-len(some) // gpus), MOST_FUSED)
        groups += [tuple(some[at : at + size]) for at in range(0, len(some), size)]
    order = {node.folder: index for index, node in enumerate(nodes)}
    return sorted(groups, key=lambda group: order[group[0].folder])


def _kind(node: PlannedRun) -> str:
    """Return the same text for runs that can be one network: they differ only by their seeds."""
    config = node.config
    if node.adopted or config.method != "none" or config.old or config.fine_tune:
        return str(node.folder)  # a group of one
    return repr(as_dict(dataclasses.replace(config, seeds=Seeds())))


def _name(node: PlannedRun) -> str:
    """Return the name of a run in errors, with its folder."""
    return f"{node.name} ({node.folder})"
