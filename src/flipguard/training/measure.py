"""What a model says about a split, and how that differs from what old models say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.methods import Old
from flipguard.models import Inputs, classify
from flipguard.references import Reference
from flipguard.training.material import Material

Rates = dict[str, float]


@torch.no_grad()
def logits_on(model: nn.Module | Reference, material: Material, most: int | None = None) -> Tensor:
    """A model's logits on a split, in eval mode."""
    if isinstance(model, Reference):
        return torch.cat([_referred(model, inputs) for inputs, _ in material.batches(most)])
    training = model.training
    model.eval()
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    found = [classify(model, _as(inputs, kind)).float() for inputs, _ in material.batches(most)]
    model.train(training)
    return torch.cat(found)


def _as(inputs: Inputs, kind: torch.dtype | None) -> Inputs:
    """Inputs as precise as the model's weights are."""
    floats = isinstance(inputs, Tensor) and inputs.is_floating_point()
    return inputs.to(kind) if floats and isinstance(inputs, Tensor) else inputs


def _referred(reference: Reference, inputs: object) -> Tensor:
    return reference(**inputs) if isinstance(inputs, dict) else reference(inputs)


class Yardstick:
    """Old models' answers on a split, computed once."""

    def __init__(
        self,
        material: Material,
        olds: tuple[Old, ...],
        most: int | None = None,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._material, self._most, self._autocast = material, most, autocast
        self._target = material.targets[:most]
        self._says = {}
        for old in olds:
            says = logits_on(old.model, material, most).argmax(-1)
            if old.classes is not None:
                says = old.classes.on(says.device).old_to_new[says]
            self._says[old.name] = says

    def rates(self, model: nn.Module) -> dict[str, float | dict[str, Rates]]:
        """Error rate, and flips and churn against each old model."""
        with self._autocast():
            says = logits_on(model, self._material, self._most).argmax(-1)
        wrong = says != self._target
        against = {
            name: {
                "negative_flip_rate": _share((old == self._target) & wrong),
                "positive_flip_rate": _share((old != self._target) & ~wrong),
                "churn": _share(old != says),
            }
            for name, old in self._says.items()
        }
        return {"error_rate": _share(wrong), "old": against}


def _share(mask: Tensor) -> float:
    return mask.sum().item() / max(len(mask), 1)
