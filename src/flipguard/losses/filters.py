"""How much each sample weighs: a base for all, and a focus on those that a filter picks."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from flipguard.losses.classes import SharedClasses, old_prediction
from flipguard.losses.inputs import Labels, Logits, OldLogits, PerSample
from flipguard.losses.targets import HardTarget, SoftTarget

Filter: TypeAlias = Literal["old_right", "all", "new_wrong", "negative_flip"]
FILTERS = ("old_right", "all", "new_wrong", "negative_flip")


def focal_weight(
    which: Filter,
    *,
    base: float,
    focus: float,
    new: Logits,
    old: OldLogits,
    target: HardTarget | SoftTarget,
    classes: SharedClasses | None,
    dtype: torch.dtype,
) -> PerSample:
    """The weight ``base + focus * [picked]``; 0 for ignored samples.

    A sample of a class that old lacks has the weight base (PCT, equation 7): old is wrong on it.
    """
    weight = target.mass().to(dtype, copy=True)
    if base != 1:
        weight.mul_(base)
    if focus == 0:
        return weight
    chosen = picked(which, new=new, old=old, target=target, classes=classes)
    return weight.add_(chosen, alpha=focus)


def picked(
    which: Filter,
    *,
    new: Logits,
    old: OldLogits,
    target: HardTarget | SoftTarget,
    classes: SharedClasses | None,
) -> PerSample:
    """How much of each sample's target the filter picks, from 0 to 1."""
    if which == "all":
        return target.mass()
    if which == "old_right":
        return target.mass_at(old_prediction(old, classes))
    if which == "negative_flip":
        old_says = old_prediction(old, classes)
        return target.mass_at(old_says) * (old_says != new.argmax(-1))
    return missed(new.argmax(-1), target=target)


def missed(says: Labels, *, target: HardTarget | SoftTarget) -> PerSample:
    """How much of each sample's target lies on other classes than the predicted one."""
    if isinstance(target, HardTarget):
        return target.valid & (target.labels != says)
    return target.mass() - target.mass_at(says)
