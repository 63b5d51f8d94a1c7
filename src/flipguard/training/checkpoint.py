"""Weights of runs: written into a run folder, and read back as a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from flipguard.training.folder import MODEL, Run, digest_of, save
from flipguard.training.members import member_count


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
