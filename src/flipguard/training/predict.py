"""Write the predictions of a run as a prediction table, which `flipguard compare` reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.archives import write_npz
from flipguard.data import DataSet, Split
from flipguard.errors import InputError, listed
from flipguard.files import save
from flipguard.locks import alone_in
from flipguard.models.code import allowing_code
from flipguard.run_document import RUN
from flipguard.runs.folder import Run, predictions_path
from flipguard.runs.history import SPLITS
from flipguard.runs.targets import class_indices, written_targets
from flipguard.training.batches import BatchSource, data_of
from flipguard.training.checkpoint import load_model
from flipguard.training.evaluate import logits_on


def predict(
    run: Run, *, split: str, out: Path, device: str = "cpu", allow_code: bool = False
) -> None:
    """Write a run's predictions on a split of its data.

    `allow_code` is needed for a run whose model a function makes (``python:``), which is called.
    """
    if split not in SPLITS:
        raise InputError(f"Expected `split=` to be train, validation or test, but got {split!r}.")
    data = data_of(run.config)
    if split not in data.splits:
        raise InputError(
            f"Expected `split='validation'` of a run with a validation split, but {run.folder} was "
            "trained without one; train it with scope.validation=0.1, or predict test."
        )
    if data.fingerprint != run.document["data"]["fingerprint"]:
        raise InputError(
            f"Expected the data that {run.folder} was trained on, but {run.config.data} has "
            "changed; restore it, or train the run again."
        )
    with allowing_code(allow_code):
        model = load_model(run).to(device)
    with alone_at(out):
        table = _table(run, model, data, split=split, device=torch.device(device))
        save(out, lambda path: write_npz(path, **table))


def alone_at(out: Path) -> AbstractContextManager[None]:
    """Lock the run folder that contains a file; do nothing if no run folder does."""
    run = next((folder for folder in out.absolute().parents if (folder / RUN).exists()), None)
    return nullcontext() if run is None else alone_in(run, report=lambda _: None)


def write_test_predictions(
    folder: Path, model: nn.Module, data: DataSet, *, split: str, device: torch.device
) -> float:
    """Write a prediction table into a run's folder, and return its error rate."""
    run = Run.read(folder)
    table = _table(run, model, data, split=split, device=device)
    save(predictions_path(folder, split), lambda path: write_npz(path, **table))
    targets = class_indices(table["targets"], run.class_names)
    return float((table["logits"].argmax(-1) != targets).mean())


def _table(
    run: Run, model: nn.Module, data: DataSet, *, split: str, device: torch.device
) -> dict[str, Any]:
    """Return the arrays of a prediction table, for the classes that the model knows."""
    samples, targets = _known(data.splits[split], data.class_names, run.class_names)
    # A model that was trained in double precision also predicts in it.
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    source = BatchSource(samples, device=device, model=run.config.model, dtype=dtype)
    return {
        "ids": samples.ids if isinstance(samples.ids, list) else samples.ids.cpu().numpy(),
        "targets": written_targets(targets.cpu().numpy(), run.class_names),
        "logits": logits_on(model, source).cpu().numpy(),
        "class_names": run.class_names,
    }


def _known(samples: Split, names: Sequence[str], known: Sequence[str]) -> tuple[Split, Tensor]:
    """Return the samples of the classes that a model knows, and their targets among these."""
    if tuple(names) == tuple(known):
        return samples, samples.targets
    places = {name: index for index, name in enumerate(known)}
    own = torch.tensor([places.get(name, -1) for name in names])[samples.targets.cpu()]
    if not bool((own >= 0).any()):
        raise InputError(
            f"Expected samples of the classes {listed(known)}, which the model knows, but got "
            "none; choose other data."
        )
    return samples.subset((own >= 0).to(samples.targets.device)), own[own >= 0]
