"""What is kept of a training: its state after an epoch, and the weights that it ends with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from flipguard.data import DataSet
from flipguard.errors import InputError
from flipguard.losses import SharedClasses
from flipguard.losses.inputs import computed
from flipguard.methods import Old, method_of
from flipguard.models import Inputs, build_model, classify
from flipguard.references import OldModel
from flipguard.training.config import Machine
from flipguard.training.devices import in_precision, placed
from flipguard.training.folder import (
    CHECKPOINT,
    HISTORY,
    MODEL,
    TIMING,
    Run,
    digest_of,
    save,
    write_lines,
)
from flipguard.training.members import member_count
from flipguard.training.optimizers import restore_optimizer
from flipguard.training.states import state_at
from flipguard.training.trainee import Trainee

Rows: TypeAlias = list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a training has come."""

    epoch: int = 0
    step: int = 0
    histories: list[Rows]  # of each model
    timing: Rows = field(default_factory=list)

    def add(self, rows: Rows) -> None:
        """Add a row to each model's history."""
        for history, row in zip(self.histories, rows, strict=True):
            history.append(row)


class CheckpointStore:
    """The state after an epoch, in a folder: all that a restart needs.

    Args:
        folder: The run's folder, or the group's.
        digest: What decides the state: of one model, or of each model of a group.
        save_seconds: At least so long between two states, unless training ends.
        writes_history: Whether the folder is a run's, which shows what is kept in the state. The
            histories of a group are written into its members' folders when it ends.
    """

    def __init__(
        self,
        folder: Path,
        digest: str | list[str],
        *,
        save_seconds: float,
        writes_history: bool,
    ) -> None:
        self._folder, self._digest = folder, digest
        self._save_seconds, self._writes_history = save_seconds, writes_history
        self._saved = time.monotonic()

    def restore(self, trainee: Trainee, optimizer: Any) -> Progress:
        """Go back to the state in the folder, if there is one; return how far it had come."""
        path = self._folder / CHECKPOINT
        if not path.exists():
            if (self._folder / HISTORY).exists():
                raise InputError(
                    f"Expected {path}, the state after the last epoch, but there is no such file; "
                    f"remove {self._folder} to begin again."
                )
            return Progress(histories=[[] for _ in range(trainee.count)])
        with state_at(path, of=self._folder, digest=self._digest) as state:
            trainee.load_state(state)
            restore_optimizer(optimizer, state["optimizer"])
            progress = Progress(
                epoch=state["epoch"],
                step=state["step"],
                # States of single runs had one history once.
                histories=state["histories"] if "histories" in state else [state["history"]],
                timing=state["timing"],
            )
        # A process that was killed may have saved the state, but not the history.
        self._write_history(progress)
        self._saved = time.monotonic()
        return progress

    def save(self, trainee: Trainee, optimizer: Any, progress: Progress, *, at_once: bool) -> None:
        """Save the state if it is time to, or `at_once`."""
        if not at_once and time.monotonic() - self._saved < self._save_seconds:
            return
        state = {
            "digest": self._digest,
            "epoch": progress.epoch,
            "step": progress.step,
            "histories": progress.histories,
            "timing": progress.timing,
            **trainee.state(),
            "optimizer": optimizer.state_dict(),
        }
        save(self._folder / CHECKPOINT, lambda path: torch.save(state, path))
        self._write_history(progress)
        self._saved = time.monotonic()

    def _write_history(self, progress: Progress) -> None:
        if self._writes_history and progress.epoch:
            write_lines(self._folder / TIMING, progress.timing)
            write_lines(self._folder / HISTORY, progress.histories[0])


class EnsembleModel(nn.Module):
    """Several models as one that returns the mean of their logits."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Inputs | None = None, /, **named: Tensor) -> Tensor:
        """Called as its members are: with one tensor, or with several by name, as texts are."""
        given = named if inputs is None else inputs
        return torch.stack([computed(classify(member, given)) for member in self.members]).mean(0)


def save_model(out: Path, model: nn.Module) -> None:
    """Write a model's weights into a run folder."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save(out / MODEL, lambda path: save_file(state, str(path)))


def load_model(run: Run, machine: Machine | None = None) -> nn.Module:
    """Return the model of a finished run, in a machine's precision or in that of its training."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not run.finished:
        raise InputError(
            f"Expected {run.folder} to be a finished run, but it is {run.status}; resume it first."
        )
    model = in_precision(_built(run), machine or run.config.machine)
    path = run.folder / MODEL
    told = run.document.get("weights")
    try:
        if told is not None and told != digest_of(path):
            raise OSError("other weights than the run ended with")
        model.load_state_dict(load_file(str(path)))
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise InputError(
            f"Expected {path} to hold the weights of the run, but it is missing or damaged "
            f"({type(problem).__name__}); train it again."
        ) from problem
    return model


def _built(run: Run) -> nn.Module:
    def one() -> nn.Module:
        return build_model(
            run.config.model,
            classes=len(run.class_names),
            input_shape=run.input_shape,
            seed=run.config.seeds.of("init"),
        )

    if not method_of(run.config.method)[0].is_mean:
        return one()
    return EnsembleModel([one() for _ in range(member_count(run.config))])


def load_ensemble(runs: Sequence[Run], machine: Machine) -> EnsembleModel:
    """Return the models of finished runs as one model in eval mode."""
    return EnsembleModel([load_model(run, machine) for run in runs]).eval()


def load_old_model(run: Run, data: DataSet, device: torch.device, machine: Machine) -> Old:
    """Return the model of an old run, with its classes matched to those of the data."""
    model = placed(load_model(run, machine), device).eval().requires_grad_(False)
    classes = None
    if run.class_names != data.class_names:
        classes = SharedClasses.by_name(old=run.class_names, new=data.class_names)
    return Old(name=str(run.folder), reference=OldModel(model), model=model, classes=classes)
