"""Losses against churn: confident predictions, co-distillation, and ramps of their strength."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.losses.base import (
    Logits,
    Loss,
    LossTerm,
    Reduction,
    at_least,
    check_same_shape,
    check_scores,
    one_of,
    options_of,
    reduce_loss,
    whole,
)
from flipguard.losses.divergences import (
    cross_entropy,
    divergence_from_uniform,
    entropy_with_gradient,
    highest,
    symmetric_kl,
    top_divergence_from_uniform,
    top_entropy,
)

LEAST_FLOOR = 1e-30

Kind: TypeAlias = Literal["skl", "ce"]
KINDS = ("skl", "ce")

RampKind: TypeAlias = Literal["linear", "step", "none"]
RAMPS = ("linear", "step", "none")


@dataclass(kw_only=True, eq=False, repr=False)
class EntropyRegularizer(LossTerm):
    """Minimum entropy (Reproducibility, equation 6): predictions that are sure flip less.

    The term is the mean over the batch of ``-sum_c p_c log p_c``. The paper's objective is
    ``(1 - alpha) * cross_entropy + alpha * term``; its best alphas are 0.15 to 0.4.

    Args:
        k: sum over the k most likely classes alone; p stays the softmax over all classes.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> EntropyRegularizer()(new=torch.zeros(3, 4, requires_grad=True))  # log(4)
    tensor(1.3863, grad_fn=<...>)
    """

    k: int | None = None
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        whole("k", self.k)
        super().__post_init__()

    def forward(self, *, new: Logits) -> Loss:
        """The term for a batch."""
        check_scores("new", new)
        if self.k is not None and self.k < new.shape[-1]:
            sloped = top_entropy(new, highest(new.detach(), self.k))
        else:
            sloped = entropy_with_gradient(new)
        return reduce_loss((new,), sloped, reduction=self.reduction)


@options_of(EntropyRegularizer)
def entropy_regularizer(*, new: Logits, **options: Any) -> Loss:
    """The entropy of new's predictions. See :class:`EntropyRegularizer`."""
    return EntropyRegularizer(**options).forward(new=new)


@dataclass(kw_only=True, eq=False, repr=False)
class UniformDivergence(LossTerm):
    """Divergence from uniform (Reproducibility, equation 7): how sure predictions are; subtract it.

    The mean over the batch of ``KL(p || uniform) + KL(uniform || p)``, which is
    ``sum_c (p_c - 1/C) log(C p_c)``. It grows with confidence, so it is to be **subtracted**: the
    paper's objective is ``(1 - alpha) * cross_entropy - alpha * divergence``.

    As printed it has no bound: once the training error is below alpha or so, logits that grow
    forever lower the loss forever, and little else is learnt. A floor bounds it.

    Args:
        k: sum over the k most likely classes alone; p stays the softmax over all classes.
        floor: added to probabilities under the logarithm, ``log(C (p_c + floor))``; 0 is the
            equation as printed, 1e-7 what training by the method ``skl`` takes.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> UniformDivergence()(new=torch.tensor([[2.0, 0.0]], requires_grad=True))
    tensor(0.7616, grad_fn=<...>)
    """

    k: int | None = None
    floor: float = 0.0
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        whole("k", self.k)
        at_least("floor", self.floor, 0)
        if 0 < self.floor < LEAST_FLOOR:
            raise InputError(
                f"Expected `floor` to be 0 or at least {LEAST_FLOOR:g}, below which single "
                f"precision has no reciprocal, but got {self.floor:g}."
            )
        super().__post_init__()

    def forward(self, *, new: Logits) -> Loss:
        """The divergence for a batch."""
        check_scores("new", new)
        if self.k is not None and self.k < new.shape[-1]:
            sloped = top_divergence_from_uniform(new, highest(new.detach(), self.k), self.floor)
        else:
            sloped = divergence_from_uniform(new, self.floor)
        return reduce_loss((new,), sloped, reduction=self.reduction)


@options_of(UniformDivergence)
def uniform_divergence(*, new: Logits, **options: Any) -> Loss:
    """How far new's predictions are from uniform. See :class:`UniformDivergence`."""
    return UniformDivergence(**options).forward(new=new)


@dataclass(kw_only=True, eq=False, repr=False)
class CoDistillation(LossTerm):
    """Co-distillation (Reproducibility, equations 9 and 18): two models that learn to agree.

    ``kind="skl"``: the mean over the batch of ``KL(p || q) + KL(q || p)``. Both models learn from
    it; add it once to the sum of both models' losses, with a strength that ramps up linearly.

    ``kind="ce"``: the mean of ``-sum_c q_c log p_c``, for independent updates: the first model
    learns, the second is a peer that stands still (a stale copy). Each model has a term of its own,
    with a strength that starts after a burn-in.

    Args:
        kind: ``"skl"`` (the paper's) or ``"ce"`` (Anil et al., 2018).
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> first = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> second = torch.tensor([[0.0, 0.0]], requires_grad=True)
    >>> agree = CoDistillation()(first=first, second=second)
    >>> agree.backward()
    >>> agree, first.grad, second.grad
    (tensor(0.2311, grad_fn=<...>), tensor([[ 0.4277, -0.4277]]), tensor([[-0.4811,  0.4811]]))
    """

    kind: Kind = "skl"
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        one_of("kind", self.kind, KINDS)
        super().__post_init__()

    def forward(self, *, first: Logits, second: Logits) -> Loss:
        """The term for a batch that both models saw."""
        check_scores("first", first)
        check_same_shape("second", second, "first", first)
        if self.kind == "ce":
            sloped = cross_entropy(first, second.detach())
            return reduce_loss((first,), sloped, reduction=self.reduction)
        return reduce_loss((first, second), symmetric_kl(first, second), reduction=self.reduction)


@options_of(CoDistillation)
def codistillation(*, first: Logits, second: Logits, **options: Any) -> Loss:
    """How much two models' predictions differ. See :class:`CoDistillation`."""
    return CoDistillation(**options).forward(first=first, second=second)


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
