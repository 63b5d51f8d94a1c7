"""MUSCLE's filter (Echterhoff et al., 2024): follow old where the new model is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flipguard.losses.classes import SharedClasses, check_classes, shared_scores
from flipguard.losses.divergences import kl_to_student
from flipguard.losses.filters import missed
from flipguard.losses.inputs import (
    IGNORED,
    Logits,
    Loss,
    OldLogits,
    PerSample,
    Reduction,
    Target,
    check_same_shape,
    positive,
)
from flipguard.losses.slopes import reduced
from flipguard.losses.targets import read_target
from flipguard.losses.terms import LossTerm, options_of


@dataclass(kw_only=True, eq=False, repr=False)
class Muscle(LossTerm):
    """MUSCLE's filter (Echterhoff et al., 2024): follow old where the new model is wrong.

    The term is the mean over the batch of ``[new wrong] T^2 KL(old || new)``, and, if an untreated
    new model's logits are given as ``control``, of ``[new right] T^2 KL(control || new)`` beside
    it: errors are drawn back to old, what is right keeps to the update.

    Args:
        temperature: of the softmax on both sides.
        classes: which classes are the same, if old knows other ones than new.
        ignore_index: a target that marks samples without one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> new = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> Muscle(reduction="none")(new=new, old=old, target=torch.tensor([0, 1]))
    tensor([0.0000, 1.0068], grad_fn=<...>)
    """

    temperature: float = 1.0
    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        positive("temperature", self.temperature)
        super().__post_init__()

    def forward(
        self, *, new: Logits, old: OldLogits, target: Target, control: Logits | None = None
    ) -> Loss:
        """The term for a batch."""
        check_classes("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        says = new.detach().argmax(-1)
        wrong, right = missed(says, target=aim), aim.mass_at(says)

        def pull(student: Logits, teacher: Logits, weight: PerSample) -> Loss:
            sloped = kl_to_student(student, teacher, temperature=self.temperature)
            weight = weight.to(sloped.value.dtype)
            return reduced(
                (student,), sloped, weight=weight, count=aim.count(), reduction=self.reduction
            )

        student, teacher = shared_scores(new=new, old=old.detach(), classes=self.classes)
        to_old = pull(student, teacher, wrong)
        if control is None:
            return to_old
        check_same_shape("control", control, "new", new)
        return to_old + pull(new, control.detach(), right)


@options_of(Muscle)
def muscle(
    *, new: Logits, old: OldLogits, target: Target, control: Logits | None = None, **options: Any
) -> Loss:
    """Distillation from old where new is wrong. See :class:`Muscle`."""
    return Muscle(**options).forward(new=new, old=old, target=target, control=control)
