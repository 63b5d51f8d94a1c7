"""Logits of models on a split, and their error rates, flips and churn against old models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.data import stratified
from flipguard.losses.base import loss_precision
from flipguard.methods import OldModelInfo
from flipguard.models import Inputs, classify
from flipguard.models.preprocessing import preprocessing_of
from flipguard.references import Reference
from flipguard.training.batches import BatchSource

# The most training samples that the rates of an epoch are measured on.
SEEN = 5_000


class EnsembleModel(nn.Module):
    """A model that returns the mean of the logits of several models."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def decodes_apart(self) -> bool:
        """Whether members want image files in different ways."""
        return len({preprocessing_of(member) for member in self.members}) > 1

    def forward(self, inputs: Inputs | None = None, /, **named: Tensor) -> Tensor:
        """Return the mean logits for one input tensor, or for named tensors, as texts have."""
        given = named if inputs is None else inputs
        return torch.stack(
            [loss_precision(classify(member, given)) for member in self.members]
        ).mean(0)


@torch.no_grad()
def logits_on(
    model: nn.Module | Reference, material: BatchSource, places: Tensor | None = None
) -> Tensor:
    """Return a model's logits on the samples of a split, or on some of them, in eval mode."""
    if isinstance(model, Reference):
        return torch.cat([_referred(model, inputs) for inputs, _ in material.batches(places)])
    if isinstance(model, EnsembleModel) and model.decodes_apart:
        each = [loss_precision(logits_on(one, material, places)) for one in model.members]
        return torch.stack(each).mean(0)
    # Image files are decoded as the model wants them.
    material = material.seen_by(preprocessing_of(model))
    training = model.training
    model.eval()
    found = [classify(model, inputs).float() for inputs, _ in material.batches(places)]
    model.train(training)
    return torch.cat(found)


def _referred(reference: Reference, inputs: object) -> Tensor:
    return reference(**inputs) if isinstance(inputs, dict) else reference(inputs)


def classes_of(model: nn.Module) -> Callable[[Inputs], Tensor]:
    """Return a function that gives the classes [1, n] that a model predicts."""
    return lambda inputs: classify(model, inputs).float().argmax(-1).unsqueeze(0)


class FlipTracker:
    """The classes that old models predict on a split, and the flips of new models against them.

    The old models' predictions are computed once. Rates against an old model use only the samples
    whose class it knows. They equal the rates that `compare` gives for the prediction files of both
    runs, because an old run's file has no samples of other classes.

    Args:
        material: The split.
        olds: The old models of each new model; all new models have equally many.
        most: The most samples that are measured; a larger split is sampled by class.
        autocast: The precision in which new models are computed.
    """

    def __init__(
        self,
        material: BatchSource,
        olds: Sequence[tuple[OldModelInfo, ...]],
        most: int | None = None,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._material, self._autocast = material, autocast
        self._indices = None if most is None else stratified(material.split, most)
        target = material.targets
        self._target = target if self._indices is None else target[self._indices.to(target.device)]
        self._names = [[old.name for old in each] for each in olds]
        every = {old.name: old for each in olds for old in each}
        predicted = {name: self._predicted_by(old) for name, old in every.items()}
        known = {name: self._known_to(old) for name, old in every.items()}
        # One row per new model: its first old model's classes, then its second's.
        self._olds = [
            (torch.stack([predicted[n] for n in names]), torch.stack([known[n] for n in names]))
            for names in zip(*self._names, strict=True)
        ]

    def _predicted_by(self, old: OldModelInfo) -> Tensor:
        found = logits_on(old.model, self._material, self._indices).argmax(-1)
        return found if old.classes is None else old.classes.on(found.device).old_to_new[found]

    def _known_to(self, old: OldModelInfo) -> Tensor:
        if old.classes is None:
            return torch.ones_like(self._target, dtype=torch.bool)
        return old.classes.on(self._target.device).known[self._target]

    @torch.no_grad()
    def rates(self, model: nn.Module, classes: Callable[[Inputs], Tensor]) -> list[dict[str, Any]]:
        """Return the error rate of each new model, and its flips and churn against its old models.

        `classes` gives the classes [m, n] that all new models predict; `model` holds them, and is
        in eval mode meanwhile.
        """
        training = model.training
        model.eval()
        with self._autocast():
            found = [classes(inputs) for inputs, _ in self._material.batches(self._indices)]
        model.train(training)
        return self.rates_of(torch.cat(found, 1))

    def rates_of(self, predicted: Tensor) -> list[dict[str, Any]]:
        """Return the rates of each new model for its classes [m, n] on the measured samples."""
        wrong = predicted != self._target
        own = _shares(wrong, torch.ones_like(wrong))
        against = [
            {
                "negative_flip_rate": _shares((old == self._target) & wrong, known),
                "positive_flip_rate": _shares((old != self._target) & ~wrong, known),
                "churn": _shares(old != predicted, known),
            }
            for old, known in self._olds
        ]
        return [
            {
                "error_rate": own[index],
                "old": {
                    name: {rate: values[index] for rate, values in each.items()}
                    for name, each in zip(names, against, strict=True)
                },
            }
            for index, names in enumerate(self._names)
        ]


def _shares(mask: Tensor, among: Tensor) -> list[float | None]:
    """Return the share of `among` in which a mask is true, per row; None if `among` is empty."""
    hits, counts = (mask & among).sum(1).tolist(), among.sum(1).tolist()
    return [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]
