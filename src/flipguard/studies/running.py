"""A study from its name to its result: plan, train what is missing, measure, write."""

from __future__ import annotations

import fcntl
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.errors import InputError
from flipguard.studies.collect import collected
from flipguard.studies.costs import Costs, in_words, trained_seconds
from flipguard.studies.differences import differences
from flipguard.studies.executor import Crew, Told, train_all
from flipguard.studies.graph import RUNS, Node, Plan, plan_of
from flipguard.studies.reading import study_of
from flipguard.studies.results import Result, facts_of, result_path, write_result
from flipguard.studies.scales import scale_of
from flipguard.training.devices import cores
from flipguard.training.members import FOLDER

# Small nets leave room on a GPU; more than two processes are worth a try, by `--processes`.
PROCESSES_A_GPU = 2
UNKNOWN_SECONDS = 60.0
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A plan, and with what it is carried out."""

    plan: Plan
    crew: Crew
    costs: Costs
    out: Path
    device: str

    @property
    def left(self) -> tuple[Node, ...]:
        """The runs that are still to be trained."""
        return tuple(node for node in self.plan.nodes if not node.is_finished)

    def seconds(self, nodes: Sequence[Node]) -> float:
        """How long runs take, all processes at work."""
        each = [self.costs.seconds(node) or UNKNOWN_SECONDS for node in nodes]
        at_once = max(len(self.crew.devices), 1)
        if self.device == "cpu":
            at_once = max(min(self.crew.processes, cores()), 1)
        return sum(each) / at_once


def prepared(
    id: str,
    *,
    scale: str,
    out: Path,
    seeds: int | None = None,
    members: int | None = None,
    settings: Sequence[str] = (),
    processes: int | None = None,
    device: str = "auto",
    devices: str | None = None,
    fuse: str = "auto",
) -> Task:
    """All that can be refused is refused here, before anything is trained."""
    study, size = study_of(id), scale_of(scale)
    numbers = {"--seeds": seeds, "--members": members, "--processes": processes}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"Expected `{name}` to be from 1 on, but got {value}.")
    if fuse not in ("auto", "on", "off"):
        raise InputError(f"Expected `--fuse` to be auto, on or off, but got {fuse!r}.")
    kind = _device(device)
    gpus = tuple(devices.split(",")) if devices else ()
    if gpus and (kind != "cuda" or not all(gpu.isdecimal() for gpu in gpus)):
        raise InputError(
            f"Expected `--devices` to be numbers of GPUs that are here, such as 0,1, but got "
            f"{devices!r}."
        )
    machine: dict[str, Any] = {"device": kind, "fuse": fuse}
    if kind == "cpu":
        machine["threads"] = 1
    else:
        machine["precision"] = size.precision
    plan = plan_of(
        study,
        size.set(settings),
        seeds=range(size.seeds if seeds is None else seeds),
        out=out,
        machine=machine,
        most_members=members,
    )
    if processes is None:
        processes = cores() if kind == "cpu" else PROCESSES_A_GPU * max(len(gpus), 1)
    crew = Crew(
        processes=processes,
        threads=1 if kind == "cpu" else max(cores() // processes, 1),
        devices=gpus,
        fuse=fuse == "on" or (fuse == "auto" and kind == "cuda"),
    )
    costs = Costs.of(plan.scale, [out / RUNS, out / RUNS / FOLDER])
    return Task(plan=plan, crew=crew, costs=costs, out=out, device=kind)


def run_study(
    task: Task,
    *,
    command: str,
    progress: Told = lambda _done, _total: None,
    report: Callable[[str], None] = lambda _: None,
) -> Result:
    """Trains what is missing, and writes and returns what came out."""
    with alone_in(task.out):
        train_all(
            task.plan.nodes,
            task.crew,
            cost=lambda node: task.costs.seconds(node) or UNKNOWN_SECONDS,
            progress=progress,
            report=report,
        )
    result = Result(
        study=task.plan.study,
        scale=task.plan.scale.name,
        given=task.plan.scale.given,
        seeds=task.plan.seeds,
        rows=collected(task.plan),
        facts=facts_of(
            task.device,
            command,
            differences=differences(task.plan),
            runs=len(task.plan.nodes),
            seconds=sum(trained_seconds(node.folder) for node in task.plan.nodes),
        ),
    )
    write_result(result, result_path(task.out, result.study.id, result.scale))
    return result


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Nobody else trains in a folder meanwhile: two would train the same runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("w")
    except OSError as problem:
        raise InputError(
            f"Expected to write to {out}, but could not ({problem.strerror}); choose another "
            "`--out`."
        ) from problem
    with file:
        try:
            # Given back by the system when this process ends, however it ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            raise InputError(
                f"Expected to be the only study that is run in {out}, but another one is; wait for "
                "it, whose runs are shared, or choose another `--out`."
            ) from problem
        yield


def plan_rows(task: Task) -> Iterator[tuple[str, str, int, int, str, str]]:
    """Runs by what they are: method, model, how many, how many are there, how long each and all."""
    runs: Counter[tuple[str, str]] = Counter()
    left: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in task.plan.nodes:
        kind = (node.config.method, node.config.model)
        runs[kind] += 1
        if not node.is_finished:
            left[kind].append(node)
    for kind, count in runs.items():
        todo = left[kind]
        known = [task.costs.seconds(node) for node in todo]
        total = sum(seconds for seconds in known if seconds is not None)
        each = in_words(total / len(todo)) if todo and None not in known else "?"
        yield (*kind, count, count - len(todo), each if todo else "", in_words(total))


def plan_summary(task: Task) -> str:
    """How much there is to do, and how long it should take."""
    nodes, left = task.plan.nodes, task.left
    there = len(nodes) - len(left)
    told = f"{len(nodes)} runs, {there} of them finished"
    if not left:
        return f"{told}: nothing to train."
    processes = task.crew.processes
    with_what = f"{processes} process{'es' * (processes != 1)} on {task.device}"
    measured = sum(task.costs.measured(node) for node in left)
    scale = task.plan.scale
    guess = f"a guess, for {scale.timed_on.removesuffix(', guessed')}"
    if "GPU" in scale.timed_on and task.device == "cpu":
        guess += ", and far more on a CPU"
    basis = (
        "timed by finished runs like them"
        if measured == len(left)
        else guess
        if not measured
        else f"{measured} of them timed by runs like them, the others guessed"
    )
    return f"{told}: about {in_words(task.seconds(left))} with {with_what} ({basis})."


def _device(given: str) -> str:
    import torch

    if given == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if given == "cuda" and not torch.cuda.is_available():
        raise InputError("Expected a GPU for `--device cuda`, but there is none here; use cpu.")
    if given not in ("cpu", "cuda"):
        raise InputError(f"Expected `--device` to be auto, cpu or cuda, but got {given!r}.")
    return given
