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
    """The weight ``base + focus * [picked]``; 0 for ignored samples and classes that old lacks."""
    weight = target.known_mass(classes).to(dtype, copy=True)
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
        return target.known_mass(classes)
    if which == "old_right":
        return target.mass_at(old_prediction(old, classes))
    if which == "negative_flip":
        old_says = old_prediction(old, classes)
        return target.mass_at(old_says) * (old_says != new.argmax(-1))
    return missed(new.argmax(-1), target=target, classes=classes)


def missed(
    says: Labels, *, target: HardTarget | SoftTarget, classes: SharedClasses | None
) -> PerSample:
    """How much of each sample's target is not the class that is said.

    Counts the target's mass on the classes that old knows.
    """
    known = target.known_mass(classes)
    if isinstance(target, HardTarget):
        return known & (target.labels != says)
    hit = target.mass_at(says)
    if classes is not None:
        hit = hit * classes.on(says.device).known[says]
    return known - hit
