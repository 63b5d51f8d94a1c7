"""Plan several studies as one job: all their runs, each once, their costs, and their data."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.data import load_data
from flipguard.data.dataset import DataSet
from flipguard.data.readers import AbsentError
from flipguard.errors import InputError, listed
from flipguard.formatting import format_seconds
from flipguard.runs.scope import Scope
from flipguard.studies.costs import Costs, time_models
from flipguard.studies.plan import NotAtScaleError, StudyPlan, plan_study
from flipguard.studies.read_study import studies, study_of
from flipguard.studies.results import check_out
from flipguard.studies.run_graph import RUNS, SEEDS_A_GENERATION, PlannedRun
from flipguard.studies.scales import Scale, scale_of
from flipguard.studies.study import Study
from flipguard.training.checks import check_data, check_numbers
from flipguard.training.devices import cores
from flipguard.training.members import FOLDER
from flipguard.training.scoping import scoped
from flipguard.worker_pool import PoolSettings

ALL = "all"
"""Instead of names: every study that a scale allows."""

# Small nets leave room on a GPU; more than two processes may be faster (`processes`).
PROCESSES_A_GPU = 2
UNKNOWN_SECONDS = 60.0
TIME_THEM = (
    "`plan_only=True, timed=True` times a few steps of each model here and estimates the total"
)


def check_data_of(nodes: Sequence[PlannedRun]) -> None:
    """Raise if data are missing, or differ from those of runs started before.

    If all runs are finished, their data may be missing.
    """
    by_data: dict[tuple[str, str | None], list[PlannedRun]] = {}
    for node in nodes:
        by_data.setdefault((node.config.data, node.config.data_root), []).append(node)
    for (name, root), of_data in by_data.items():
        try:
            data = load_data(name, root=None if root is None else Path(root))
        except InputError:
            if all(node.is_finished for node in of_data):
                continue
            raise
        seen: dict[Scope, DataSet] = {}
        for node in of_data:
            scope = node.config.scope
            if scope not in seen:
                seen[scope] = scoped(data, scope)
            check_data(node.folder, node.config, seen[scope])


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """Plans of studies, and the pool of processes that trains all of their runs."""

    plans: tuple[StudyPlan, ...]
    nodes: tuple[PlannedRun, ...]  # of all plans, each once; those of the first plan first
    costs: Mapping[Path, Costs]  # by the run's folder, because papers may use different nets
    pool: PoolSettings
    fuse: bool  # runs without a method that differ only by seed become one network
    out: Path
    device: str
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # studies, and why
    no_data: str | None = None  # why the runs cannot be trained here: their data are missing

    @property
    def scale(self) -> Scale:
        """The scale of all plans."""
        return self.plans[0].scale

    @property
    def left(self) -> tuple[PlannedRun, ...]:
        """The runs that are still to be trained."""
        return tuple(node for node in self.nodes if not node.is_finished)

    def seconds_of(self, node: PlannedRun) -> float:
        """Return the seconds that a run takes, or a default if they are unknown."""
        return self.costs[node.folder].seconds(node) or UNKNOWN_SECONDS

    def seconds(self, nodes: Sequence[PlannedRun]) -> float:
        """Return the seconds that runs take with all processes."""
        at_once = max(len(self.pool.gpus), 1)
        if self.device == "cpu":
            at_once = max(min(self.pool.processes, cores()), 1)
        return sum(map(self.seconds_of, nodes)) / at_once


def _check_flags(numbers: Mapping[str, int | None], *, first_seed: int, fuse: str) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"Expected `{name}=` to be at least 1, but got {value}.")
    if first_seed < 0:
        raise InputError(f"Expected `first_seed=` to be at least 0, but got {first_seed}.")
    if fuse not in ("auto", "on", "off"):
        raise InputError(f"Expected `fuse=` to be auto, on or off, but got {fuse!r}.")


def prepare_job(
    ids: Sequence[str],
    *,
    scale: str,
    out: Path,
    seeds: int | None = None,
    first_seed: int = 0,
    members: int | None = None,
    settings: Sequence[str] = (),
    processes: int | None = None,
    device: str = "auto",
    devices: str | None = None,
    fuse: str = "auto",
    plan_only: bool = False,
    timed: bool = False,
) -> StudyJob:
    """Return the job of some studies; raise on any bad input before training.

    With `plan_only`, the device may be missing, because nothing is trained. With `timed`, a few
    steps of each model are, to say how long all runs take.
    """
    chosen = (
        list(studies().values()) if ALL in ids else [study_of(one) for one in dict.fromkeys(ids)]
    )
    size = scale_of(scale)
    check_out(out)
    numbers = {"seeds": seeds, "members": members, "processes": processes}
    _check_flags(numbers, first_seed=first_seed, fuse=fuse)
    trains = timed or not plan_only
    kind, pool = _pool(device, devices, processes, needed=trains)
    if trains:
        _check_model(settings)
    machine = {"device": kind, "fuse": fuse, "threads": pool.threads, **size.precision_on(kind)}
    plans, left_out = _plans(
        chosen,
        size.set(settings),
        skips=ALL in ids,
        first_seed=first_seed,
        seeds=seeds,
        out=out,
        machine=machine,
        most_members=members,
    )
    nodes, costs = _merged(plans, out)
    no_data = _no_data_of(nodes, needed=trains)
    if timed:
        time_models(nodes, costs)
    return StudyJob(
        plans=tuple(plans),
        nodes=nodes,
        costs=costs,
        pool=pool,
        fuse=fuse == "on" or (fuse == "auto" and kind == "cuda"),
        out=out,
        device=kind,
        left_out=left_out,
        no_data=no_data,
    )


def _no_data_of(nodes: Sequence[PlannedRun], *, needed: bool) -> str | None:
    """Return why data are missing, or raise if they are needed; None if they are there."""
    try:
        check_data_of(nodes)
    except AbsentError as problem:
        if needed:
            raise
        return str(problem)
    return None


def _pool(
    device: str, devices: str | None, processes: int | None, *, needed: bool
) -> tuple[str, PoolSettings]:
    """Return the kind of device and the processes on it; it may be missing if not `needed`."""
    kind = _device(device, needed=needed)
    gpus = tuple(devices.split(",")) if devices else ()
    if gpus and (kind != "cuda" or not all(gpu.isdecimal() for gpu in gpus)):
        raise InputError(
            f"Expected `devices=` to be numbers of GPUs of this machine, such as 0,1, but got "
            f"{devices!r}."
        )
    if processes is None:
        processes = cores() if kind == "cpu" else PROCESSES_A_GPU * max(len(gpus), 1)
    return kind, PoolSettings(
        processes=processes,
        # On a GPU, work on the CPU is slow if processes compete for cores. On a CPU, the number of
        # threads changes the order of sums, so it must not depend on how many runs are trained at
        # once: a run with the same key would have other weights.
        threads=1 if kind == "cpu" else max(cores() // processes, 1),
        gpus=gpus,
    )


def _seeds(first: int, count: int) -> range:
    chosen = range(first, first + count)
    if chosen[-1] >= SEEDS_A_GENERATION:
        raise InputError(
            f"Expected seeds below {SEEDS_A_GENERATION}, because higher ones are used for old "
            f"models, but got {first} to {chosen[-1]}; choose a lower `first_seed=`, or fewer "
            "`seeds=`."
        )
    return chosen


def _plans(
    chosen: Sequence[Study],
    scale: Scale,
    *,
    skips: bool,
    first_seed: int,
    seeds: int | None,
    **settings: Any,
) -> tuple[list[StudyPlan], dict[str, str]]:
    """Return the plans of studies, and with `skips` why the scale does not allow others."""
    plans: list[StudyPlan] = []
    left_out: dict[str, str] = {}
    for study in chosen:
        count = scale.of_study(study.paper, study.id).seeds if seeds is None else seeds
        try:
            plan = plan_study(study, scale, seeds=_seeds(first_seed, count), **settings)
        except NotAtScaleError as problem:
            if not skips:
                raise
            left_out[study.id] = problem.why
            continue
        for node in plan.nodes:
            check_numbers(node.config)
        plans.append(plan)
    if not plans:
        raise InputError(
            f"Expected a scale at which there is a study, but {scale.name} has none; choose "
            "another `scale=`."
        )
    return plans, left_out


def _merged(
    plans: Sequence[StudyPlan], out: Path
) -> tuple[tuple[PlannedRun, ...], dict[Path, Costs]]:
    """Return the runs of all plans, each once, and their costs."""
    first = Costs.of(plans[0].scale, [out / RUNS, out / RUNS / FOLDER])
    nodes: dict[Path, PlannedRun] = {}
    costs: dict[Path, Costs] = {}
    for plan in plans:
        of_plan = dataclasses.replace(first, scale=plan.scale)
        for node in plan.nodes:
            if node.folder not in nodes:
                nodes[node.folder], costs[node.folder] = node, of_plan
    return tuple(nodes.values()), costs


def plan_rows(task: StudyJob) -> Iterator[tuple[str, str, int, int, str, str]]:
    """Yield method, model, number of runs, finished ones, time per run, and total time."""
    runs: Counter[tuple[str, str]] = Counter()
    left: dict[tuple[str, str], list[PlannedRun]] = defaultdict(list)
    for node in task.nodes:
        kind = ("adopted" if node.adopted else node.config.method, node.config.model)
        runs[kind] += 1
        if not node.is_finished:
            left[kind].append(node)
    for kind, count in runs.items():
        todo = left[kind]
        known = [task.costs[node.folder].seconds(node) for node in todo]
        total = sum(seconds for seconds in known if seconds is not None)
        each = format_seconds(total / len(todo)) if todo and None not in known else "?"
        of_all = "?" if None in known else format_seconds(total)
        yield (*kind, count, count - len(todo), each if todo else "", of_all)


def plan_summary(task: StudyJob) -> str:
    """Return a sentence about how many runs are left, and how long they should take."""
    nodes, left = task.nodes, task.left
    there = len(nodes) - len(left)
    text = f"{len(nodes)} runs, {there} of them finished"
    if not left:
        return f"{text}: nothing to train."
    processes = task.pool.processes
    with_what = f"{processes} process{'es' * (processes != 1)} on {task.device}"
    known = [node for node in left if task.costs[node.folder].seconds(node) is not None]
    timed = sum(task.costs[node.folder].timed(node) for node in known)
    guessed = sum(task.costs[node.folder].guessed(node) for node in known)
    timed_on = task.scale.timed_on.removesuffix(", guessed")
    about = format_seconds(task.seconds(known))
    advice = f"; {'with the data, ' if task.no_data else ''}{TIME_THEM}"
    if len(known) < len(left):
        rest = f"about {about} with {with_what} for {len(known)} of them, and for the others "
        return f"{text}: {rest if known else ''}an unknown time{advice}."
    if guessed and not timed and "CPU" not in timed_on and task.device == "cpu":
        return (
            f"{text}: about {about} on {timed_on}; with {with_what} far longer, for an unknown "
            f"time{advice}."
        )
    basis = (
        "timed here, by similar runs or a few steps"
        if not guessed
        else f"a guess, for {timed_on}"
        if not timed
        else f"{timed} of them timed here, the others guessed"
    )
    return f"{text}: about {about} with {with_what} ({basis})."


def _check_model(settings: Sequence[str]) -> None:
    """Raise if the folder of the setting `model` has no model, before a library does in a run."""
    for setting in settings:
        name, _, folder = setting.partition("=")
        if name == "model" and folder and not (Path(folder) / "config.json").is_file():
            raise InputError(
                "Expected model in `settings=` to be a folder with a pretrained model of "
                f"Transformers, but {listed([folder])} has no config.json; name one that has its "
                "configuration, weights and tokenizer."
            )


def _device(given: str, *, needed: bool) -> str:
    import torch

    if given == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if given == "cuda" and needed and not torch.cuda.is_available():
        raise InputError("Expected a GPU for `device='cuda'`, but there is none here; use cpu.")
    if given not in ("cpu", "cuda"):
        raise InputError(f"Expected `device=` to be auto, cpu or cuda, but got {given!r}.")
    return given
