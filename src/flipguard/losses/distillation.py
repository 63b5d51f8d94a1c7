"""Distillation from the old model, with more weight where it is right (PCT, equations 7 to 9)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch

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
    positive,
    reduce_loss,
)
from flipguard.losses.classes import SharedClasses, check_class_match, shared_scores
from flipguard.losses.divergences import kl_from_student, kl_to_student, squared_difference
from flipguard.losses.targets import FILTERS, Filter, focal_weight, read_target

Distance: TypeAlias = Literal["logits", "kl"]
Direction: TypeAlias = Literal["forward", "reverse"]
DISTANCES = ("logits", "kl")
DIRECTIONS = ("forward", "reverse")
HOTTEST = 1_000


@dataclass(kw_only=True, eq=False, repr=False)
class FocalDistillation(LossTerm):
    """Focal distillation (PCT, equations 7 to 9): follow the old model, mostly where it is right.

    The term to add to the task's loss is, over the ``N`` samples of the batch::

        1/N sum_i (base + focus * [old right on x_i]) * D(new(x_i), old(x_i))

    Tune its weight first: with too much weight, the new model becomes the old one.

    Args:
        base: weight of every sample.
        focus: extra weight of the samples that `filter` selects.
        distance: ``"logits"`` (FD-LM, equation 9) or ``"kl"`` (FD-KL, equation 8).
        temperature: the softmax temperature of ``"kl"``. In the paper, only high ones help.
        class_reduction: ``"mean"`` or ``"sum"`` of the squared differences over the classes. The
            paper sums; with 100 classes, training then diverges at common learning rates.
        filter: the samples that get the focus: ``"old_right"`` (the paper's), ``"all"``,
            ``"new_wrong"`` or ``"negative_flip"``.
        direction: ``"kl"`` is ``KL(old || new)`` with ``"forward"``, and ``KL(new || old)`` with
            ``"reverse"``.
        t_squared: whether ``"kl"`` is multiplied by ``T^2``. Without it, the pull at T = 100 is
            10,000 times weaker.
        classes: the matching of classes, if the old and new model have different ones. A sample of
            a class that the old model lacks has the weight `base`, because it is not right there.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.
        preset: ``"paper"`` uses the paper's values where they differ from these defaults:
            ``class_reduction="sum"``, ``direction="reverse"`` and ``t_squared=False``. Options
            that are given override it.

    >>> import torch
    >>> pull = FocalDistillation(base=1.0, focus=5.0, distance="logits")
    >>> new = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> pull(new=new, old=old, target=torch.tensor([0, 1]))  # the old model is right on the first
    tensor(1.2500, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i (base + focus [old right on x_i]) D(new(x_i), old(x_i)),  D = 1/2 "
        "mean_c (new_c - old_c)^2  or  T^2 KL(softmax(old/T) || softmax(new/T))",
        use="There is one old model in service, and the new model must stay close to it on "
        'samples that the old one gets right. Try FD-LM (`distance="logits"`) first.',
        paper="PCT, equations 7 to 9 (base 1, focus 5)",
        pitfalls="Equation 9 sums over the classes; the default here is the mean, and "
        '`class_reduction="sum"` gives the sum. A sample of a class that the old model lacks has '
        "the weight `base`, as in equation 7: it is pulled towards the old prediction over the "
        'classes that both models know. "Old right" is decided on *this* input: run the old model '
        "on the same augmented batch. The weights are not normalised, so a larger focus also "
        "gives a larger loss. Equation 8 prints no factor T². Without it the pull at T = 100 is "
        "10,000 times weaker, and does not reach the limit that the paper mentions, logit "
        'matching. So the default has the factor T²; `t_squared=False` or `preset="paper"` leaves '
        "it out. As T grows, FD-KL becomes `1/2 mean_c` of the squared *centred* differences, "
        "which is FD-LM except for a shift common to all classes. The paper prints KL(new, old), "
        'which is `direction="reverse"`; at large T both directions are the same. A T above 1,000 '
        "is refused, because single precision cannot distinguish the probabilities there.",
    )

    base: float = 1.0
    focus: float = 5.0
    distance: Distance = "logits"
    temperature: float = 100.0
    class_reduction: ClassReduction = FROM_PRESET
    filter: Filter = "old_right"
    direction: Direction = FROM_PRESET
    t_squared: bool = FROM_PRESET
    classes: SharedClasses | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"
    preset: InitVar[Preset | None] = None

    def __post_init__(self, preset: Preset | None) -> None:
        """Set options that depend on the preset, and check all options."""
        printed = is_paper_preset(preset)
        self.class_reduction = given_or(self.class_reduction, "sum" if printed else "mean")
        self.direction = given_or(self.direction, "reverse" if printed else "forward")
        self.t_squared = given_or(self.t_squared, not printed)
        at_least("base", self.base, 0)
        at_least("focus", self.focus, 0)
        one_of("distance", self.distance, DISTANCES)
        one_of("class_reduction", self.class_reduction, CLASS_REDUCTIONS)
        one_of("filter", self.filter, FILTERS)
        positive("temperature", self.temperature)
        one_of("direction", self.direction, DIRECTIONS)
        super().__post_init__()

    def forward(self, *, new: Logits, old: OldLogits, target: Target) -> Loss:
        """Return the term for a batch."""
        check_class_match("old", old=old, new=new, classes=self.classes)
        aim = read_target(target, new=new, ignore_index=self.ignore_index)
        student, teacher = shared_scores(new=new, old=old.detach(), classes=self.classes)
        sloped = self._distance(student, teacher)
        weight = focal_weight(
            self.filter,
            base=self.base,
            focus=self.focus,
            new=new.detach(),
            old=old.detach(),
            target=aim,
            classes=self.classes,
            dtype=sloped.value.dtype,
        )
        return reduce_loss(
            (student,), sloped, weight=weight, count=aim.count(), reduction=self.reduction
        )

    def _distance(self, student: Logits, teacher: Logits) -> ValueWithGradient:
        if self.distance == "logits":
            return squared_difference(student, teacher, over=self.class_reduction)
        heat = self.temperature
        sloped = divergence(student, teacher, temperature=heat, direction=self.direction)
        if self.t_squared:
            return sloped
        value, slopes, value_factor, slope_factor = sloped
        return ValueWithGradient(value, slopes, value_factor / heat**2, slope_factor / heat**2)


@options_of(FocalDistillation)
def focal_distillation(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """Return the distance of new from old, times ``base + focus * [old right]`` per sample.

    ``distance="logits"`` is half the squared difference of the logits (FD-LM); ``"kl"`` is
    ``T^2 KL(old || new)`` of the softened probabilities (FD-KL), or ``T^2 KL(new || old)`` with
    ``direction="reverse"``. See :class:`FocalDistillation`.
    """
    return FocalDistillation(**options).forward(new=new, old=old, target=target)


@dataclass(kw_only=True, eq=False, repr=False)
class KnowledgeDistillation(LossTerm):
    """Knowledge distillation: follow the reference on every sample, whether it is right or wrong.

    The term is the mean over the batch of ``T^2 KL(reference || new)`` of the softened
    probabilities, or of ``T^2 KL(new || reference)`` with ``direction="reverse"``.

    Args:
        temperature: the softmax temperature of both models.
        direction: ``"forward"`` is ``KL(reference || new)``, as in Hinton et al.
        classes: the matching of classes, if the reference and new model have different ones.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> pull = KnowledgeDistillation(temperature=2.0)
    >>> new = torch.tensor([[2.0, 0.0]], requires_grad=True)
    >>> pull(new=new, reference=torch.tensor([[1.0, 0.0]]))
    tensor(0.1118, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i T^2 KL(softmax(reference(x_i)/T) || softmax(new(x_i)/T))",
        use="To follow a reference on every sample, right or wrong: an ensemble, or the old model "
        "if its errors may be copied too.",
        paper="Hinton et al., 2015; PCT with base 1 and focus 0; ELODI, table 10",
        pitfalls="It copies the errors of the reference as much as its right predictions, so "
        "there are fewer positive flips as well. The factor and the direction are those of Hinton "
        "et al.; PCT prints the reverse direction without T², which is "
        '`FocalDistillation(base=1.0, focus=0.0, distance="kl", preset="paper")`.',
    )

    temperature: float = 100.0
    direction: Direction = "forward"
    classes: SharedClasses | None = None
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the options."""
        positive("temperature", self.temperature)
        one_of("direction", self.direction, DIRECTIONS)
        super().__post_init__()

    def forward(self, *, new: Logits, reference: OldLogits) -> Loss:
        """Return the term for a batch."""
        check_class_match("reference", old=reference, new=new, classes=self.classes)
        student, teacher = shared_scores(new=new, old=reference.detach(), classes=self.classes)
        sloped = divergence(
            student, teacher, temperature=self.temperature, direction=self.direction
        )
        return reduce_loss((student,), sloped, reduction=self.reduction)


@options_of(KnowledgeDistillation)
def knowledge_distillation(*, new: Logits, reference: OldLogits, **options: Any) -> Loss:
    """Return ``T^2 KL(reference || new)`` of the softened probabilities, for every sample.

    See :class:`KnowledgeDistillation`.
    """
    return KnowledgeDistillation(**options).forward(new=new, reference=reference)


def divergence(
    student: Logits, teacher: Logits, *, temperature: float, direction: Direction
) -> ValueWithGradient:
    """Return the divergence of softened probabilities in a direction."""
    if temperature > HOTTEST and student.dtype != torch.float64:
        raise InputError(
            f"Expected `temperature` to be at most {HOTTEST:,} below float64, but got "
            f"{temperature:g}; probabilities then differ by less than they are rounded. Match the "
            'logits instead (`distance="logits"`), which is what the divergence tends to.'
        )
    measure = kl_to_student if direction == "forward" else kl_from_student
    return measure(student, teacher, temperature=temperature)
