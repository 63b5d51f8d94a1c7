"""What every reference is: a callable from a batch to logits, apart from the student it guides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from flipguard.errors import InputError

Output = Callable[[Any], Tensor]
"""Picks the logits from what a model returns."""


class Reference(ABC):
    """What a new model is pulled towards: called with a batch, it gives logits [N, C].

    It gives no gradient, draws no random number that the caller would miss, and is no
    `torch.nn.Module`: assigned to a student, it is not trained, saved, moved or copied with it.

    >>> from flipguard.references import OldModel
    >>> student = torch.nn.Linear(2, 3)
    >>> student.reference = OldModel(torch.nn.Linear(2, 3))
    >>> list(student.state_dict())
    ['weight', 'bias']
    """

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """The logits of a batch."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Moves what the reference holds to a device, and gives the reference itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Averaged copies of a student are deep copies; they must not multiply its teachers.
        return self


def logits_of(output: Any, pick: Output | None = None) -> Tensor:
    """The logits in what a model returned; `pick` says where they are if it is not plain.

    >>> logits_of({"logits": torch.zeros(1, 2), "loss": None})
    tensor([[0., 0.]])
    >>> logits_of((torch.zeros(1, 2), torch.ones(1, 3)), lambda pair: pair[1])
    tensor([[1., 1., 1.]])
    """
    if pick is not None:
        found: Any = pick(output)
        if not isinstance(found, Tensor):
            raise InputError(
                f"Expected `output` to pick a tensor of logits, but got {_kind(found)}. Give a "
                "callable that picks the logits from what the model returns."
            )
    else:
        found = output
        if not isinstance(found, Tensor):
            found = getattr(output, "logits", None)
        if found is None and isinstance(output, Mapping):
            found = output.get("logits")
        if not isinstance(found, Tensor):
            raise InputError(
                "Expected `model` to return a tensor, an object with `.logits` or a mapping with "
                f"'logits', but got {_kind(output)}. Pass `output=`, a callable that picks the "
                "logits from what the model returns."
            )
    if not found.is_floating_point():
        raise InputError(
            f"Expected `model` to return logits as floats, but got {found.dtype}. Return the "
            "scores of all classes, not the predicted class."
        )
    return found


def _kind(value: object) -> str:
    return type(value).__name__
