"""Losses with a weight of 0 or 1 per sample: naive congruence, dissonance, and MUSCLE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flipguard.losses.base import (
    IGNORED,
    Logits,
    Loss,
    LossCard,
    LossTerm,
    OldLogits,
    PerSample,
    Reduction,
    Target,
    check_same_shape,
    options_of,
    positive,
    reduce_loss,
)
from flipguard.losses.classes import SharedClasses, check_class_match, old_prediction, shared_scores
from flipguard.losses.divergences import cross_entropy, kl_to_student, negative_log_likelihood
from flipguard.losses.targets import missed, read_target


@dataclass(kw_only=True, eq=False, repr=False)
class NaiveCongruence(LossTerm):
    """Naive congruence (PCT, equation 6): a second cross-entropy where the old model is right.

    The term is the mean over the batch of ``-[old right] log p_new(target)``.

    Args:
        classes: the matching of classes, if the old and new model have different ones.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> pull = NaiveCongruence()
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> pull(new=new, old=old, target=torch.tensor([0, 1]))  # log(2) / 2
    tensor(0.3466, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i -[old right on x_i] log p_new(y_i | x_i)",
        use="As a baseline. It gives more weight to samples that the old model gets right, and "
        "uses nothing else of the old model.",
        paper="PCT, equation 6",
        pitfalls="PCT finds that it hardly helps (NFR 6.44 → 5.72 %), and that it can hurt "
        "(iNaturalist: 7.77 → 11.07 %).",
    )

    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"

    def forward(self, *, new: Logits, old: OldLogits, target: Target) -> Loss:
        """Return the term for a batch."""
        check_class_match("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        # Where the old model is right, its prediction is the target; elsewhere the weight is 0.
        says = old_prediction(old.detach(), self.classes)
        sloped = negative_log_likelihood(new, says if self.classes is None else says.clamp(min=0))
        weight = aim.mass_at(says).to(sloped.value.dtype)
        return reduce_loss(
            (new,), sloped, weight=weight, count=aim.count(), reduction=self.reduction
        )


@options_of(NaiveCongruence)
def naive_congruence(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] log p_new(target)`` per sample. See :class:`NaiveCongruence`."""
    return NaiveCongruence(**options).forward(new=new, old=old, target=target)


class NewError(NaiveCongruence):
    """New-error dissonance (Bansal et al., 2019): the new loss again where the old model is right.

    The term is the mean over the batch of ``-[old right] log p_new(target)``: the formula of
    :class:`NaiveCongruence`, which PCT published later.

    Args:
        classes: the matching of classes, if the old and new model have different ones.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> NewError()(new=new, old=old, target=torch.tensor([0, 1]))  # log(2) / 2
    tensor(0.3466, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i -[old right on x_i] log p_new(y_i | x_i)",
        use="To compare with Bansal et al.; it is the formula of `NaiveCongruence`.",
        paper="Bansal et al., 2019",
        pitfalls="BackwardCompatibilityML's cross-entropy variant divides by the number of "
        "samples that the old model gets right. The weight of a sample then depends on the rest "
        "of the batch. Here the mean is over the batch.",
    )


@options_of(NewError)
def new_error(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] log p_new(target)`` per sample. See :class:`NewError`."""
    return NewError(**options).forward(new=new, old=old, target=target)


@dataclass(kw_only=True, eq=False, repr=False)
class StrictImitation(LossTerm):
    """Strict-imitation dissonance (Bansal et al., 2019): copy the old model where it is right.

    The term is the mean over the batch of ``-[old right] sum_c p_old(c) log p_new(c)``.

    Args:
        classes: the matching of classes, if the old and new model have different ones.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> StrictImitation()(new=new, old=old, target=torch.tensor([0, 1]))  # log(2) / 2
    tensor(0.3466, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i -[old right on x_i] sum_c p_old(c | x_i) log p_new(c | x_i)",
        use="To keep the old model's confidence as well, on samples that it gets right.",
        paper="Bansal et al., 2019",
        pitfalls="With hard labels of the old model it would equal `NewError`, as in "
        "BackwardCompatibilityML's cross-entropy variant. The difference is that it uses the old "
        "probabilities.",
    )

    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"

    def forward(self, *, new: Logits, old: OldLogits, target: Target) -> Loss:
        """Return the term for a batch."""
        check_class_match("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        old = old.detach()
        student, teacher = shared_scores(new=new, old=old, classes=self.classes)
        sloped = cross_entropy(student, teacher)
        weight = aim.mass_at(old_prediction(old, self.classes)).to(sloped.value.dtype)
        return reduce_loss(
            (student,), sloped, weight=weight, count=aim.count(), reduction=self.reduction
        )


@options_of(StrictImitation)
def strict_imitation(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] sum_c p_old(c) log p_new(c)`` per sample. See :class:`StrictImitation`."""
    return StrictImitation(**options).forward(new=new, old=old, target=target)


@dataclass(kw_only=True, eq=False, repr=False)
class Muscle(LossTerm):
    """MUSCLE's filter (Echterhoff et al., 2024): follow the old model where the new one is wrong.

    The term is the mean over the batch of ``[new wrong] T^2 KL(old || new)``. If the logits of an
    untreated new model are given as ``control``, ``[new right] T^2 KL(control || new)`` is added:
    wrong predictions are pulled to the old model, and right ones to the control.

    Args:
        temperature: the softmax temperature of both models.
        classes: the matching of classes, if the old and new model have different ones.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> new = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> Muscle(reduction="none")(new=new, old=old, target=torch.tensor([0, 1]))
    tensor([0.0000, 1.0068], grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i [new wrong on x_i] T^2 KL(old || new) + [new right on x_i] T^2 "
        "KL(control || new)",
        use="Fine-tuning, if you have an untreated new model as `control`: right predictions are "
        "pulled to the control, wrong ones to the old model.",
        paper="MUSCLE, Echterhoff et al., 2024",
        pitfalls="Without a `control` the second part is left out. If the old model is wrong as "
        'well, errors are pulled to its errors. "New right" and "new wrong" are decided on the '
        "training batch, where a converged model is rarely wrong.",
    )

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
        """Return the term for a batch."""
        check_class_match("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        says = new.detach().argmax(-1)
        wrong, right = missed(says, target=aim), aim.mass_at(says)

        def pull(student: Logits, teacher: Logits, weight: PerSample) -> Loss:
            sloped = kl_to_student(student, teacher, temperature=self.temperature)
            weight = weight.to(sloped.value.dtype)
            return reduce_loss(
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
    """Return a pull to the old model where the new one is wrong. See :class:`Muscle`."""
    return Muscle(**options).forward(new=new, old=old, target=target, control=control)
