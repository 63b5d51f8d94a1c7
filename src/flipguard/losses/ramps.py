"""How the strength of a term grows with the steps of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, overload

import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.losses.inputs import at_least, one_of

RampKind: TypeAlias = Literal["linear", "step", "none"]
RAMPS = ("linear", "step", "none")


@dataclass(frozen=True, slots=True)
class Ramp:
    """The strength of a term at a step of training (Reproducibility, appendix C).

    ``"linear"`` grows evenly from 0 and stays at `strength` from step `steps` on; ``"step"`` is 0
    up to and with step `steps`, the burn-in, and `strength` after it; ``"none"`` is `strength`
    throughout. A step that is a tensor gives a tensor, as a captured graph needs it.

    >>> ramp = Ramp("linear", strength=0.04, steps=100)
    >>> [ramp(step) for step in (0, 50, 100, 500)]
    [0.0, 0.02, 0.04, 0.04]
    """

    kind: RampKind = "linear"
    strength: float = 1.0
    steps: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, RAMPS)
        at_least("strength", self.strength, 0)
        if not isinstance(self.steps, int) or self.steps < 0:
            raise InputError(
                f"Expected `steps` to be a whole number of at least 0, but got {self.steps!r}."
            )

    @overload
    def __call__(self, step: int) -> float: ...

    @overload
    def __call__(self, step: Tensor) -> Tensor: ...

    def __call__(self, step: int | Tensor) -> float | Tensor:
        """The strength at a step; the first step is 0."""
        if isinstance(step, Tensor):
            return self._of_tensor(step)
        if self.kind == "none" or (self.kind == "linear" and step >= self.steps):
            return self.strength
        if self.kind == "linear":
            return self.strength * step / self.steps
        return self.strength if step > self.steps else 0.0

    def _of_tensor(self, step: Tensor) -> Tensor:
        whole = torch.full_like(step, self.strength, dtype=torch.get_default_dtype())
        if self.kind == "none":
            return whole
        if self.kind == "step":
            return whole * (step > self.steps)
        return whole * (step / max(self.steps, 1)).clamp(max=1) if self.steps else whole
