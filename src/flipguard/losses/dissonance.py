"""Dissonance losses (Bansal et al., 2019): what a new model must not unlearn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flipguard.losses.classes import (
    SharedClasses,
    check_classes,
    old_prediction,
    shared_scores,
)
from flipguard.losses.congruence import NaiveCongruence
from flipguard.losses.divergences import cross_entropy
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


class NewError(NaiveCongruence):
    """The new-error dissonance (Bansal et al., 2019): new's loss on what old gets right.

    The term is the mean over the batch of ``-[old right] log p_new(target)``: the formula of
    :class:`NaiveCongruence`, which PCT found again.

    Args:
        classes: which classes are the same, if old knows other ones than new.
        ignore_index: a target that marks samples without one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> NewError()(new=new, old=old, target=torch.tensor([0, 1]))  # log(2) / 2
    tensor(0.3466, grad_fn=<...>)
    """


@options_of(NewError)
def new_error(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] log p_new(target)`` per sample. See :class:`NewError`."""
    return NewError(**options).forward(new=new, old=old, target=target)


@dataclass(kw_only=True, eq=False, repr=False)
class StrictImitation(LossTerm):
    """The strict-imitation dissonance (Bansal et al., 2019): copy old where it is right.

    The term is the mean over the batch of ``-[old right] sum_c p_old(c) log p_new(c)``.

    Args:
        classes: which classes are the same, if old knows other ones than new.
        ignore_index: a target that marks samples without one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> StrictImitation()(new=new, old=old, target=torch.tensor([0, 1]))  # log(2) / 2
    tensor(0.3466, grad_fn=<...>)
    """

    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"

    def forward(self, *, new: Logits, old: OldLogits, target: Target) -> Loss:
        """The term for a batch."""
        check_classes("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        old = old.detach()
        student, teacher = shared_scores(new=new, old=old, classes=self.classes)
        sloped = cross_entropy(student, teacher)
        weight = aim.mass_at(old_prediction(old, self.classes)).to(sloped.value.dtype)
        return reduced(
            (student,), sloped, weight=weight, count=aim.count(), reduction=self.reduction
        )


@options_of(StrictImitation)
def strict_imitation(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] sum_c p_old(c) log p_new(c)`` per sample. See :class:`StrictImitation`."""
    return StrictImitation(**options).forward(new=new, old=old, target=target)
