"""A run from its configuration to its folder."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard._version import __version__
from flipguard.data import DataSet, TextSplit, build_augmentation
from flipguard.errors import InputError, listed, printable
from flipguard.losses import SharedClasses
from flipguard.methods import METHODS, Method, Objective, Old, Setting, method_of
from flipguard.models import architecture, build_model, checkpoint_blocks, same_layout
from flipguard.references import OldModel, StoredLogits
from flipguard.training.companions import check_one_phase, companions_of
from flipguard.training.config import Config, as_dict
from flipguard.training.devices import (
    batch_shape,
    check_widening,
    compile_as,
    exactness,
    fabric_of,
    placed,
)
from flipguard.training.fine_tuning import difference_of, start_from
from flipguard.training.folder import (
    CHECKPOINT,
    HISTORY,
    MODEL,
    RUN,
    Run,
    digest_of,
    save,
    sweep,
    write_lines,
    write_run,
)
from flipguard.training.fusing import teachers_asked
from flipguard.training.loop import Report, steps_an_epoch, train_loop
from flipguard.training.material import Material, data_of, held_out_of, input_shape_of
from flipguard.training.measure import Yardstick, logits_on
from flipguard.training.members import FOLDER as MEMBERS
from flipguard.training.members import (
    given_members,
    guide_of,
    mean_of,
    member_count,
    members_of,
)
from flipguard.training.predict import load_model, write_predictions
from flipguard.training.processes import train_in_processes
from flipguard.training.replaying import replays, replays_members
from flipguard.training.reuse import check_reuse, reused_members
from flipguard.training.seeds import derived
from flipguard.training.starts import refuse_start, starts_of
from flipguard.training.texts import check_tokens
from flipguard.training.views import FOLDER as VIEWS
from flipguard.training.views import plan_of

# Training samples that the rates of every epoch are measured on.
SEEN = 5_000


def train(config: Config, out: Path, *, resume: bool = False, report: Report = print) -> Run:
    """Trains what the configuration says, into a folder."""
    return train_with(None, config, out, resume=resume, report=report)


def train_with(
    fabric: Any, config: Config, out: Path, *, resume: bool = False, report: Report = print
) -> Run:
    """Trains in the processes of a fabric, or in new ones if there is none yet."""
    began = time.monotonic()
    method, config = completed(config)
    _check_numbers(config)
    check_folder(out, config, resume=resume)
    if resume and (out / RUN).exists() and (run := Run.read(out)).finished:
        report(f"{out} is finished; nothing to do")
        return run
    old_runs = [Run.read(Path(folder)) for folder in config.old]
    _check_needs(method, config, old_runs)
    data = data_of(config)
    check_data(out, config, data)
    if isinstance(data.train, TextSplit):
        guides = [Run.read(Path(folder)) for folder in config.guides]
        check_tokens(config.model, [*old_runs, *guides], data.train.texts)
    if fabric is None:
        fabric = fabric_of(config.machine)
        if config.machine.processes > 1:
            return train_in_processes(fabric, config, out, resume=resume, report=report)
    minutes = config.machine.minutes
    deadline = None if minutes is None else began + 60 * minutes
    with exactness(config.machine, fabric.device):
        return _train_one(fabric, config, method, out, data, old_runs, deadline, report)


def completed(config: Config) -> tuple[Method, Config]:
    """The method of a configuration, and the configuration with all of its options."""
    method, named = method_of(config.method)
    options = method.complete({**config.options, **named})
    model = config.model
    if method.name == "dropout":
        model, rate = _with_dropout(model, config.options.get("rate"), options["rate"])
        options = {**options, "rate": rate}
    # Methods that stay near old's weights start from them.
    fine_tune = config.fine_tune or "same_layout" in method.needs
    return method, dataclasses.replace(config, options=options, model=model, fine_tune=fine_tune)


def _with_dropout(model: str, told: object, rate: Any) -> tuple[str, float]:
    """A model with dropout before its last layer, and how much; it may say so itself."""
    if model.partition(":")[0] in ("hf", "torchvision", "python"):
        raise InputError(
            "Expected `dropout` with a net of flipguard's own or of timm, whose rate can be set, "
            f"but got {listed([model])}; choose such a net, or use `none` with a model that has "
            "dropout of itself."
        )
    own = re.search(r"[:,]dropout=([^,]+)", model)
    if own is None:
        return f"{model}{',' if '=' in model else ':'}dropout={rate}", rate
    try:
        has = float(own[1])
    except ValueError:  # which the model refuses
        return model, rate
    if told is not None and told != has:
        raise InputError(
            f"Expected one rate of `dropout`, but {model} has {has:g}, and `options.rate` is "
            f"{told}; leave one of them out."
        )
    return model, has


def trains_members(config: Config) -> bool:
    """Whether a run has members of its own that are trained before it."""
    method, config = completed(config)
    return "members" in method.needs and not config.guides and not config.options.get("one_phase")


def _train_one(
    fabric: Any,
    config: Config,
    method: Method,
    out: Path,
    data: DataSet,
    old_runs: list[Run],
    deadline: float | None,
    report: Report,
) -> Run:
    shape = input_shape_of(data)
    replays_members(config, fabric.device)  # refuses what this machine cannot do, before any work

    def new_model(name: str) -> nn.Module:
        seed = derived(config.seeds.of("init"), name) if name else config.seeds.of("init")
        return build_model(
            config.model,
            classes=len(data.class_names),
            input_shape=shape,
            seed=seed,
            pretrained=config.pretrained,
        )

    student = new_model("")
    olds = tuple(old_of(run, data, fabric.device) for run in old_runs)
    check_layouts(method, config, student, olds)
    if config.fine_tune and method.name != "ensemble":
        start_from(olds[0], student)
    student = placed(student, fabric.device)
    learned, apart = data.train, data.train
    if "held_out" in method.needs or config.options.get("guide") == "calibrated":
        learned, apart = held_out_of(data.train, config.scope)
    material = Material(
        learned,
        device=fabric.device,
        model=config.model,
        augmentation=build_augmentation(config.recipe.augment),
        seed=config.seeds.of("augment"),
    )
    batch = batch_shape(config, shape, len(material))
    check_widening(config.machine, student, batch)
    test = Material(data.test, device=fabric.device, model=config.model)
    yardsticks = {
        "train": Yardstick(material, olds, SEEN, autocast=fabric.autocast),
        "test": Yardstick(test, olds, autocast=fabric.autocast),
    }
    plan = plan_of(config, out, data, material)
    facts = facts_of(data, student)
    fabric.barrier()  # all have looked at the folder before one writes to it
    if fabric.is_global_zero:
        sweep(out)

    def tell(status: str, **more: Any) -> Run:
        if fabric.is_global_zero:
            write_run(out, config, status=status, **facts, **more)
        fabric.barrier()
        return Run.read(out)

    def ended_with(model: nn.Module) -> Run:
        if not fabric.is_global_zero:
            return tell("finished")
        save_model(out, model)
        write_predictions(out, model, data, split="test", device=fabric.device)
        return tell("finished", weights=digest_of(out / MODEL))

    setting = Setting(
        options=config.options,
        model=student,
        olds=olds,
        classes=len(data.class_names),
        steps=config.recipe.epochs * steps_an_epoch(config.recipe, len(material)),
        label_smoothing=config.recipe.label_smoothing,
        new_model=lambda name: placed(new_model(name), fabric.device),
        # Stands in for members that are still to be trained, so that options are refused before.
        members=lambda: OldModel(student),
        stored=lambda reference: StoredLogits(logits_on(reference, material)),
        views=None if plan is None else plan.nothing(),
        held_out=Material(apart, device=fabric.device, model=config.model).batches,
        companions=lambda count: companions_of(
            count,
            fabric=fabric,
            config=config,
            out=out,
            shape=shape,
            new_model=lambda name: placed(new_model(name), fabric.device),
            report=report,
        ),
    )
    if "members" in method.needs and not config.options.get("one_phase"):
        if method.name != "ensemble":
            method.build(setting)
        runs: list[Run] | None = given_members(config, data.class_names)
        if not config.guides:
            reused = reused_members(config, old_runs, data)
            runs = members_of(
                fabric,
                config,
                out,
                reused=reused,
                starts=starts_of(config, old_runs[0]) if config.fine_tune else (),
                deadline=deadline,
                report=report,
            )
        if runs is None:
            return tell("stopped")
        # Relative, so that a folder of runs can be moved as a whole.
        facts["members"] = [os.path.relpath(run.folder, out) for run in runs]
        if method.name == "ensemble":
            mean = placed(mean_of(runs), fabric.device)
            facts |= facts_of(data, mean)
            tell("training")
            rates = {split: yardstick.rates(mean) for split, yardstick in yardsticks.items()}
            row = {"epoch": config.recipe.epochs, "losses": {}, **rates}
            if fabric.is_global_zero:
                write_lines(out / HISTORY, [row])
            return ended_with(mean)
        calibrated = config.options["guide"] == "calibrated"
        guide = guide_of(
            runs,
            device=fabric.device,
            held_out=setting.held_out if calibrated else None,
            asked=partial(teachers_asked, config.machine, fabric.device),
            exact=config.machine.precision == "64-true",
            compiled=config.machine.compile,
            batch_size=None if config.machine.deterministic else config.recipe.batch_size,
            autocast=fabric.autocast,
        )
        setting = dataclasses.replace(setting, members=guide)
        if plan is not None:
            kept = plan.stored(
                runs, guide, fabric=fabric, material=material, deadline=deadline, report=report
            )
            if kept is None:
                return tell("stopped")
            views, material, where = kept
            setting = dataclasses.replace(setting, views=views)
            facts["views"] = os.path.relpath(where, out)
    objective: Objective = method.build(setting)
    facts |= objective.facts
    if config.machine.checkpointing:
        checkpoint_blocks(student)
    compile_as(config.machine, student, batch, fabric.autocast)
    replays(config, objective, material, fabric)  # refuses, if it was insisted on in vain
    tell("training")
    ended = train_loop(
        config,
        out,
        fabric=fabric,
        student=student,
        objective=objective,
        material=material,
        yardsticks=yardsticks,
        deadline=deadline,
        report=report,
    )
    return ended_with(student) if ended else tell("stopped")


def save_model(out: Path, model: nn.Module) -> None:
    """Writes the weights."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save(out / MODEL, lambda path: save_file(state, str(path)))


def facts_of(data: DataSet, model: nn.Module) -> dict[str, Any]:
    """What `run.json` says beside the configuration."""
    shape = input_shape_of(data)
    return {
        "data": {
            "fingerprint": data.fingerprint,
            "class_names": list(data.class_names),
            "input_shape": None if shape is None else list(shape),
            "train": len(data.train),
            "test": len(data.test),
        },
        "architecture": architecture(model),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {
            "flipguard": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _check_numbers(config: Config) -> None:
    """Refuses numbers that mean nothing, before any work."""
    recipe, machine = config.recipe, config.machine
    least: dict[str, tuple[float | None, float]] = {
        "recipe.epochs": (recipe.epochs, 1),
        "recipe.batch_size": (recipe.batch_size, 1),
        "recipe.accumulate": (recipe.accumulate, 1),
        "recipe.linear_scaling": (recipe.linear_scaling, 1),
        "recipe.learning_rate": (recipe.learning_rate, 0),
        "recipe.momentum": (recipe.momentum, 0),
        "recipe.weight_decay": (recipe.weight_decay, 0),
        "recipe.warmup": (recipe.warmup, 0),
        "recipe.label_smoothing": (recipe.label_smoothing, 0),
        "recipe.clip": (recipe.clip, 0),
        "machine.processes": (machine.processes, 1),
        "machine.fuse_chunk": (machine.fuse_chunk, 1),
        "machine.streams": (machine.streams, 1),
        "machine.threads": (machine.threads, 1),
        "machine.save_seconds": (machine.save_seconds, 0),
        "machine.minutes": (machine.minutes, 0),
        "machine.measure_every": (machine.measure_every, 1),
    }
    for name, (value, bound) in least.items():
        if value is not None and not bound <= value < math.inf:
            raise InputError(f"Expected `{name}` to be from {bound:g} on, but got {value:g}.")
    if recipe.label_smoothing > 1:
        raise InputError(
            "Expected `recipe.label_smoothing` to be a share from 0 to 1, but got "
            f"{recipe.label_smoothing:g}."
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
    if machine.widen != "off" and (machine.checkpointing or machine.compile == "whole"):
        got = "checkpointing" if machine.checkpointing else "compile=whole"
        raise InputError(
            f"Expected `machine.widen` with a model that is compiled in parts or not at all, but "
            f"got `machine.{got}`; leave one of them out."
        )
    if "members" in config.options:
        member_count(config)


def check_data(out: Path, config: Config, data: DataSet) -> None:
    """A run that goes on must see what it saw before."""
    if not (out / RUN).exists():
        return
    was = Run.read(out).document["data"].get("fingerprint")
    if was != data.fingerprint:
        raise InputError(
            f"Expected the data that {out} was begun with, but {config.data} has changed; restore "
            "it, or choose another `--out`."
        )


def old_of(run: Run, data: DataSet, device: torch.device) -> Old:
    """The model of an old run, and which of its classes are which of the data's."""
    model = placed(load_model(run), device).eval().requires_grad_(False)
    classes = None
    if run.class_names != data.class_names:
        classes = SharedClasses.by_name(old=run.class_names, new=data.class_names)
    return Old(name=str(run.folder), reference=OldModel(model), model=model, classes=classes)


def check_folder(out: Path, config: Config, *, resume: bool) -> None:
    """Refuses a folder that holds something else than this run."""
    if (name := out.absolute().name) in (MEMBERS, VIEWS):
        raise InputError(
            f"Expected `--out` to be a folder for a run, but got {printable(str(out))}, and "
            f"{name!r} is what flipguard calls the folder of {name} beside the runs that use them; "
            "choose another name."
        )
    if not (out / RUN).exists():
        if (out / CHECKPOINT).exists():
            raise InputError(
                f"Expected {out} to be a new folder or a run, but there is a state to go on from "
                f"without a {RUN} that says of what; choose another `--out`."
            )
        return
    if not resume:
        raise InputError(
            f"Expected {out} to be a new folder, but there is a run in it; go on with it by "
            "`--resume`, or choose another `--out`."
        )
    was, now = as_dict(Run.read(out).config), as_dict(config)
    for values in (was, now):
        values.pop("machine")  # another machine may go on with it
    changed = [key for key in now if was[key] != now[key]]
    if changed:
        raise InputError(
            f"Expected the configuration that {out} was begun with, but {listed(changed)} changed; "
            "resume it unchanged, or choose another `--out`."
        )


def _check_needs(method: Method, config: Config, olds: list[Run]) -> None:
    free = ", ".join(row.name for row in METHODS.values() if "old" not in row.needs)
    if "old" in method.needs and not olds:
        raise InputError(
            f"Expected `{method.name}` to be given an old run with `--old`, but got none; methods "
            f"that need none are {free}."
        )
    if "one_old" in method.needs and len(olds) != 1:
        raise InputError(
            f"Expected `{method.name}` to be given one `--old`, but got {len(olds)}; several are "
            "understood by naive, kd, fd-kl, fd-lm and elodi."
        )
    if config.options.get("legacy") and not olds:
        raise InputError(
            "Expected `legacy` to be given an old run with `--old`, but got none; leave it at 0 "
            "to follow the ensemble alone."
        )
    if config.guides and method.name != "elodi":
        raise InputError(
            f"Expected `guides` with elodi, but got them with `{method.name}`; leave them out."
        )
    if config.options.get("guide") == "heterogeneous" and not config.guides:
        raise InputError(
            "Expected a heterogeneous guide to be given as `guides`, but got none; name finished "
            "runs of other architectures."
        )
    if config.fine_tune and len(olds) != 1:
        raise InputError(f"Expected fine-tuning to start from one `--old`, but got {len(olds)}.")
    unfinished = [str(run.folder) for run in olds if not run.finished]
    if unfinished:
        raise InputError(
            f"Expected `--old` to be a finished run, but {listed(unfinished)} is not; resume it "
            "first."
        )
    check_one_phase(config)
    check_reuse(config, olds)
    if config.fine_tune:
        refuse_start(method, olds[0])
        if trains_members(config):
            starts_of(config, olds[0])  # refuses what members cannot start from, before any work


def check_layouts(
    method: Method, config: Config, student: nn.Module, olds: tuple[Old, ...]
) -> None:
    """Refuses old models whose classes or weights the method cannot take over."""
    if "same_classes" in method.needs and olds[0].classes is not None:
        raise InputError(
            f"Expected `{method.name}` to keep old's classes, but they are others; where classes "
            "are added, use fd-lm, fd-kl or elodi."
        )
    # An ensemble has no weights but its members', which are looked at when each of them begins.
    if config.fine_tune and method.name != "ensemble":
        near = "same_layout" in method.needs
        old = olds[0]
        difference = same_layout(old.model, student) if near else difference_of(old, student)
        if difference is not None:
            what = f"`{method.name}`" if near else "fine-tuning"
            raise InputError(
                f"Expected {what} to have old's architecture, but {difference}; across "
                "architectures, use fd-lm, fd-kl or elodi without fine-tuning."
            )
        if near and old.classes is not None:
            raise InputError(
                f"Expected `{method.name}` to keep old's classes and their order, but they are "
                "others; where they change, use another method with `fine_tune`."
            )
