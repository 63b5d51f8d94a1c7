"""Regularisers that make predictions more confident (Reproducibility, equations 6 and 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flipguard.errors import InputError
from flipguard.losses.divergences import (
    divergence_from_uniform,
    entropy,
    top_divergence_from_uniform,
    top_entropy,
)
from flipguard.losses.inputs import (
    Logits,
    Loss,
    Reduction,
    at_least,
    check_scores,
    whole,
)
from flipguard.losses.ranking import highest
from flipguard.losses.slopes import reduced
from flipguard.losses.terms import LossTerm, options_of

LEAST_FLOOR = 1e-30


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
            sloped = entropy(new)
        return reduced((new,), sloped, reduction=self.reduction)


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
        return reduced((new,), sloped, reduction=self.reduction)


@options_of(UniformDivergence)
def uniform_divergence(*, new: Logits, **options: Any) -> Loss:
    """How far new's predictions are from uniform. See :class:`UniformDivergence`."""
    return UniformDivergence(**options).forward(new=new)
