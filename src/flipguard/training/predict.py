"""Write the predictions of a run as a prediction table, which `flipguard compare` reads."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

from flipguard.archives import write_npz
from flipguard.data import DataSet
from flipguard.errors import InputError
from flipguard.files import save
from flipguard.locks import alone_in
from flipguard.runs.folder import Run, predictions_path
from flipguard.runs.history import RUN, SPLITS
from flipguard.runs.targets import written_targets
from flipguard.training.batches import BatchSource, data_of
from flipguard.training.checkpoint import load_model
from flipguard.training.evaluate import logits_on


def predict(run: Run, *, split: str, out: Path, device: str = "cpu") -> None:
    """Write a run's predictions on a split of its data."""
    if split not in SPLITS:
        raise InputError(f"Expected `--split` to be train, validation or test, but got {split!r}.")
    data = data_of(run.config)
    if split not in data.splits:
        raise InputError(
            f"Expected `--split validation` of a run with a validation split, but {run.folder} was "
            "trained without one; train it with scope.validation=0.1, or predict test."
        )
    if data.fingerprint != run.document["data"]["fingerprint"]:
        raise InputError(
            f"Expected the data that {run.folder} was trained on, but {run.config.data} has "
            "changed; restore it, or train the run again."
        )
    model = load_model(run).to(device)
    with alone_at(out):
        save(
            out,
            lambda path: _write(
                path, model, data, split=split, device=torch.device(device), spec=run.config.model
            ),
        )


def alone_at(out: Path) -> AbstractContextManager[None]:
    """Lock the run folder that contains a file; do nothing if no run folder does."""
    run = next((folder for folder in out.absolute().parents if (folder / RUN).exists()), None)
    return nullcontext() if run is None else alone_in(run, report=lambda _: None)


def write_test_predictions(
    folder: Path, model: nn.Module, data: DataSet, *, split: str, device: torch.device
) -> None:
    """Write a prediction table into a run's folder."""
    spec = Run.read(folder).config.model
    save(
        predictions_path(folder, split),
        lambda path: _write(path, model, data, split=split, device=device, spec=spec),
    )


def _write(
    path: Path, model: nn.Module, data: DataSet, *, split: str, device: torch.device, spec: str
) -> None:
    samples = data.splits[split]
    # A model that was trained in double precision also predicts in it.
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    logits = logits_on(model, BatchSource(samples, device=device, model=spec, dtype=dtype))
    ids = samples.ids
    write_npz(
        path,
        ids=ids if isinstance(ids, list) else ids.cpu().numpy(),
        targets=written_targets(samples.targets.cpu().numpy(), data.class_names),
        logits=logits.cpu().numpy(),
        class_names=data.class_names,
    )
