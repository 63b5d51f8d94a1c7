"""Losses against churn: regularisers for confidence, co-distillation, and ramps of a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, overload

import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.losses.base import (
    Logits,
    Loss,
    LossCard,
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
    l1_distance,
    symmetric_kl,
    top_divergence_from_uniform,
    top_entropy,
)

LEAST_FLOOR = 1e-30

Kind: TypeAlias = Literal["skl", "ce", "l1"]
KINDS = ("skl", "ce", "l1")

RampKind: TypeAlias = Literal["linear", "step", "none"]
RAMPS = ("linear", "step", "none")


@dataclass(kw_only=True, eq=False, repr=False)
class EntropyRegularizer(LossTerm):
    """Minimum entropy (Reproducibility, equation 6): more confident predictions flip less.

    The term is the mean over the batch of ``-sum_c p_c log p_c``. The paper's objective is
    ``(1 - alpha) * cross_entropy + alpha * term``; its best alphas are 0.15 to 0.4.

    Args:
        k: sum only over the k most probable classes; p is still the softmax over all classes.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> EntropyRegularizer()(new=torch.zeros(3, 4, requires_grad=True))  # log(4)
    tensor(1.3863, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Without an old model",
        formula="1/N sum_i -sum_c p_c(x_i) log p_c(x_i)",
        use="To lower churn between retrains without any reference: confident predictions flip "
        "less.",
        paper="Reproducibility, equation 6: (1 - alpha) cross-entropy + alpha entropy, best alpha "
        "0.15 to 0.4; k = 10 on ImageNet",
        pitfalls="It makes the model over-confident (calibration gets worse). The paper says only "
        'that the top-k form penalises "the top k predictions". Here p is the softmax over all '
        "classes, and the sum runs over k of them.",
    )

    k: int | None = None
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        whole("k", self.k)
        super().__post_init__()

    def forward(self, *, new: Logits) -> Loss:
        """Return the term for a batch."""
        check_scores("new", new)
        if self.k is not None and self.k < new.shape[-1]:
            sloped = top_entropy(new, highest(new.detach(), self.k))
        else:
            sloped = entropy_with_gradient(new)
        return reduce_loss((new,), sloped, reduction=self.reduction)


@options_of(EntropyRegularizer)
def entropy_regularizer(*, new: Logits, **options: Any) -> Loss:
    """Return the entropy of the new model's predictions. See :class:`EntropyRegularizer`."""
    return EntropyRegularizer(**options).forward(new=new)


@dataclass(kw_only=True, eq=False, repr=False)
class UniformDivergence(LossTerm):
    """Divergence from uniform (Reproducibility, equation 7): subtract it for confident predictions.

    It is the mean over the batch of ``KL(p || uniform) + KL(uniform || p)``, which is
    ``sum_c (p_c - 1/C) log(C p_c)``. It grows with confidence, so **subtract** it: the
    paper's objective is ``(1 - alpha) * cross_entropy - alpha * divergence``.

    As printed, it has no bound: once the training error is below about alpha, the loss can always
    be lowered by larger logits, and the model learns little else. A floor bounds it.

    Args:
        k: sum only over the k most probable classes; p is still the softmax over all classes.
        floor: added to probabilities before the logarithm, ``log(C (p_c + floor))``. 0 is the
            equation as printed, and 1e-7 the default of the method ``skl``.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> UniformDivergence()(new=torch.tensor([[2.0, 0.0]], requires_grad=True))
    tensor(0.7616, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Without an old model",
        formula="1/N sum_i sum_c (p_c(x_i) - 1/C) log(C (p_c(x_i) + floor))",
        use="Like the entropy, but its gradient does not vanish: it also pushes unlikely classes "
        "towards zero.",
        paper="Reproducibility, equation 7: (1 - alpha) cross-entropy - alpha divergence, best "
        "alpha 0.05 to 0.35",
        pitfalls="It grows with confidence: **subtract** it. In the paper, churn rose slightly "
        "with it on CIFAR-10 and ImageNet (table 2). It has no upper bound: once the training "
        "error is below about alpha, larger logits always lower the loss, and little else is "
        "learned ([measured](log.md)). `floor=1e-7` prevents this; the method `skl` uses it.",
    )

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
        """Return the divergence for a batch."""
        check_scores("new", new)
        if self.k is not None and self.k < new.shape[-1]:
            sloped = top_divergence_from_uniform(new, highest(new.detach(), self.k), self.floor)
        else:
            sloped = divergence_from_uniform(new, self.floor)
        return reduce_loss((new,), sloped, reduction=self.reduction)


@options_of(UniformDivergence)
def uniform_divergence(*, new: Logits, **options: Any) -> Loss:
    """Return how far predictions are from uniform. See :class:`UniformDivergence`."""
    return UniformDivergence(**options).forward(new=new)


@dataclass(kw_only=True, eq=False, repr=False)
class CoDistillation(LossTerm):
    """Co-distillation (Reproducibility, equations 8, 9 and 18): two models are trained to agree.

    ``kind="skl"``: the mean over the batch of ``KL(p || q) + KL(q || p)``. Both models learn from
    it: add it once to the sum of both models' losses, with a weight that grows linearly.

    ``kind="l1"``: the mean over the batch of ``sum_c |p_c - q_c|``. It is used like ``"skl"``,
    which the paper finds to be more effective.

    ``kind="ce"``: the mean of ``-sum_c q_c log p_c``, for independent updates: the first model
    learns, and the second is a fixed peer (a stale copy). Each model has one such term, with a
    weight that starts after a burn-in.

    Args:
        kind: ``"skl"`` (the paper's), ``"l1"`` (equation 8) or ``"ce"`` (Anil et al., 2018).
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> first = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> second = torch.tensor([[0.0, 0.0]], requires_grad=True)
    >>> agree = CoDistillation()(first=first, second=second)
    >>> agree.backward()
    >>> agree, first.grad, second.grad
    (tensor(0.2311, grad_fn=<...>), tensor([[ 0.4277, -0.4277]]), tensor([[-0.4811,  0.4811]]))
    """

    card: ClassVar[LossCard] = LossCard(
        section="Without an old model",
        formula="skl: 1/N sum_i KL(p || q) + KL(q || p);  l1: 1/N sum_i sum_c |p_c - q_c|;  "
        "ce: 1/N sum_i -sum_c q_c log p_c",
        use="To lower churn between retrains: train two models together and keep either. Training "
        "costs twice as much, inference nothing.",
        paper="Reproducibility, equation 9 (skl, with a linear ramp, beta 0.01 to 0.06), 8 (l1) "
        "and 18 (ce, Anil et al. 2018, with a step after a burn-in)",
        pitfalls='With `"skl"` and `"l1"` gradients reach both models: add it once to the sum of '
        'both losses, not to each. The gradient of `"l1"` jumps where two probabilities are equal, '
        'and the paper prefers `"skl"`. With `"ce"` the second model is a delayed copy, a '
        "`Peer`. Measure churn between kept models of *independent* training runs, not "
        "between the two peers.",
    )

    kind: Kind = "skl"
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        one_of("kind", self.kind, KINDS)
        super().__post_init__()

    def forward(self, *, first: Logits, second: Logits) -> Loss:
        """Return the term for a batch that both models were called with."""
        check_scores("first", first)
        check_same_shape("second", second, "first", first)
        if self.kind == "ce":
            sloped = cross_entropy(first, second.detach())
            return reduce_loss((first,), sloped, reduction=self.reduction)
        distance = l1_distance if self.kind == "l1" else symmetric_kl
        return reduce_loss((first, second), distance(first, second), reduction=self.reduction)


@options_of(CoDistillation)
def codistillation(*, first: Logits, second: Logits, **options: Any) -> Loss:
    """Return how much two models' predictions differ. See :class:`CoDistillation`."""
    return CoDistillation(**options).forward(first=first, second=second)


@dataclass(frozen=True, slots=True)
class Ramp:
    """The weight of a term at each step of training (Reproducibility, appendix C).

    ``"linear"`` grows evenly from 0 to `strength`, which it has from step `steps` on. ``"step"`` is
    0 up to and including step `steps`, the burn-in, and `strength` after it. ``"none"`` is always
    `strength`. If the step is a tensor, so is the weight, because a captured graph needs one.

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
        """Return the weight at a step; the first step is 0."""
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
