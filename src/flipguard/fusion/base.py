"""Several members as one network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.models import Inputs


class Fused(nn.Module, ABC):
    """m replicas of one network, computed together and independent of each other.

    Called with inputs [n, ...] that all members see, or [m, n, ...], a batch for each, it gives
    logits [m, n, classes]. All tensors of its state are the members', stacked: [m, ...], under
    the members' own names. A loss that is a sum over the members gives each its own gradient.

    Dropout draws the masks of all members from one stream: as random as each member's own, but
    not the same numbers.
    """

    way: str

    def __init__(
        self, *, body: nn.Module, names: Sequence[str], count: int, sample_dims: int
    ) -> None:
        super().__init__()
        self.body = body
        self.count: Final = count
        self.sample_dims: Final = sample_dims  # of a batch of one member
        self._names: Final = tuple(names)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._run(inputs, shared=self._is_shared(inputs))

    def parts(self) -> Sequence[Fused]:
        """The networks that it is made of: itself, unless several are side by side."""
        return (self,)

    @abstractmethod
    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        """The logits [m, n, classes]."""

    def split(self) -> list[dict[str, Tensor]]:
        """The members' state dicts: names, shapes and order as the members' own have."""
        state = self.body.state_dict()
        return [
            {name: state[name][index].clone() for name in self._names}
            for index in range(self.count)
        ]

    def decaying(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Trained parameters that are matrices or more in a member, and those that are vectors."""
        found = [p for p in self.parameters() if p.requires_grad]
        return [p for p in found if p.dim() > 2], [p for p in found if p.dim() <= 2]

    def gradient_norms(self) -> Tensor:
        """The norm of each member's gradient, [m]."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
        found: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        return found

    def finite(self) -> Tensor:
        """Whether all weights of each member are finite, [m]."""
        each = [p.detach().flatten(1).isfinite().all(1) for p in self.parameters()]
        return torch.stack(each).all(0)

    def clip(self, largest: float) -> None:
        """Scales each member's gradient down to a norm, as `clip_grad_norm_` does for one net."""
        factors = (largest / (self.gradient_norms() + 1e-6)).clamp(max=1.0)
        for parameter in self.parameters():
            if parameter.grad is not None:
                ones = [1] * (parameter.dim() - 1)
                parameter.grad.mul_(factors.to(parameter.grad.dtype).view(-1, *ones))

    def _is_shared(self, inputs: Inputs) -> bool:
        first: Any = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        if first.dim() == self.sample_dims:
            return True
        if first.dim() == self.sample_dims + 1 and len(first) == self.count:
            return False
        ones = ["n"] + ["·"] * (self.sample_dims - 1)
        raise InputError(
            f"Expected inputs of [{', '.join(ones)}] for all members or of "
            f"[{', '.join([str(self.count), *ones])}], a batch for each, but got "
            f"{list(first.shape)}; stack one batch for each member."
        )
