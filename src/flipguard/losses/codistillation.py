"""Co-distillation: two models that learn to agree (Reproducibility, equations 9 and 18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flipguard.losses.divergences import cross_entropy, symmetric_kl
from flipguard.losses.inputs import (
    Logits,
    Loss,
    Reduction,
    check_same_shape,
    check_scores,
    one_of,
)
from flipguard.losses.slopes import reduced
from flipguard.losses.terms import LossTerm, options_of

Kind: TypeAlias = Literal["skl", "ce"]
KINDS = ("skl", "ce")


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
            return reduced((first,), sloped, reduction=self.reduction)
        return reduced((first, second), symmetric_kl(first, second), reduction=self.reduction)


@options_of(CoDistillation)
def codistillation(*, first: Logits, second: Logits, **options: Any) -> Loss:
    """How much two models' predictions differ. See :class:`CoDistillation`."""
    return CoDistillation(**options).forward(first=first, second=second)
