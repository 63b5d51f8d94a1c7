"""Save and read training states and weights, and copy weights from an old model."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from flipguard.data import DataSet
from flipguard.errors import InputError, printable
from flipguard.files import save, sha256_of
from flipguard.losses import SharedClasses
from flipguard.methods import OldModelInfo, method_of
from flipguard.models import build_model, classify, head_of, same_layout
from flipguard.models.code import allowing_code
from flipguard.models.preprocessing import Preprocessing, preprocess_with, preprocessing_of
from flipguard.models.shapes import Shape
from flipguard.references import OldModel
from flipguard.run_document import how_to_finish
from flipguard.runs.config import Config, Machine, decisive
from flipguard.runs.folder import CHECKPOINT, MODEL, Run, write_lines
from flipguard.runs.history import HISTORY, TIMING
from flipguard.training.batches import input_shape_of
from flipguard.training.devices import in_precision, to_device
from flipguard.training.evaluate import EnsembleModel
from flipguard.training.members import member_count
from flipguard.training.starting import with_own_inputs
from flipguard.training.trainee import Trainee, restore_optimizer

M = TypeVar("M", bound=nn.Module)
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
    """Saves and restores the training state after an epoch, which is all that a restart needs.

    Args:
        folder: The run's folder, or the group's.
        digest: The `state_digest` of one model, or of each model of a group.
        save_seconds: The minimal time between two states, except at the end of training.
        writes_history: Whether the folder is that of a run, which gets the history of the state.
            The histories of a group are written into its members' folders when it ends.
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
        with read_checkpoint(path, of=self._folder, digest=self._digest) as state:
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


def save_model(out: Path, model: nn.Module) -> None:
    """Write a model's weights into a run folder."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save(out / MODEL, lambda path: save_file(state, str(path)))


def load_model(run: Run, machine: Machine | None = None, *, allow_code: bool = False) -> nn.Module:
    """Return the model of a finished run, by default in the precision that it was trained in.

    It scales its inputs itself if it has its own preprocessing; then it wants images as numbers
    from -1 to 1. `allow_code` is needed if a function makes the model (``python:``).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not run.finished:
        raise InputError(
            f"Expected {printable(str(run.folder))} to be a finished run, but it is {run.status}; "
            f"{how_to_finish(run.folder, run.document)}."
        )
    with allowing_code(allow_code):
        model = in_precision(_built(run), machine or run.config.machine)
    path = run.folder / MODEL
    told = run.document.get("weights")
    try:
        if told is not None and told != sha256_of(path):
            raise OSError("other weights than the run ended with")
        model.load_state_dict(load_file(str(path)))
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise InputError(
            f"Expected {path} to hold the weights of the run, but it is missing or damaged "
            f"({type(problem).__name__}); train it again."
        ) from problem
    return model


def _built(run: Run) -> nn.Module:
    own = {"model": run.config.model, "preprocessing": run.document.get("preprocessing")}
    if not method_of(run.config.method)[0].is_mean:
        return _part(run, own)
    # An ensemble of given runs says what each of them is.
    parts = run.document.get("parts") or [own] * member_count(run.config)
    return EnsembleModel([_part(run, {**own, **part}) for part in parts])


def _part(run: Run, told: Mapping[str, Any]) -> nn.Module:
    """Return a model of a run, with its preprocessing."""
    preprocessing, shape = told["preprocessing"], told.get("input_shape", run.input_shape)
    shape = None if shape is None else tuple(shape)
    if preprocessing is not None:
        preprocessing = Preprocessing.from_json(preprocessing)
        shape = preprocessing.shape(shape)
    model = build_model(
        told["model"],
        classes=len(run.class_names),
        input_shape=shape,
        seed=run.config.seeds.of("init"),
    )
    return with_own_inputs(model, preprocessing, shape)


def of_its_size(model: M, run: Run, shape: Shape | None) -> M:
    """Return a run's model, which resizes images of another size than it was trained on."""
    own = run.input_shape
    images = own is not None and shape is not None and len(own) == len(shape) == 3
    if not images or own == shape or preprocessing_of(model) is not None:
        return model
    assert own is not None
    return preprocess_with(model, Preprocessing(input_size=(own[-2], own[-1])))


def load_for(run: Run, machine: Machine, data: DataSet, *, role: str = "`old=`") -> nn.Module:
    """Return the model of a finished run in eval mode; raise if it cannot take the data's inputs.

    If shapes differ, one input of zeros is tried: a model may take several shapes.
    """
    shape = input_shape_of(data)
    model = of_its_size(load_model(run, machine), run, shape).eval()
    if shape in (None, run.input_shape):
        return model
    kind = next((p.dtype for p in model.parameters()), torch.float32)
    try:
        with torch.no_grad():
            classify(model, torch.zeros(1, *shape, dtype=kind))
    except Exception as problem:
        took = "texts" if run.input_shape is None else f"inputs of shape {run.input_shape}"
        raise InputError(
            f"Expected {role} to take the inputs of the data, but {printable(str(run.folder))} "
            f"takes {took} and the data have shape {shape}; give the `data=` that it was trained "
            f"on, {printable(run.config.data)}, or another run."
        ) from problem
    return model


def load_ensemble(runs: Sequence[Run], machine: Machine) -> EnsembleModel:
    """Return the models of finished runs as one model in eval mode."""
    return EnsembleModel([load_model(run, machine) for run in runs]).eval()


def load_old_model(run: Run, data: DataSet, device: torch.device, machine: Machine) -> OldModelInfo:
    """Return the model of an old run, with its classes matched to those of the data."""
    model = to_device(load_for(run, machine, data), device).requires_grad_(False)
    classes = None
    if run.class_names != data.class_names:
        classes = SharedClasses.by_name(old=run.class_names, new=data.class_names)
    return OldModelInfo(
        name=str(run.folder), reference=OldModel(model), model=model, classes=classes
    )


def state_digest(config: Config, facts: Mapping[str, Any]) -> str:
    """Return a digest of all that decides a state: settings, formula, data, followed weights.

    `facts` are those of `run_facts`. The digest does not depend on the paths of followed runs, so a
    folder of runs may be moved. A formula of 0, which has never changed, is not part of it.
    """
    weights = list(facts["follows"].values())
    what: list[Any] = [decisive(config), facts["data"]["fingerprint"], weights]
    if facts["formula"]:
        what.append(facts["formula"])
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@contextmanager
def read_checkpoint(path: Path, *, of: Path, digest: str | list[str]) -> Iterator[dict[str, Any]]:
    """Context manager that gives the state in a file; any error inside means a damaged file."""
    try:
        with zipfile.ZipFile(path) as archive:
            altered = archive.testzip()  # which torch does not look at
        if altered is not None:
            raise zipfile.BadZipFile(altered)
        state = torch.load(path, map_location="cpu", weights_only=True)
        is_same = state["digest"] == digest
    except Exception as problem:
        raise _damaged(path, of, problem) from problem
    if not is_same:
        raise InputError(
            f"Expected {printable(str(path))} to be a checkpoint of this run, but it was saved "
            "with other settings, other data, another version of the method's formula, or other "
            "weights of old models or members; restore "
            f"these, or remove {printable(str(of))} to begin again."
        )
    try:
        yield state
    except Exception as problem:
        raise _damaged(path, of, problem) from problem


def _damaged(path: Path, of: Path, problem: Exception) -> InputError:
    return InputError(
        f"Expected {printable(str(path))} to be a checkpoint to resume from, but it is damaged "
        f"({type(problem).__name__}); remove {printable(str(of))} to begin again."
    )


def weight_mismatch(old: OldModelInfo, new: nn.Module) -> str | None:
    """Return why the new model cannot start from the old model's weights; None if it can."""
    was, now = old.model.state_dict(), new.state_dict()
    if old.classes is None:
        return same_layout(was, now)
    rows = _class_wise(old, new)
    one, other = ({n: t for n, t in state.items() if n not in rows} for state in (was, now))
    return same_layout(one, other)


def load_old_weights(old: OldModelInfo, new: nn.Module) -> None:
    """Copy the old model's weights into the new model; rows of unknown classes stay as they are."""
    state: dict[str, Tensor] = dict(old.model.state_dict())
    if old.classes is not None:
        own = new.state_dict()
        known = [index for index, at in enumerate(old.classes.new_to_old) if at >= 0]
        of_old = [old.classes.new_to_old[index] for index in known]
        for name in _class_wise(old, new):
            rows = own[name].clone()
            rows[known] = state[name][of_old].to(rows)
            state[name] = rows
    new.load_state_dict(state)


def _class_wise(old: OldModelInfo, new: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that have one row per class."""
    assert old.classes is not None
    was, now = old.model.state_dict(), new.state_dict()
    counts = old.classes.old_count, len(old.classes.new_to_old)
    if counts[0] == counts[1]:
        return _of_head(new, counts[1])
    return frozenset(
        name
        for name in was.keys() & now.keys()
        if (tuple(was[name].shape[:1]), tuple(now[name].shape[:1])) == (counts[:1], counts[1:])
        and was[name].shape[1:] == now[name].shape[1:]
    )


def _of_head(new: nn.Module, classes: int) -> frozenset[str]:
    """Return the names of the head's tensors; raise if other tensors may have one row per class.

    If both models have equally many classes, shapes do not say which tensors belong to the head: a
    hidden layer may have that many rows as well. The head of flipguard's own networks is known.
    """
    try:
        head = head_of(new)
    except InputError as problem:
        raise _unclear(f"{type(new).__name__} without one") from problem
    names = {id(parameter): name for name, parameter in new.named_parameters()}
    found = frozenset(names[id(parameter)] for parameter in head.parameters())
    rows = {name for name, tensor in new.state_dict().items() if tensor.shape[:1] == (classes,)}
    if rows - found and not hasattr(new, "input_shape"):
        raise _unclear(f"`{min(rows - found)}` of {type(new).__name__}, which has {classes} too")
    if found - rows:
        raise _unclear(f"`{min(found)}` of {type(new).__name__}, which has other rows")
    return found


def _unclear(got: str) -> InputError:
    return InputError(
        "Expected fine-tuning with the old model's classes in the same order, or a model whose "
        f"linear head alone has one row per class, but got {got}; give the data the old model's "
        "order of classes."
    )
