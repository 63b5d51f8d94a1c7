"""Ensembles: members are runs of their own, kept so that later students use them again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.errors import InputError, listed
from flipguard.fusion import teachers
from flipguard.losses.inputs import computed
from flipguard.models import Inputs, classify
from flipguard.references import Ensemble, Reference
from flipguard.runs.key import run_key
from flipguard.training.config import Config, Machine
from flipguard.training.devices import input_type, placed
from flipguard.training.folder import Run, is_finished
from flipguard.training.follows import check_follows, recorded_key
from flipguard.training.fusing import Asked, train_together
from flipguard.training.lock import InUseError
from flipguard.training.loop import Report
from flipguard.training.material import calibrates, without_held_out
from flipguard.training.seeds import Seeds, derived
from flipguard.training.side_by_side import apart, own_threads, threads_of, train_side_by_side

FOLDER = "members"
MOST_MEMBERS = 1000


class Mean(nn.Module):
    """Several models as one that gives the mean of their logits."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Inputs | None = None, /, **named: Tensor) -> Tensor:
        """Called as its members are: with one tensor, or with several by name, as texts are."""
        given = named if inputs is None else inputs
        return torch.stack([computed(classify(member, given)) for member in self.members]).mean(0)


def member_config(config: Config, index: int, start: str | None = None) -> Config:
    """The configuration of a member: untreated, and with a seed of its own.

    Where the student starts from old's weights, so does a member, or from a `start` of its own.
    """
    seeds = Seeds(seed=derived(config.seeds.seed, "member", index) % 2**31)
    if config.recipe.member_order == "shared":
        together = derived(config.seeds.seed, "members") % 2**31
        seeds = dataclasses.replace(seeds, order=together, augment=together)
    return dataclasses.replace(
        config,
        # Temperatures are fitted on samples that no member has learned.
        scope=without_held_out(config.scope) if calibrates(config) else config.scope,
        method="none",
        options={},
        old=() if not config.fine_tune else config.old if start is None else (start,),
        guides=(),
        seeds=seeds,
        # The seeds say it already: a member is the same, whoever asked for it.
        recipe=dataclasses.replace(config.recipe, member_order="own"),
    )


def member_folder(
    config: Config, out: Path, *, key_of_run: Callable[[str], str] = recorded_key
) -> Path:
    """Return the folder of a member: next to the runs that use it, named by its key."""
    key = run_key(config, option_defaults={}, key_of_run=key_of_run)
    return out.absolute().parent / FOLDER / key


def members_of(
    fabric: Any,
    config: Config,
    out: Path,
    *,
    reused: Sequence[Run] = (),
    starts: Sequence[str] = (),
    deadline: float | None,
    report: Report,
) -> list[Run] | None:
    """The members of a run, trained if they are not there yet; None if time was up before.

    Those that are taken over come last, so that whoever takes over from this run gets newer ones.
    The others start from `starts`, where there are any: one each.
    """
    all_wanted = _wanted(config, out, reused, starts)
    count, places = len(all_wanted), [member_folder(wanted, out) for wanted in all_wanted]
    if reused:
        report(f"{len(reused)} members taken over, {count} of this run's own")
    if not all_wanted:
        return list(reused)
    for folder in places:
        if is_finished(folder):
            check_follows(Run.read(folder))  # it may have started from what old was before
    if not train_together(fabric, all_wanted, places, deadline=deadline, report=report):
        return None
    if apart(config.machine, fabric):
        all_wanted = [
            dataclasses.replace(wanted, machine=own_threads(wanted.machine))
            for wanted in all_wanted
        ]
        with threads_of(all_wanted[0].machine):
            if not train_side_by_side(fabric, all_wanted, places, deadline=deadline, report=report):
                return None
            found = _one_by_one(fabric, all_wanted, places, deadline=deadline, report=report)
    else:
        found = _one_by_one(fabric, all_wanted, places, deadline=deadline, report=report)
    return None if found is None else [*found, *reused]


def _one_by_one(
    fabric: Any,
    all_wanted: Sequence[Config],
    places: Sequence[Path],
    *,
    deadline: float | None,
    report: Report,
) -> list[Run] | None:
    from flipguard.training.train import train_with

    runs: list[Run] = []
    for index, (wanted, folder) in enumerate(zip(all_wanted, places, strict=True)):
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0.0) / 60
            machine = dataclasses.replace(wanted.machine, minutes=left)
            wanted = dataclasses.replace(wanted, machine=machine)
        finished = is_finished(folder)
        report(f"member {index + 1} of {len(places)}: {folder}{' is finished' * finished}")

        def tell(line: str, finished: bool = finished) -> None:
            if not finished:
                report(f"  {line}")

        try:
            run = train_with(fabric, wanted, folder, resume=True, waits=True, report=tell)
        except InUseError:  # time was up before another process had trained it
            return None
        if not run.finished:
            return None
        runs.append(run)
    return runs


def _wanted(
    config: Config, out: Path, reused: Sequence[Run], starts: Sequence[str]
) -> list[Config]:
    """The first members that a run has, but for those that are taken over."""
    if starts:  # none of which is taken over: what starts from old's members is no such member
        return [member_config(config, index, start) for index, start in enumerate(starts)]
    count = member_count(config)
    # Known by its name a member is the same wherever it lies; none may count twice.
    taken = {run.folder.resolve().name for run in reused}
    every = (member_config(config, index) for index in range(count + len(reused)))
    fresh = [wanted for wanted in every if member_folder(wanted, out).name not in taken]
    return fresh[: count - len(reused)]


def member_count(config: Config) -> int:
    """How many members a run has."""
    count = config.options["members"]
    if type(count) is not int or not 1 <= count <= MOST_MEMBERS:
        raise InputError(
            f"Expected `members` to be a whole number from 1 to {MOST_MEMBERS:,}, but got "
            f"{listed([count])}."
        )
    return count


def given_members(config: Config, class_names: tuple[str, ...]) -> list[Run]:
    """The finished runs that were given as an ensemble, of whatever architecture."""
    runs = [Run.read(Path(folder)) for folder in config.guides]
    for run in runs:
        if not run.finished or run.class_names != class_names:
            what = "is not finished" if not run.finished else "knows other classes"
            raise InputError(
                f"Expected `guides` to be finished runs of the same classes, but {run.folder} "
                f"{what}; resume it, or choose another."
            )
    return runs


def guide_of(
    runs: Sequence[Run],
    *,
    machine: Machine,
    device: Any,
    held_out: Callable[[], Iterable[Any]] | None,
    asked: Callable[[Sequence[nn.Module]], Asked | None] = lambda _: None,  # None: in turn
    batch_size: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[], Reference]:
    """The ensemble of finished members, calibrated if there are samples to calibrate it on."""
    from flipguard.training.predict import load_model

    def guide() -> Reference:
        models = [placed(load_model(run, machine).eval(), device) for run in runs]
        ensemble = Ensemble(models)
        if held_out is not None:
            ensemble = ensemble.calibrate(held_out())
        wanted = asked(models)
        if wanted is None:
            return ensemble
        shape = runs[0].input_shape
        example = None if shape is None else torch.zeros(1, *shape, dtype=input_type(machine))
        try:
            return teachers(
                models,
                example=example,
                temperatures=ensemble.temperatures,
                streams=wanted.streams,
                apart=wanted.apart,
                compiled=machine.compile,
                batch_size=batch_size,
                autocast=autocast,
            )
        except InputError:
            return ensemble  # of several architectures, or of one that cannot be fused

    return guide


def mean_of(runs: Sequence[Run], machine: Machine) -> Mean:
    """Finished members as one model."""
    from flipguard.training.predict import load_model

    return Mean([load_model(run, machine) for run in runs]).eval()
