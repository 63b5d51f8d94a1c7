"""Logit difference inhibition (ELODI, equations 7 and 8)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.losses.base import (
    CLASS_REDUCTIONS,
    FROM_PRESET,
    IGNORED,
    ClassReduction,
    Logits,
    Loss,
    LossCard,
    LossTerm,
    OldLogits,
    Preset,
    Reduction,
    Target,
    ValueWithGradient,
    at_least,
    given_or,
    is_paper_preset,
    one_of,
    options_of,
    reduce_loss,
    whole,
)
from flipguard.losses.classes import SharedClasses, check_class_match, shared_scores
from flipguard.losses.divergences import highest, logit_difference
from flipguard.losses.targets import FILTERS, Filter, focal_weight, read_target

RankBy: TypeAlias = Literal["student", "reference", "both"]
RANKINGS = ("student", "reference", "both")


@dataclass(kw_only=True, eq=False, repr=False)
class LogitDifferenceInhibition(LossTerm):
    """Logit difference inhibition (ELODI, equations 7 and 8): stay near the reference's logits.

    The term is the mean over the batch of the mean (or sum) over the classes in ``K(x)`` of
    ``max(|new_c - reference_c| - margin, 0)^p``, where ``K(x)`` are the k classes with the highest
    logits. The paper's objective is ``(1 - alpha) * cross_entropy + alpha * term``, alpha = 0.8.

    Args:
        k: the number of classes that count; None for all (equation 7).
        p: the power, 1 or more.
        rank_by: the model whose logits decide which classes count: the ``"student"`` (the new
            model), the ``"reference"``, or ``"both"`` for the union. With ``"reference"``, the
            student may raise all other logits without a cost.
        class_reduction: ``"mean"`` or ``"sum"`` over the classes that count. The paper sums;
            with 100 classes, training then diverges at common learning rates.
        margin: differences up to this size have no cost.
        base: weight of every sample.
        focus: extra weight of the samples that `filter` selects; needs a target.
        filter: the samples that get the focus: ``"old_right"`` (the reference is right), ``"all"``,
            ``"new_wrong"`` or ``"negative_flip"``.
        classes: the matching of classes, if the reference and new model have different ones.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.
        preset: ``"paper"`` uses ``class_reduction="sum"``. Options that are given override it.

    >>> import torch
    >>> pull = LogitDifferenceInhibition(k=2)
    >>> new = torch.tensor([[3.0, 2.0, -9.0]], requires_grad=True)
    >>> pull(new=new, reference=torch.tensor([[2.0, 2.0, 2.0]]))  # the third class does not count
    tensor(0.5000, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards any reference",
        formula="1/N sum_i (base + focus [reference right on x_i]) mean_{c in K(x_i)} max(|new_c "
        "- reference_c| - margin, 0)^p,  K(x) the k highest logits",
        use="ELODI: the reference is an ensemble of models like the new one, and the old model "
        "was trained in the same way. Also to pull the new model to an old one that was not "
        "(equation 9).",
        paper="ELODI, equations 7 to 9 (K = 10, p = 2, alpha = 0.8)",
        pitfalls="Equations 7 and 8 sum over the classes; the default here is the mean, and "
        '`class_reduction="sum"` gives the sum; `flipguard train --method elodi` takes all '
        "classes (k = none) where the paper's default is K = 10. alpha = 0.8 assumes that this "
        "term and the cross-entropy are of similar size, so it depends on `class_reduction`. "
        "Equation 5 ranks by the ensemble's logits, the text under equation 8 by the student's; "
        "if ranked by the reference, a student can raise all other logits without a loss. If "
        "several logits are equal at rank K, torch decides which are used.",
    )

    k: int | None = 10
    p: float = 2.0
    rank_by: RankBy = "student"
    class_reduction: ClassReduction = FROM_PRESET
    margin: float = 0.0
    base: float = 1.0
    focus: float = 0.0
    filter: Filter = "old_right"
    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"
    preset: InitVar[Preset | None] = None

    def __post_init__(self, preset: Preset | None) -> None:
        """Set options that depend on the preset, and check all options."""
        printed = is_paper_preset(preset)
        self.class_reduction = given_or(self.class_reduction, "sum" if printed else "mean")
        whole("k", self.k)
        at_least("p", self.p, 1)
        one_of("rank_by", self.rank_by, RANKINGS)
        one_of("class_reduction", self.class_reduction, CLASS_REDUCTIONS)
        at_least("margin", self.margin, 0)
        at_least("base", self.base, 0)
        at_least("focus", self.focus, 0)
        one_of("filter", self.filter, FILTERS)
        super().__post_init__()

    def forward(self, *, new: Logits, reference: OldLogits, target: Target | None = None) -> Loss:
        """Return the term for a batch. A focus and ignored samples need a target."""
        check_class_match("reference", old=reference, new=new, classes=self.classes)
        reference = reference.detach()
        student, teacher = shared_scores(new=new, old=reference, classes=self.classes)
        student, teacher, counted = _highest(student, teacher, k=self.k, rank_by=self.rank_by)
        over = self.class_reduction
        sloped = _inhibited(student, teacher, counted, p=self.p, margin=self.margin, over=over)
        if target is None:
            if self.focus != 0:
                raise InputError(
                    "Expected `target` where `focus` is not 0, but got none; the filter asks "
                    "whether the reference is right."
                )
            weight = None if self.base == 1 else torch.full_like(sloped.value, self.base)
            return reduce_loss((student,), sloped, weight=weight, reduction=self.reduction)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        weight = focal_weight(
            self.filter,
            base=self.base,
            focus=self.focus,
            new=new.detach(),
            old=reference,
            target=aim,
            classes=self.classes,
            dtype=sloped.value.dtype,
        )
        return reduce_loss(
            (student,), sloped, weight=weight, count=aim.count(), reduction=self.reduction
        )


@options_of(LogitDifferenceInhibition)
def logit_difference_inhibition(
    *, new: Logits, reference: OldLogits, target: Target | None = None, **options: Any
) -> Loss:
    """Return the power of logit differences. See :class:`LogitDifferenceInhibition`."""
    return LogitDifferenceInhibition(**options).forward(new=new, reference=reference, target=target)


def _highest(
    student: Logits, teacher: Logits, *, k: int | None, rank_by: RankBy
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return both logits at the classes that count, and which of these are not repetitions."""
    if k is None or k >= student.shape[-1]:
        return student, teacher, None
    # Ranked in the given precision, because a copy of all logits would cost more than the loss.
    ranked = teacher if rank_by == "reference" else student.detach()
    places = highest(ranked, k)
    counted = None
    if rank_by == "both":
        others = highest(teacher, k)
        fresh = (others.unsqueeze(-1) != places.unsqueeze(-2)).all(-1)
        counted = torch.cat([torch.ones_like(fresh), fresh], -1)
        places = torch.cat([places, others], -1)
    return student.gather(-1, places), teacher.gather(-1, places), counted


@torch.no_grad()
def _inhibited(
    student: Logits,
    teacher: Logits,
    counted: Tensor | None,
    *,
    p: float,
    margin: float,
    over: ClassReduction,
) -> ValueWithGradient:
    """Return ``max(|s - t| - margin, 0)^p``, summed or averaged over the classes that count."""
    difference = logit_difference(student, teacher)
    share = 1.0 if over == "sum" or counted is not None else 1 / difference.shape[-1]
    if p == 2 and margin == 0 and counted is None:
        value = torch.linalg.vector_norm(difference, dim=-1).square_()
        return ValueWithGradient(value, (difference,), value_factor=share, slope_factor=2 * share)
    excess = (difference.abs() - margin).clamp_(min=0)
    if counted is not None:
        excess.mul_(counted)
    # p |d|^(p-1) sign(d), and 0 within the margin, also for p = 1
    slope = difference.sign_().mul_(excess > 0).mul_(excess.pow(p - 1))
    value = excess.pow_(p).sum(-1)
    if over == "mean" and counted is not None:
        members = counted.sum(-1, keepdim=True)
        value, slope = value.div_(members.squeeze(-1)), slope.div_(members)
    return ValueWithGradient(value, (slope,), value_factor=share, slope_factor=p * share)
