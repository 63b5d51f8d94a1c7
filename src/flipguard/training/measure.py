"""What a model says about a split, and how that differs from what old models say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.data import stratified
from flipguard.methods import Old
from flipguard.models import classify
from flipguard.references import Reference
from flipguard.training.material import Material

# Training samples that the rates of an epoch are measured on, at most.
SEEN = 5_000


@torch.no_grad()
def logits_on(
    model: nn.Module | Reference, material: Material, places: Tensor | None = None
) -> Tensor:
    """A model's logits on the samples of a split, or on some of them, in eval mode."""
    if isinstance(model, Reference):
        return torch.cat([_referred(model, inputs) for inputs, _ in material.batches(places)])
    training = model.training
    model.eval()
    found = [classify(model, inputs).float() for inputs, _ in material.batches(places)]
    model.train(training)
    return torch.cat(found)


def _referred(reference: Reference, inputs: object) -> Tensor:
    return reference(**inputs) if isinstance(inputs, dict) else reference(inputs)


class Yardstick:
    """Old models' answers on a split, computed once, and rates of new models against them.

    Rates against an old model are those of the samples whose class it knows: the rates that
    `compare` gives for both runs' prediction files, in which an old run has no other samples.

    Args:
        material: The split.
        olds: The old models of each new model; all new models have equally many.
        most: Of a larger split so many samples are measured, each class with its share.
        autocast: The precision in which new models answer.
    """

    def __init__(
        self,
        material: Material,
        olds: Sequence[tuple[Old, ...]],
        most: int | None = None,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._material, self._autocast = material, autocast
        self._places = None if most is None else stratified(material.split, most)
        target = material.targets
        self._target = target if self._places is None else target[self._places.to(target.device)]
        self._names = [[old.name for old in each] for each in olds]
        every = {old.name: old for each in olds for old in each}
        says = {name: self._said_by(old) for name, old in every.items()}
        knows = {name: self._known_to(old) for name, old in every.items()}
        # One row per new model: its first old model's answers, then its second's.
        self._against = [
            (torch.stack([says[n] for n in names]), torch.stack([knows[n] for n in names]))
            for names in zip(*self._names, strict=True)
        ]

    def _said_by(self, old: Old) -> Tensor:
        says = logits_on(old.model, self._material, self._places).argmax(-1)
        return says if old.classes is None else old.classes.on(says.device).old_to_new[says]

    def _known_to(self, old: Old) -> Tensor:
        if old.classes is None:
            return torch.ones_like(self._target, dtype=torch.bool)
        return old.classes.on(self._target.device).known[self._target]

    def rates(self, model: nn.Module) -> dict[str, Any]:
        """Error rate, and flips and churn against each old model."""
        with self._autocast():
            says = logits_on(model, self._material, self._places).argmax(-1)
        return self._rates(says.unsqueeze(0))[0]

    def _rates(self, says: Tensor) -> list[dict[str, Any]]:
        """The rates of each new model, from its answers [models, samples]."""
        wrong = says != self._target
        every = torch.ones_like(wrong)
        own = _shares(wrong, every)
        against = [
            {
                "negative_flip_rate": _shares((old == self._target) & wrong, known),
                "positive_flip_rate": _shares((old != self._target) & ~wrong, known),
                "churn": _shares(old != says, known),
            }
            for old, known in self._against
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
    """The share of `among` in which a mask is true, row by row; None where there is nothing."""
    hits, counts = (mask & among).sum(1).tolist(), among.sum(1).tolist()
    return [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]
