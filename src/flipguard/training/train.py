"""A run from its configuration to its folder."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard._version import __version__
from flipguard.data import DataSet, TextSplit, build_augmentation
from flipguard.errors import InputError, listed
from flipguard.losses import SharedClasses
from flipguard.methods import Method, Objective, Old, Setting, method_of
from flipguard.models import architecture, build_model, checkpoint_blocks
from flipguard.references import OldModel, StoredLogits
from flipguard.runs.key import run_key
from flipguard.training.checks import (
    check_calibration,
    check_data,
    check_folder,
    check_layouts,
    check_model,
    check_needs,
    check_numbers,
    completed,
)
from flipguard.training.companions import companions_of
from flipguard.training.config import Config, Machine
from flipguard.training.devices import (
    batch_shape,
    check_widening,
    compile_as,
    exactness,
    fabric_of,
    in_precision,
    input_type,
    placed,
)
from flipguard.training.fine_tuning import start_from
from flipguard.training.folder import (
    CHECKPOINT,
    HISTORY,
    MODEL,
    RUN,
    Run,
    begun_or_nothing,
    check_place,
    digest_of,
    forget,
    is_whole,
    save,
    sweep,
    write_lines,
    write_run,
)
from flipguard.training.follows import changed_since, follows, recorded_key
from flipguard.training.formulas import changes_of, changes_since
from flipguard.training.fusing import teachers_asked
from flipguard.training.interrupting import time_is_up
from flipguard.training.lock import alone_in, tidy
from flipguard.training.loop import Report, steps_an_epoch, train_loop
from flipguard.training.material import Material, calibrates, data_of, held_out_of, input_shape_of
from flipguard.training.measure import SEEN, Yardstick, logits_on
from flipguard.training.members import (
    given_members,
    guide_of,
    mean_of,
    members_of,
)
from flipguard.training.predict import load_model, write_predictions
from flipguard.training.processes import train_in_processes
from flipguard.training.replaying import replays, replays_members
from flipguard.training.reuse import reused_members
from flipguard.training.seeds import derived
from flipguard.training.starts import starts_of
from flipguard.training.states import state_digest
from flipguard.training.texts import check_tokens
from flipguard.training.views import plan_of


def train(config: Config, out: Path, *, resume: bool = False, report: Report = print) -> Run:
    """Trains what the configuration says, into a folder."""
    return train_with(None, config, out, resume=resume, report=report)


def train_with(
    fabric: Any,
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    waits: bool = False,
    report: Report = print,
) -> Run:
    """Trains in the processes of a fabric, or in new ones if there is none yet.

    If another process writes to the folder, refuses or, with `waits`, waits while there is time.
    """
    began = time.monotonic()
    check_place(out)
    method, config = completed(config)
    check_numbers(config)
    if (run := _finished(config, out, resume=resume)) is not None:
        tidy(out)
        report(f"{out} is finished; nothing to do")
        if changed := changed_since(run):
            report(
                f"it followed other weights than those that are now in {listed(changed)}, seen "
                "from there; what it has learned from them stays as it is"
            )
        if earlier := changes_since(run):
            report(
                f"it was trained before a change of the method ({'; '.join(earlier)}), and stays "
                "as it is; train it into another folder to have the method of today"
            )
        return run
    old_runs = [Run.read(Path(folder)) for folder in config.old]
    check_needs(method, config, old_runs)
    if fabric is None:
        fabric = fabric_of(config.machine)
        if config.machine.processes > 1:
            _checked_data(config, out, old_runs)  # refused here, before others are started
            return _in_processes(fabric, config, out, resume=resume, report=report)
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
        # Told to the other processes, which would wait for the first one in vain.
        if (refused := fabric.broadcast(refused)) is not None:
            raise refused
        # Another process may have trained it until the lock was free.
        if (run := _finished(config, out, resume=resume)) is not None:
            return run
        data = _checked_data(config, out, old_runs)
        stack.enter_context(exactness(config.machine, fabric.device))
        return _train_one(
            fabric, config, method, out, data, old_runs, deadline, report, resume=resume
        )


def _finished(config: Config, out: Path, *, resume: bool) -> Run | None:
    """The run in a folder, if it needs no more training; refused if it is another run."""
    check_folder(out, config, resume=resume)
    run = Run.read(out) if (out / RUN).exists() else None
    return run if run is not None and is_whole(run) else None


def _checked_data(config: Config, out: Path, old_runs: list[Run]) -> DataSet:
    """The data, refused if the run cannot be trained on them."""
    data = data_of(config)
    check_data(out, config, data)
    check_calibration(config, data, old_runs)
    check_model(config, data)
    if isinstance(data.train, TextSplit):
        guides = [Run.read(Path(folder)) for folder in config.guides]
        check_tokens(config.model, [*old_runs, *guides], data.train.texts)
    return data


def _in_processes(fabric: Any, config: Config, out: Path, *, resume: bool, report: Report) -> Run:
    new = not (out / RUN).exists()
    try:
        return train_in_processes(fabric, config, out, resume=resume, report=report)
    except Exception:
        # The first process may have been ended before it removed what it had written.
        if new and not (out / CHECKPOINT).exists():
            with suppress(InputError), alone_in(out, report=report):
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
    report: Report,
    *,
    resume: bool,
) -> Run:
    shape = input_shape_of(data)
    replays_members(config, fabric.device)  # refuses what this machine cannot do, before any work

    def new_model(name: str) -> nn.Module:
        seed = derived(config.seeds.of("init"), name) if name else config.seeds.of("init")
        model = build_model(
            config.model,
            classes=len(data.class_names),
            input_shape=shape,
            seed=seed,
            pretrained=config.pretrained,
        )
        return in_precision(model, config.machine)

    student = new_model("")
    olds = tuple(old_of(run, data, fabric.device, config.machine) for run in old_runs)
    check_layouts(method, config, student, olds)
    if config.fine_tune and method.name != "ensemble":
        start_from(olds[0], student)
    student = placed(student, fabric.device)
    dtype = input_type(config.machine)
    learned, apart = data.train, data.train
    if "held_out" in method.needs or calibrates(config):
        learned, apart = held_out_of(data.train, config.scope)
    material = Material(
        learned,
        device=fabric.device,
        model=config.model,
        augmentation=build_augmentation(config.recipe.augment),
        seed=config.seeds.of("augment"),
        dtype=dtype,
    )
    batch = batch_shape(config, shape, len(material))
    check_widening(config.machine, student, batch)
    test = Material(data.test, device=fabric.device, model=config.model, dtype=dtype)
    yardsticks = {
        "train": Yardstick(material, [olds], SEEN, autocast=fabric.autocast),
        "test": Yardstick(test, [olds], autocast=fabric.autocast),
    }
    plan = plan_of(config, out, data, material)
    facts = facts_of(config, out, data, student, old_runs)
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
        held_out=Material(apart, device=fabric.device, model=config.model, dtype=dtype).batches,
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
        facts["follows"] |= follows(out, runs)
        if method.name == "ensemble":
            mean = placed(mean_of(runs, config.machine), fabric.device)
            facts |= model_facts(mean)
            tell("training")
            rates = {split: yardstick.rates(mean) for split, yardstick in yardsticks.items()}
            row = {"epoch": config.recipe.epochs, "losses": {}, **rates}
            if fabric.is_global_zero:
                write_lines(out / HISTORY, [row])
            return ended_with(mean)
        guide = guide_of(
            runs,
            machine=config.machine,
            device=fabric.device,
            held_out=setting.held_out if calibrates(config) else None,
            asked=partial(teachers_asked, config.machine, fabric.device),
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
        digest=state_digest(
            config, data=data.fingerprint, follows=facts["follows"], formula=facts["formula"]
        ),
        resume=resume,
        deadline=deadline,
        report=report,
    )
    return ended_with(student) if ended else tell("stopped")


def save_model(out: Path, model: nn.Module) -> None:
    """Writes the weights."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save(out / MODEL, lambda path: save_file(state, str(path)))


def facts_of(
    config: Config, out: Path, data: DataSet, model: nn.Module, old_runs: Sequence[Run]
) -> dict[str, Any]:
    """What `run.json` says in addition to the configuration."""
    shape = input_shape_of(data)
    formula = len(changes_of(config, old_runs, data.class_names))
    key_defaults = method_of(config.method)[0].key_defaults
    return {
        "key": run_key(
            config, option_defaults=key_defaults, key_of_run=recorded_key, formula=formula
        ),
        "formula": formula,
        "follows": follows(out, old_runs),
        "data": {
            "fingerprint": data.fingerprint,
            "class_names": list(data.class_names),
            "input_shape": None if shape is None else list(shape),
            "train": len(data.train),
            "test": len(data.test),
        },
        **model_facts(model),
        "versions": {
            "flipguard": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def model_facts(model: nn.Module) -> dict[str, Any]:
    """What `run.json` says of the model."""
    return {
        "architecture": architecture(model),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def old_of(run: Run, data: DataSet, device: torch.device, machine: Machine) -> Old:
    """The model of an old run, and which of its classes are which of the data's."""
    model = placed(load_model(run, machine), device).eval().requires_grad_(False)
    classes = None
    if run.class_names != data.class_names:
        classes = SharedClasses.by_name(old=run.class_names, new=data.class_names)
    return Old(name=str(run.folder), reference=OldModel(model), model=model, classes=classes)
