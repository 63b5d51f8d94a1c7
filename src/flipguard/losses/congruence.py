"""The naive congruence loss (PCT, equation 6): learn again what old gets right."""

from __future__ import annotations

from flipguard.losses.classes import SharedClasses, check_classes, old_prediction
from flipguard.losses.divergences import surprise
from flipguard.losses.inputs import (
    IGNORED,
    REDUCTIONS,
    Logits,
    Loss,
    OldLogits,
    Reduction,
    Target,
    one_of,
)
from flipguard.losses.slopes import reduced
from flipguard.losses.targets import read_target
from flipguard.losses.terms import Term


def naive_congruence(
    *,
    new: Logits,
    old: OldLogits,
    target: Target,
    classes: SharedClasses | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Loss:
    """``-[old right] log p_new(target)`` a sample. See :class:`NaiveCongruence`."""
    one_of("reduction", reduction, REDUCTIONS)
    check_classes("old", old=old, new=new, classes=classes)
    aim = read_target(target, new=new, ignore_index=ignore_index)
    # Where old is right, the target is what old says; elsewhere the weight is 0.
    says = old_prediction(old.detach(), classes)
    sloped = surprise(new, says if classes is None else says.clamp(min=0))
    weight = aim.mass_at(says).to(sloped.value.dtype)
    return reduced((new,), sloped, weight=weight, count=aim.count(), reduction=reduction)


class NaiveCongruence(Term):
    """The naive congruence loss (PCT, equation 6): cross-entropy again on what old gets right.

    The term is the mean over the batch of ``-[old right] log p_new(target)``.

    Args:
        classes: which classes are the same, if old knows other ones than new.
        ignore_index: a target that marks samples without one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> pull = NaiveCongruence()
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> pull(new=new, old=old, target=torch.tensor([0, 1]))  # log(2) / 2
    tensor(0.3466, grad_fn=<...>)
    """

    def __init__(
        self,
        *,
        classes: SharedClasses | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        one_of("reduction", reduction, REDUCTIONS)
        self.classes = classes
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, *, new: Logits, old: OldLogits, target: Target) -> Loss:
        """The term for a batch."""
        return naive_congruence(
            new=new,
            old=old,
            target=target,
            classes=self.classes,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
