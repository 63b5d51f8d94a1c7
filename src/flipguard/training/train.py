"""Train a run: from its configuration to its folder."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from flipguard.data import DataSet, TextSplit
from flipguard.errors import InputError, listed, printable
from flipguard.locks import InUseError, alone_in, tidy
from flipguard.methods import Method, Objective
from flipguard.models import checkpoint_blocks
from flipguard.models.code import allowing_code
from flipguard.references import Reference
from flipguard.run_document import RUN
from flipguard.runs.config import Config, as_dict, from_run
from flipguard.runs.folder import (
    CHECKPOINT,
    Run,
    begun_or_nothing,
    check_place,
    forget,
    is_whole,
    write_lines,
)
from flipguard.runs.history import HISTORY
from flipguard.training.batches import EpochBatches, calibrates, check_tokens, data_of
from flipguard.training.checkpoint import CheckpointStore, Progress, load_ensemble, state_digest
from flipguard.training.checks import (
    check_batches,
    check_calibration,
    check_data,
    check_folder,
    check_model,
    check_needs,
    check_numbers,
    complete_config,
    notes_on_calibration,
)
from flipguard.training.devices import (
    can_capture,
    captures_steps,
    compile_as,
    fabric_of,
    kernel_settings,
    to_device,
)
from flipguard.training.evaluate import classes_of
from flipguard.training.interrupting import poll_interrupt, time_is_up
from flipguard.training.jobs import JobMonitor, run_of_job
from flipguard.training.loop import loop
from flipguard.training.monitor import LineMonitor, Monitor, Report
from flipguard.training.outcomes import Stopped
from flipguard.training.processes import train_in_processes
from flipguard.training.record import changed_since, changes_since, model_facts, part_facts
from flipguard.training.run_setup import RunSetup, set_up_run
from flipguard.training.scoping import notes_on_validation
from flipguard.training.starting import as_seen, notes_on_preprocessing, preprocessing_for
from flipguard.training.stored_views import ViewPlan
from flipguard.training.strategies import plan_members
from flipguard.training.strategy import TrainingContext
from flipguard.training.teachers import load_teachers
from flipguard.training.trainee import StudentTrainee
from flipguard.worker_process import JobContext


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    report: Report = print,
    allow_code: bool = False,
) -> Run:
    """Train a run as its configuration says, and write it into a folder.

    `allow_code` is needed if its model, or that of an old run or guide, is one that a function
    makes (``python:``), which is called.
    """
    with allowing_code(allow_code):
        return train_with(None, config, out, resume=resume, monitor=LineMonitor(report))


def train_job(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Train the run of a job from `train_job_for`, in a worker process; return if it finished."""
    poll_interrupt(context.stop_requested)
    waits = arguments["waits"]
    config, folder = run_of_job(arguments, arguments["deadline"])
    monitor = JobMonitor(context)
    try:
        run = train_with(None, config, folder, resume=True, waits=waits, monitor=monitor)
        return run.finished
    except InUseError:
        if not waits:
            raise
        return False  # time was up while another process was training it


def train_with(
    fabric: Any,
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    waits: bool = False,
    monitor: Monitor,
) -> Run:
    """Train a run in the processes of a fabric, or in new ones if it is None.

    If another process writes to the folder, raise, or wait until the deadline if `waits` is set.
    """
    began, report = time.monotonic(), monitor.note
    check_place(out)
    # From Python, 1 may stand for 1.0, which would give the run another key.
    method, config = complete_config(from_run(as_dict(config)))
    check_numbers(config)
    if (run := _finished(config, out, resume=resume)) is not None:
        tidy(out)
        _explain_finished(run, report)
        return run
    old_runs = [Run.read(Path(folder)) for folder in config.old]
    check_needs(method, config, old_runs)
    if fabric is None:
        fabric = fabric_of(config.machine)
        if config.machine.processes > 1:
            # Raises here, before processes are started.
            _check_data(config, out, old_runs, data_of(config))
            return _in_processes(fabric, config, out, resume=resume, monitor=monitor)
    minutes = config.machine.minutes
    deadline = None if minutes is None else began + 60 * minutes
    with ExitStack() as stack:
        refused: InputError | None = None
        if fabric.is_global_zero:
            try:
                stops = partial(time_is_up, deadline) if waits else None
                stack.enter_context(alone_in(out, report=report, stops=stops))
                stack.enter_context(begun_or_nothing(out))
            except InputError as problem:
                refused = problem
        # Sent to the other processes, which would otherwise wait for the first one forever.
        if (refused := fabric.broadcast(refused)) is not None:
            raise refused
        # Another process may have trained it while this one waited for the lock.
        if (run := _finished(config, out, resume=resume)) is not None:
            return run
        data = as_seen(data_of(config), preprocessing_for(config))
        _check_data(config, out, old_runs, data)
        for note in [
            *notes_on_validation(config, data, old_runs),
            *notes_on_calibration(config, old_runs),
            *notes_on_preprocessing(config),
        ]:
            report(note)
        stack.enter_context(kernel_settings(config.machine, fabric.device))
        return _train_one(fabric, config, method, out, data, old_runs, deadline, monitor)


def _finished(config: Config, out: Path, *, resume: bool) -> Run | None:
    """Return the run in a folder if it is finished, else None; raise if it is another run."""
    run = Run.read(out) if (out / RUN).exists() else None
    if run is not None and "adopted" in run.document and not is_whole(run):
        # Training would begin with new weights.
        raise InputError(
            f"Expected a run to train, but {printable(str(out))} holds an adopted model without "
            "all of its files; adopt it again with `flipguard adopt`, or choose another `out=`."
        )
    check_folder(out, config, resume=resume)
    return run if run is not None and is_whole(run) else None


def _explain_finished(run: Run, report: Report) -> None:
    """Report that nothing is left to train, and what has changed since."""
    report(f"{run.folder} is finished; nothing to do")
    if changed := changed_since(run):
        report(
            f"the weights in {listed(changed)} (paths relative to it) have changed since it was "
            "trained with them; it stays as it is"
        )
    if earlier := changes_since(run):
        report(
            f"it was trained before a change of the method ({'; '.join(earlier)}), and stays as it "
            "is; train it into another folder to use the current method"
        )


def _check_data(config: Config, out: Path, old_runs: list[Run], data: DataSet) -> None:
    """Raise if the run cannot be trained on its data."""
    check_data(out, config, data)
    check_batches(config, data)
    check_calibration(config, data, old_runs)
    check_model(config, data)
    if isinstance(data.train, TextSplit):
        guides = [Run.read(Path(folder)) for folder in config.guides]
        check_tokens(config.model, [*old_runs, *guides], data.train.texts)


def _in_processes(fabric: Any, config: Config, out: Path, *, resume: bool, monitor: Monitor) -> Run:
    new = not (out / RUN).exists()
    try:
        return train_in_processes(
            fabric, config, out, train_one=train_with, resume=resume, monitor=monitor
        )
    except Exception:
        # The first process may have been killed before it removed the files that it had written.
        if new and not (out / CHECKPOINT).exists():
            with suppress(InputError), alone_in(out, report=monitor.note):
                forget(out)
        raise


def _train_one(
    fabric: Any,
    config: Config,
    method: Method,
    out: Path,
    data: DataSet,
    old_runs: list[Run],
    deadline: float | None,
    monitor: Monitor,
) -> Run:
    """Train the members if there are any, then the student, and write the results."""
    can_capture(config, fabric.device)  # raises, before any training, if the machine cannot
    setup = set_up_run(fabric, config, method, out, data, old_runs)
    if "start" in setup.facts:
        monitor.note(f"{config.model} {setup.facts['start']}")
    if method.needs(config.options).members is not None:
        plan = plan_members(config, out, data, old_runs, report=monitor.note)
        context = TrainingContext(
            fabric=fabric,
            train_one=train_with,
            deadline=deadline,
            # Lines: the members' epochs are not those of the run.
            monitor=LineMonitor(monitor.note),
        )
        if isinstance(plan.run(context), Stopped):
            return setup.write("stopped")
        members = plan.runs()
        setup.follow(members)
        if method.is_mean:
            return _finish_ensemble(setup, members)
        held_out = setup.context.held_out if calibrates(config) else None
        teachers = load_teachers(
            members, config, fabric, held_out, input_shape=setup.facts["data"]["input_shape"]
        )
        setup.context = dataclasses.replace(setup.context, members=teachers)
        views = setup.views
        if views and not _store_views(setup, views, members, teachers, deadline, monitor.note):
            return setup.write("stopped")
    ended = _train_student(setup, method.build(setup.context), deadline, monitor)
    return setup.write("stopped") if isinstance(ended, Stopped) else setup.finish(setup.student)


def _finish_ensemble(setup: RunSetup, runs: list[Run]) -> Run:
    """Finish a run whose result is the mean of its members."""
    if setup.config.guides:  # which may have several architectures
        setup.facts["parts"] = [part_facts(run) for run in runs]
    mean = to_device(load_ensemble(runs, setup.config.machine), setup.fabric.device)
    setup.facts |= model_facts(mean)
    setup.write("training")
    rates = {
        split: tracker.rates(mean, classes_of(mean))[0] for split, tracker in setup.trackers.items()
    }
    if setup.fabric.is_global_zero:
        row = {"epoch": setup.config.recipe.epochs, "losses": {}, **rates}
        write_lines(setup.out / HISTORY, [row])
    return setup.finish(mean)


def _store_views(
    setup: RunSetup,
    plan: ViewPlan,
    members: Sequence[Run],
    teachers: Callable[[], Reference],
    deadline: float | None,
    report: Report,
) -> bool:
    """Store the teachers' logits for the student; return False if time was up before the end."""
    kept = plan.stored(
        members,
        teachers,
        fabric=setup.fabric,
        material=setup.source,
        deadline=deadline,
        report=report,
    )
    if kept is None:
        return False
    views, setup.source, folder = kept
    setup.context = dataclasses.replace(setup.context, views=views)
    setup.facts["views"] = os.path.relpath(folder, setup.out)
    return True


def _train_student(
    setup: RunSetup, objective: Objective, deadline: float | None, monitor: Monitor
) -> Progress | Stopped:
    config, fabric, student = setup.config, setup.fabric, setup.student
    if config.machine.checkpointing:
        checkpoint_blocks(student)
    compile_as(config.machine, student)
    captured = captures_steps(config, objective, setup.source, fabric)
    setup.write("training")
    batches = EpochBatches(
        [setup.source],
        [config.seeds],
        config.recipe,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        views=objective.views,
    )
    return loop(
        # Modules that a method trains along with the student are made on the CPU.
        StudentTrainee(student, objective).to(fabric.device),
        batches,
        setup.trackers,
        CheckpointStore(
            setup.out,
            state_digest(config, setup.facts),
            save_seconds=config.machine.save_seconds,
            writes_history=fabric.is_global_zero,
        ),
        monitor,
        config=config,
        fabric=fabric,
        captured=captured,
        deadline=deadline,
    )
