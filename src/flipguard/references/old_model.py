"""The old model as a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from flipguard.references.base import Output, Reference
from flipguard.references.frozen import Frozen


class OldModel(Reference):
    """The model that is to be replaced, called as it would answer in production.

    `model` is a module, or any callable that gives logits; of a callable only gradients and
    random numbers are kept, for it cannot be looked into. Outputs with `.logits` are understood;
    of others, `output` picks the logits. A module is moved to the device of the batch.

    >>> old = OldModel(torch.nn.Linear(2, 3))
    >>> old(torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    >>> pair = OldModel(lambda x: (x, x + 1.0), output=lambda output: output[1])
    >>> pair(torch.zeros(1, 2))
    tensor([[1., 1.]])
    """

    def __init__(
        self, model: nn.Module | Callable[..., Any], *, output: Output | None = None
    ) -> None:
        self._frozen = Frozen(model, output=output)

    @property
    def model(self) -> nn.Module | Callable[..., Any]:
        """The model that was given."""
        return self._frozen.model

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._frozen(*args, **kwargs)

    def to(self, device: torch.device | str) -> Self:
        self._frozen.to(device)
        return self
