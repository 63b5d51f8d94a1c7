"""Set up the training of a run: student, old models, samples, trackers, and `run.json`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from flipguard.data import DataSet, Split, build_augmentation
from flipguard.files import sha256_of
from flipguard.methods import BuildContext, Method
from flipguard.references import StoredLogits
from flipguard.runs.config import Config
from flipguard.runs.folder import MODEL, Run, remove_leftovers
from flipguard.training.batches import BatchSource, steps_per_epoch
from flipguard.training.checkpoint import load_old_model, load_old_weights, save_model
from flipguard.training.checks import check_layouts
from flipguard.training.devices import input_type, to_device
from flipguard.training.evaluate import SEEN, FlipTracker, logits_on
from flipguard.training.predict import write_test_predictions
from flipguard.training.record import follows, run_facts, write_run
from flipguard.training.scoping import held_out_of
from flipguard.training.starting import new_model
from flipguard.training.stored_views import ViewPlan, plan_views


@dataclass(slots=True, kw_only=True)
class RunSetup:
    """The objects that the parts of a training share."""

    fabric: Any
    config: Config
    out: Path
    data: DataSet
    student: nn.Module
    source: BatchSource  # the training samples
    trackers: dict[str, FlipTracker]
    context: BuildContext  # what the objective is built from
    facts: dict[str, Any]  # for `run.json`, in addition to the configuration
    views: ViewPlan | None  # None if no views are stored

    def follow(self, members: Sequence[Run]) -> None:
        """Note the members whose weights the run follows."""
        # Relative, so that a folder of runs can be moved as a whole.
        self.facts["members"] = [os.path.relpath(run.folder, self.out) for run in members]
        self.facts["follows"] |= follows(self.out, members)

    def write(self, status: str, **more: Any) -> Run:
        """Write `run.json`, and return the run."""
        if self.fabric.is_global_zero:
            write_run(self.out, self.config, status=status, **self.facts, **more)
        self.fabric.barrier()
        return Run.read(self.out)

    def finish(self, model: nn.Module) -> Run:
        """Write the final weights and predictions, and mark the run as finished."""
        if not self.fabric.is_global_zero:
            return self.write("finished")
        save_model(self.out, model)
        device = self.fabric.device
        for split in self.data.predicted:
            write_test_predictions(self.out, model, self.data, split=split, device=device)
        return self.write("finished", weights=sha256_of(self.out / MODEL))


def set_up_run(
    fabric: Any,
    config: Config,
    method: Method,
    out: Path,
    data: DataSet,
    old_runs: Sequence[Run],
) -> RunSetup:
    """Prepare a run, and remove the leftovers of killed processes from its folder."""
    olds = tuple(load_old_model(run, data, fabric.device, config.machine) for run in old_runs)
    student = new_model(config, data)
    check_layouts(method, config, student, olds)
    if config.fine_tune and not method.is_mean:
        load_old_weights(olds[0], student)
    student = to_device(student, fabric.device)
    learned, held_out = data.train, data.train
    if method.needs(config.options).held_out:
        learned, held_out = held_out_of(data, config.scope)
    source = _source(fabric, config, learned, augmented=True)
    views = plan_views(config, out, data, source)
    context = BuildContext(
        options=config.options,
        model=student,
        olds=olds,
        classes=len(data.class_names),
        steps=config.recipe.epochs * steps_per_epoch(config.recipe, len(source)),
        label_smoothing=config.recipe.label_smoothing,
        new_model=lambda name: to_device(new_model(config, data, name), fabric.device),
        stored=lambda reference: StoredLogits(logits_on(reference, source)),
        held_out=_source(fabric, config, held_out).batches,
    )
    measured = _source(fabric, config, data.splits[data.measured])
    setup = RunSetup(
        fabric=fabric,
        config=config,
        out=out,
        data=data,
        student=student,
        source=source,
        trackers={
            "train": FlipTracker(source, [olds], SEEN, autocast=fabric.autocast),
            data.measured: FlipTracker(measured, [olds], autocast=fabric.autocast),
        },
        context=context,
        facts=run_facts(config, out, data, student, old_runs),
        views=views,
    )
    fabric.barrier()  # all processes have read the folder before one writes to it
    if fabric.is_global_zero:
        remove_leftovers(out)
    return setup


def _source(fabric: Any, config: Config, split: Split, *, augmented: bool = False) -> BatchSource:
    return BatchSource(
        split,
        device=fabric.device,
        model=config.model,
        augmentation=build_augmentation(config.recipe.augment) if augmented else None,
        seed=config.seeds.of("augment") if augmented else 0,
        dtype=input_type(config.machine),
    )
