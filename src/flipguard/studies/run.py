"""Run a job: train the missing runs in worker processes, measure them, and write results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flipguard.errors import InputError
from flipguard.locks import alone_in
from flipguard.studies.collect import Updates, collect_rows, differences, setting_of
from flipguard.studies.costs import trained_seconds
from flipguard.studies.job import StudyJob
from flipguard.studies.merge_seeds import merge_with_existing
from flipguard.studies.plan import StudyPlan
from flipguard.studies.results import Result, read_result, result_facts, result_path, write_result
from flipguard.studies.train import ProgressCallback, train_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One result for each study whose runs are all finished, and the studies that lack runs."""

    results: tuple[Result, ...]
    missing: tuple[str, ...]  # studies that still lack runs
    failed: str | None = None  # why a run could not be trained


def run_studies(
    task: StudyJob,
    *,
    command: str,
    minutes: float | None = None,
    progress: ProgressCallback = lambda _done, _total: None,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Train missing runs, for at most some minutes, and write the results.

    A study's result is written as soon as its runs are finished, while others are trained.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    failed = None
    writing = _Writing(task, command, report)
    with alone_in(task.out, report=report):
        writing.go_on(())
        try:
            train_runs(
                task.nodes,
                task.pool,
                fuse=task.fuse,
                cost=task.seconds_of,
                deadline=deadline,
                progress=progress,
                finished=writing.go_on,
                report=report,
            )
        except InputError as problem:
            # The caller raises it, after complete results are written.
            failed = str(problem)
        not_written = writing.end()
    written = writing.results
    return Outcome(
        results=tuple(written[plan.study.id] for plan in task.plans if plan.study.id in written),
        missing=tuple(plan.study.id for plan in task.plans if plan.study.id not in written),
        failed=failed or not_written,
    )


class _Writing:
    """Measures and writes each study when all of its runs are finished."""

    def __init__(self, task: StudyJob, command: str, report: Callable[[str], None]) -> None:
        self.results: dict[str, Result] = {}
        self._task, self._command, self._report = task, command, report
        self._measured: Updates = {}
        there = {node.folder for node in task.nodes if node.is_finished}
        # The unfinished runs of every study; studies without any were trained before.
        self._open = {p.study.id: {n.folder for n in p.nodes} - there for p in task.plans}
        self._trained = {study for study, folders in self._open.items() if folders}
        self._tried: set[str] = set()

    def go_on(self, finished: Collection[Path]) -> None:
        """Write the studies that these runs complete, or that were complete before."""
        for plan in self._task.plans:
            study = plan.study.id
            self._open[study] -= set(finished)
            if self._open[study] or study in self._tried:
                continue
            self._tried.add(study)
            # An error must not stop the training of other studies: `end` tries again and reports.
            with suppress(Exception):
                self._write(plan)

    def end(self) -> str | None:
        """Write all complete studies not written yet; return why one could not be written."""
        problems: list[Exception] = []
        for plan in self._task.plans:
            done = plan.study.id in self.results
            if not done and all(node.is_finished for node in plan.nodes):
                try:
                    self._write(plan)
                except Exception as problem:  # the others are still written
                    problems.append(problem)
        for found in problems:
            if not isinstance(found, InputError):
                raise found
        return str(problems[0]) if problems else None

    def _write(self, plan: StudyPlan) -> None:
        task = self._task
        processes = _processes(task, plan, trained=plan.study.id in self._trained)
        result = Result(
            study=plan.study,
            scale=plan.scale.name,
            given=plan.scale.given_without_paths,
            seeds=plan.seeds,
            rows=collect_rows(plan, self._measured),
            facts=result_facts(
                task.device,
                self._command,
                differences=differences(plan),
                setting=setting_of(plan),
                runs=len(plan.nodes),
                processes=processes,
                seconds=sum(trained_seconds(node.folder) for node in plan.nodes),
            ),
        )
        path = result_path(task.out, result.study.id, result.scale)
        joined = merge_with_existing(path, result, plan)
        write_result(joined.result, path)
        if joined.note is not None:
            self._report(f"{result.study.id} {joined.note}")
        self.results[plan.study.id] = joined.result


def _processes(task: StudyJob, plan: StudyPlan, *, trained: bool) -> int | None:
    """Return how many runs shared the device, from this call or from an earlier result."""
    if trained:
        return min(task.pool.processes, len(plan.nodes))
    path = result_path(task.out, plan.study.id, plan.scale.name)
    try:
        before = read_result(path, plan.study)
    except InputError:
        return None
    noted = before.facts.get("processes") if set(plan.seeds) <= set(before.seeds) else None
    return noted if isinstance(noted, int) else None
