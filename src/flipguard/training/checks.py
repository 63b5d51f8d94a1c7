"""Complete a configuration, and check everything that can be checked before training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from flipguard.data import DataSet, TextSplit
from flipguard.errors import InputError, listed, printable
from flipguard.methods import METHODS, Method, OldModelInfo, method_of
from flipguard.methods.needs import Needs, OldRun, RunFacts
from flipguard.models import same_layout
from flipguard.models.code import check_code
from flipguard.run_document import RUN, how_to_finish
from flipguard.runs.config import Config, decisive, needs_of
from flipguard.runs.folder import WRITTEN, Run, is_whole
from flipguard.training.batches import calibrates, smallest_batch
from flipguard.training.checkpoint import weight_mismatch
from flipguard.training.members import FOLDER as MEMBERS
from flipguard.training.record import check_follows, follows_same
from flipguard.training.reuse import refuse_start, start_runs
from flipguard.training.scoping import (
    count_learned,
    held_out_of,
    knows_training_samples,
    without_held_out,
)
from flipguard.training.stored_views import FOLDER as VIEWS
from flipguard.training.trainee import LARGEST

# Larger numbers are mistakes: counters overflow, or no machine has so much.
MOST, MOST_AT_ONCE = 10**9, 1024


def complete_config(config: Config) -> tuple[Method, Config]:
    """Return the method of a configuration, and the configuration with all of its options."""
    method, named = method_of(config.method)
    complete = method.complete({**config.options, **named})
    model, options = method.model_spec(config.model, config.options, complete)
    # Methods that stay near the old model's weights start from them.
    fine_tune = config.fine_tune or method.needs(options).same_layout
    return method, dataclasses.replace(config, options=options, model=model, fine_tune=fine_tune)


def trains_members(config: Config) -> bool:
    """Return whether a run trains members before its student."""
    return needs_of(complete_config(config)[1]).members is not None and not config.guides


def check_numbers(config: Config) -> None:
    """Raise if a number of the configuration is out of range."""
    recipe, machine = config.recipe, config.machine
    bounds: list[tuple[str, float | None, float, float]] = [
        ("recipe.epochs", recipe.epochs, 1, MOST),
        ("recipe.batch_size", recipe.batch_size, 1, MOST),
        ("recipe.accumulate", recipe.accumulate, 1, MOST),
        ("recipe.linear_scaling", recipe.linear_scaling, 1, MOST),
        ("recipe.learning_rate", recipe.learning_rate, 0, LARGEST),
        ("recipe.momentum", recipe.momentum, 0, LARGEST),
        ("recipe.weight_decay", recipe.weight_decay, 0, LARGEST),
        ("recipe.decay", recipe.decay, 0, LARGEST),
        ("recipe.warmup", recipe.warmup, 0, LARGEST),
        ("recipe.label_smoothing", recipe.label_smoothing, 0, 1),
        ("recipe.clip", recipe.clip, 0, LARGEST),
        ("machine.processes", machine.processes, 1, MOST_AT_ONCE),
        ("machine.fuse_chunk", machine.fuse_chunk, 1, MOST),
        ("machine.streams", machine.streams, 1, MOST_AT_ONCE),
        ("machine.threads", machine.threads, 1, MOST_AT_ONCE),
        ("machine.save_seconds", machine.save_seconds, 0, LARGEST),
        ("machine.minutes", machine.minutes, 0, LARGEST),
        ("machine.measure_every", machine.measure_every, 1, MOST),
        *(("recipe.milestones", epoch, 1, MOST) for epoch in recipe.milestones),
    ]
    for name, value, least, most in bounds:
        if value is None or least <= value <= most:
            continue
        # The upper bound is named only if the value is above it.
        above = value > least and math.isfinite(value)
        rule = f"from {least:g} to {most:g}" if above or most == 1 else f"from {least:g} on"
        raise InputError(f"Expected `{name}` to be {rule}, but got {value:g}.")
    if recipe.schedule == "steps" and not recipe.milestones:
        raise InputError(
            "Expected `recipe.milestones` to list the epochs at which `recipe.schedule=steps` "
            "changes the learning rate, but got none; give them, or choose another schedule."
        )
    if recipe.batch_size < machine.processes:
        raise InputError(
            "Expected `recipe.batch_size` to give every process a sample, but got "
            f"{recipe.batch_size} for {machine.processes} processes."
        )
    if machine.checkpointing and machine.compile != "off":
        raise InputError(
            "Expected `machine.checkpointing` with a model that is not compiled, but got "
            f"`machine.compile={machine.compile}`; leave one of them out."
        )


def check_data(out: Path, config: Config, data: DataSet) -> None:
    """Raise if the data of a run that is resumed have changed."""
    if not (out / RUN).exists():
        return
    was = Run.read(out).document["data"].get("fingerprint")
    if was != data.fingerprint:
        raise InputError(
            f"Expected the data that {out} was started with, but {config.data} has changed; "
            "restore it, or choose another `out=`."
        )


def check_batches(config: Config, data: DataSet) -> None:
    """Raise if a process would have no sample of some batch, because there are too few samples."""
    recipe, processes = config.recipe, config.machine.processes
    if processes == 1:
        return
    held_out = needs_of(config).held_out
    samples = len(held_out_of(data, config.scope)[0] if held_out else data.train)
    least = smallest_batch(recipe, samples)
    if least < processes:
        raise InputError(
            f"Expected batches to give every process a sample, but {samples:,} training samples "
            f"with `recipe.batch_size={recipe.batch_size}` and "
            f"`recipe.accumulate={recipe.accumulate}` make a batch of {least} for {processes} "
            "processes; lower `machine.processes`, or `recipe.accumulate` if it is above 1."
        )


def check_calibration(config: Config, data: DataSet, olds: list[Run]) -> None:
    """Raise if members were trained on the samples on which their temperatures are fitted."""
    if not calibrates(config):
        return
    _, apart = held_out_of(data, config.scope)
    role, way_out = "`guides`", "leave `guides` out, so that members are trained without them"
    if config.fine_tune and not config.guides:
        role, way_out = "`old=`, whose weights members start from,", "leave `fine_tune` out"
    for run in _calibrated_runs(config, olds):
        learned = count_learned(run, data, apart)
        if learned:
            wanted = without_held_out(config.scope)
            raise InputError(
                f"Expected {role} not to be trained on the {len(apart):,} samples that are held "
                f"out to calibrate the ensemble, but {printable(str(run.folder))} was trained on "
                f"{learned:,} of them; {way_out}, or give runs that were trained with "
                f"`scope.samples={wanted.samples:g}`, "
                f"`scope.per_class={str(wanted.per_class).lower()}` and "
                f"`scope.seed={wanted.seed}`."
            )


def notes_on_calibration(config: Config, olds: Sequence[Run]) -> list[str]:
    """Return a sentence for each member that may have seen the samples that calibrate it."""
    return [
        f"it is not known whether {printable(str(run.folder))} was trained on the samples that are "
        "held out to calibrate the ensemble; if it was, its temperature is too low"
        for run in (_calibrated_runs(config, olds) if calibrates(config) else ())
        if not knows_training_samples(run)
    ]


def _calibrated_runs(config: Config, olds: Sequence[Run]) -> list[Run]:
    """Return the existing runs that are members, or whose weights members start from."""
    members = [Run.read(Path(folder)) for folder in config.guides]
    if config.fine_tune and not members:
        starts = start_runs(config, olds[0])
        members = [Run.read(Path(folder)) for folder in starts] or list(olds)
    return members


def check_model(config: Config, data: DataSet) -> None:
    """Raise if the data are texts and the model takes vectors or images."""
    if isinstance(data.train, TextSplit) and config.model.partition(":")[0] not in ("hf", "python"):
        raise InputError(
            f"Expected a model of texts for {config.data}, but got {listed([config.model])}; name "
            "a folder of Transformers by `model='hf:FOLDER'`."
        )


def check_folder(out: Path, config: Config, *, resume: bool) -> None:
    """Raise if a folder holds something else than this run."""
    if (name := out.absolute().name) in (MEMBERS, VIEWS):
        raise InputError(
            f"Expected `out=` to be a folder for a run, but got {printable(str(out))}, and "
            f"flipguard uses the name {name!r} for the folder of {name} next to the runs that use "
            "them; choose another name."
        )
    if not (out / RUN).exists():
        # Files of an unknown run would be overwritten, or taken for files of this run.
        if found := [name for name in WRITTEN if (out / name).exists()]:
            raise InputError(
                f"Expected {out} to be a new folder or a run, but it contains {listed(found)} "
                f"and no {RUN}; choose another `out=`."
            )
        return
    if not resume:
        raise InputError(
            f"Expected {out} to be a new folder, but there is a run in it; resume it with "
            "`resume=True`, or choose another `out=`."
        )
    run = Run.read(out)
    was, now = decisive(run.config), decisive(config)
    changed = [key for key in now | was if was.get(key) != now.get(key)]
    for name in ("old", "guides"):
        if not follows_same(run, getattr(run.config, name), getattr(config, name)):
            changed.append(name)
    if changed:
        raise InputError(
            f"Expected the configuration that {out} was started with, but {listed(changed)} "
            "changed; resume it unchanged, or choose another `out=`."
        )
    if not is_whole(run):
        check_follows(run)


def check_needs(method: Method, config: Config, olds: list[Run]) -> None:
    """Raise if a method lacks something that it needs, or is given something it cannot use."""
    for run in olds:
        if not run.finished:
            raise InputError(
                f"Expected `old=` to be a finished run, but {printable(str(run.folder))} is "
                f"{run.status}; {how_to_finish(run.folder, run.document)}."
            )
    for spec in (config.model, *(run.config.model for run in olds)):
        check_code(spec)
    seen = [OldRun(folder=run.folder, members=len(run.document.get("members", ()))) for run in olds]
    method.check(config.options, RunFacts(olds=seen, guides=len(config.guides)))
    needs = method.needs(config.options)
    if needs.old and not olds:
        rows = METHODS.values()
        free = ", ".join(row.name for row in rows if not row.default_needs().old)
        raise InputError(
            f"Expected `{method.name}` to be given an old run with `old=`, but got none; methods "
            f"that need none are {free}."
        )
    if needs.one_old and len(olds) != 1:
        raise InputError(
            f"Expected `{method.name}` to be given one `old=`, but got {len(olds)}; methods that "
            "take several are naive, kd, fd-kl, fd-lm and elodi."
        )
    if config.guides and not _takes_guides(needs):
        able = ", ".join(r.name for r in METHODS.values() if _takes_guides(r.default_needs()))
        raise InputError(
            f"Expected `guides` with {able}, but got them with `{method.name}`; leave them out."
        )
    if config.fine_tune and len(olds) != 1:
        raise InputError(f"Expected fine-tuning to start from one `old=`, but got {len(olds)}.")
    if config.fine_tune:
        refuse_start(method, olds[0])
        if trains_members(config):
            start_runs(config, olds[0])  # raises, before any training, if members cannot start


def _takes_guides(needs: Needs) -> bool:
    return needs.members is not None and needs.members.may_be_given


def check_layouts(
    method: Method, config: Config, student: nn.Module, olds: tuple[OldModelInfo, ...]
) -> None:
    """Raise if the method cannot use the classes or the weights of an old model."""
    needs = method.needs(config.options)
    if needs.same_classes and olds[0].classes is not None:
        raise InputError(
            f"Expected `{method.name}` to have the old model's classes, but it has others; if "
            "classes are added, use fd-lm, fd-kl or elodi."
        )
    # An ensemble has only its members' weights, which are checked when each member begins.
    if config.fine_tune and not method.is_mean:
        near = needs.same_layout
        old = olds[0]
        difference = same_layout(old.model, student) if near else weight_mismatch(old, student)
        if difference is not None:
            what = f"`{method.name}`" if near else "fine-tuning"
            raise InputError(
                f"Expected {what} to have the old model's architecture, but {difference}; across "
                "architectures, use fd-lm, fd-kl or elodi without fine-tuning."
            )
        if near and old.classes is not None:
            raise InputError(
                f"Expected `{method.name}` to have the old model's classes in the same order, but "
                "it has others; if classes change, use another method with `fine_tune`."
            )
