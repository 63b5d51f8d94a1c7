"""The naive congruence loss (PCT, equation 6): learn again what old gets right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flipguard.losses.classes import SharedClasses, check_classes, old_prediction
from flipguard.losses.divergences import surprise
from flipguard.losses.inputs import (
    IGNORED,
    Logits,
    Loss,
    OldLogits,
    Reduction,
    Target,
)
from flipguard.losses.slopes import reduced
from flipguard.losses.targets import read_target
from flipguard.losses.terms import LossTerm, options_of


@dataclass(kw_only=True, eq=False, repr=False)
class NaiveCongruence(LossTerm):
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

    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"

    def forward(self, *, new: Logits, old: OldLogits, target: Target) -> Loss:
        """The term for a batch."""
        check_classes("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        # Where old is right, the target is what old says; elsewhere the weight is 0.
        says = old_prediction(old.detach(), self.classes)
        sloped = surprise(new, says if self.classes is None else says.clamp(min=0))
        weight = aim.mass_at(says).to(sloped.value.dtype)
        return reduced((new,), sloped, weight=weight, count=aim.count(), reduction=self.reduction)


@options_of(NaiveCongruence)
def naive_congruence(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] log p_new(target)`` per sample. See :class:`NaiveCongruence`."""
    return NaiveCongruence(**options).forward(new=new, old=old, target=target)
