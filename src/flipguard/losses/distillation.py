"""Distillation from old, with more weight on what it gets right (PCT, equations 7 to 9)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any, Literal, TypeAlias

import torch

from flipguard.errors import InputError
from flipguard.losses.base import (
    CLASS_REDUCTIONS,
    FROM_PRESET,
    IGNORED,
    ClassReduction,
    Logits,
    Loss,
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
    """Focal distillation (PCT, equations 7 to 9): follow old, and more so where it is right.

    The term to add to the task's loss is, over the ``N`` samples of the batch::

        1/N sum_i (base + focus * [old right on x_i]) * D(new(x_i), old(x_i))

    How much of it to add is the first thing to tune: with too much, new becomes old.

    Args:
        base: weight of every sample.
        focus: further weight of the samples that `filter` picks.
        distance: ``"logits"`` (FD-LM, equation 9) or ``"kl"`` (FD-KL, equation 8).
        temperature: of the softmax in ``"kl"``. The paper found that only large ones help.
        class_reduction: ``"mean"`` or ``"sum"`` of the squared differences over the classes. The
            paper sums; with a hundred classes that blows up training at ordinary learning rates.
        filter: what gets the focus: ``"old_right"`` (the paper's), ``"all"``, ``"new_wrong"``
            or ``"negative_flip"``.
        direction: of ``"kl"``: ``"forward"`` is ``KL(old || new)``, ``"reverse"`` the other one.
        t_squared: whether ``"kl"`` is multiplied by ``T^2``. Without it the pull at T = 100 is ten
            thousand times weaker.
        classes: which classes are the same, if old and new know different ones. A sample of a class
            that old lacks has the weight `base`, because old is not right on it.
        ignore_index: a target that marks samples without one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.
        preset: ``"paper"`` takes what the paper prints where it differs from these defaults:
            ``class_reduction="sum"``, ``direction="reverse"`` and ``t_squared=False``. Options
            that are given override it.

    >>> import torch
    >>> pull = FocalDistillation(base=1.0, focus=5.0, distance="logits")
    >>> new = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> old = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> pull(new=new, old=old, target=torch.tensor([0, 1]))  # old is right on the first alone
    tensor(1.2500, grad_fn=<...>)
    """

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
        """Fill in what depends on the preset, and check all."""
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
        """The term for a batch."""
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
    """Distance of new from old, times ``base + focus * [old right]`` per sample.

    ``distance="logits"`` is half the squared difference of the logits (FD-LM); ``"kl"`` is
    ``T^2 KL(old || new)`` of the softened probabilities (FD-KL), or ``T^2 KL(new || old)`` with
    ``direction="reverse"``. See :class:`FocalDistillation`.
    """
    return FocalDistillation(**options).forward(new=new, old=old, target=target)


@dataclass(kw_only=True, eq=False, repr=False)
class KnowledgeDistillation(LossTerm):
    """Knowledge distillation: follow the reference on every sample, right or wrong.

    The term is the mean over the batch of ``T^2 KL(reference || new)`` of the softened
    probabilities, or of ``T^2 KL(new || reference)`` with ``direction="reverse"``.

    Args:
        temperature: of the softmax on both sides.
        direction: ``"forward"`` is ``KL(reference || new)``, as Hinton et al. have it.
        classes: which classes are the same, if the reference knows other ones than new.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> pull = KnowledgeDistillation(temperature=2.0)
    >>> new = torch.tensor([[2.0, 0.0]], requires_grad=True)
    >>> pull(new=new, reference=torch.tensor([[1.0, 0.0]]))
    tensor(0.1118, grad_fn=<...>)
    """

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
        """The term for a batch."""
        check_class_match("reference", old=reference, new=new, classes=self.classes)
        student, teacher = shared_scores(new=new, old=reference.detach(), classes=self.classes)
        sloped = divergence(
            student, teacher, temperature=self.temperature, direction=self.direction
        )
        return reduce_loss((student,), sloped, reduction=self.reduction)


@options_of(KnowledgeDistillation)
def knowledge_distillation(*, new: Logits, reference: OldLogits, **options: Any) -> Loss:
    """``T^2 KL(reference || new)`` of the softened probabilities, for every sample alike.

    See :class:`KnowledgeDistillation`.
    """
    return KnowledgeDistillation(**options).forward(new=new, reference=reference)


def divergence(
    student: Logits, teacher: Logits, *, temperature: float, direction: Direction
) -> ValueWithGradient:
    """The divergence of softened probabilities, in the direction that is asked for."""
    if temperature > HOTTEST and student.dtype != torch.float64:
        raise InputError(
            f"Expected `temperature` to be at most {HOTTEST:,} below float64, but got "
            f"{temperature:g}; probabilities then differ by less than they are rounded. Match the "
            'logits instead (`distance="logits"`), which is what the divergence tends to.'
        )
    measure = kl_to_student if direction == "forward" else kl_from_student
    return measure(student, teacher, temperature=temperature)
