"""Hard and soft targets, and the weights of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from flipguard.errors import InputError, listed
from flipguard.losses.base import Labels, Logits, OldLogits, PerSample, check_tensor
from flipguard.losses.classes import SharedClasses, old_prediction

Filter: TypeAlias = Literal["old_right", "all", "new_wrong", "negative_flip"]
FILTERS = ("old_right", "all", "new_wrong", "negative_flip")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardTarget:
    """One class per sample, or none for ignored samples."""

    labels: Labels  # as given, so not an index if ignored
    valid: PerSample  # bool: not ignored

    def index(self) -> Labels:
        """Return the labels as indices, with 0 for ignored samples."""
        return self.labels.masked_fill(~self.valid, 0)

    def mass_at(self, index: Labels) -> PerSample:
        """Return 1 where the target is the class `index` (below 0: no class), else 0."""
        return (self.labels == index) & self.valid

    def mass(self) -> PerSample:
        """Return 1 where there is a target, else 0."""
        return self.valid

    def known_mass(self, classes: SharedClasses | None) -> PerSample:
        """Return 1 where the target is a class of the old model, else 0."""
        if classes is None:
            return self.mass()
        return classes.on(self.labels.device).known[self.index()] & self.valid

    def count(self) -> int | Tensor:
        """Return the number of samples that a mean is taken over, at least 1."""
        return self.valid.sum().clamp(min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTarget:
    """One distribution over the new model's classes per sample."""

    mixture: Logits

    def mass_at(self, index: Labels) -> PerSample:
        """Return the target's share of the class `index` (below 0: no class)."""
        mass = self.mixture.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return torch.where(index >= 0, mass, torch.zeros_like(mass))

    def mass(self) -> PerSample:
        """Return the sum of each target's shares: 1, up to rounding."""
        return self.mixture.sum(-1)

    def known_mass(self, classes: SharedClasses | None) -> PerSample:
        """Return the target's share of the old model's classes."""
        if classes is None:
            return self.mass()
        return self.mixture.index_select(-1, classes.on(self.mixture.device).shared_new).sum(-1)

    def count(self) -> int:
        """Return the number of samples that a mean is taken over, at least 1."""
        return max(self.mixture[..., 0].numel(), 1)


def read_target(target: Tensor, *, new: Logits, ignore_index: int) -> HardTarget | SoftTarget:
    """Return the target of the samples with the logits `new`, checked."""
    check_tensor("target", target)
    if target.device != new.device:
        raise InputError(
            f"Expected `target` to be on the device of `new`, {new.device}, but got "
            f"{target.device}; move it there."
        )
    if target.is_floating_point():
        if target.shape != new.shape:
            raise InputError(
                f"Expected soft targets to have the samples and classes of the new model, "
                f"{list(new.shape)}, but got {list(target.shape)}; class indices must be integers."
            )
        # Half precision is too coarse for shares of a target.
        dtype = torch.float64 if new.dtype == torch.float64 else torch.float32
        mixture = target.detach().to(dtype)
        _refuse_invalid_mixture(mixture)
        return SoftTarget(mixture=mixture)
    aim = read_hard_target(target, like=new, ignore_index=ignore_index)
    _refuse_unknown(aim, classes=new.shape[-1])
    return aim


def read_hard_target(target: Tensor, *, like: Tensor, ignore_index: int) -> HardTarget:
    """Return the target as class indices, for losses that are not defined for soft targets."""
    check_tensor("target", target)
    if target.is_floating_point():
        raise InputError(
            "Expected `target` to be class indices, but got soft targets; which samples are of one "
            "class is not defined for mixtures of classes, so take their argmax or leave this out."
        )
    if not isinstance(ignore_index, int):
        raise InputError(
            f"Expected `ignore_index` to be a whole number, but got {ignore_index!r}; choose one "
            "that is no class."
        )
    if target.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise InputError(
            f"Expected `target` to be class indices, or floats for soft targets, but got "
            f"{str(target.dtype).removeprefix('torch.')}; convert it with `.long()`."
        )
    if target.shape != like.shape[:-1]:
        raise InputError(
            f"Expected `target` to have the samples of the scores, {list(like.shape[:-1])}, but "
            f"got the shape {list(target.shape)}; give one class index for each sample, or "
            "soft targets as floats."
        )
    labels = target.long()
    return HardTarget(labels=labels, valid=labels != ignore_index)


def _refuse_unknown(aim: HardTarget, *, classes: int) -> None:
    """Raise an error for labels that are not classes, unless reading them would be slow."""
    if not _may_be_read(aim.labels):
        return
    wrong = aim.valid & ((aim.labels < 0) | (aim.labels >= classes))
    if _holds_any(wrong):
        unknown = listed(sorted(set(aim.labels[wrong].tolist())))
        raise InputError(
            f"Expected `target` to hold classes of the new model, 0 to {classes - 1}, but got "
            f"{unknown}; mark samples without a target with `ignore_index`."
        )


def _refuse_invalid_mixture(mixture: Tensor) -> None:
    """Raise an error for soft targets that are not distributions, unless reading is slow."""
    if not _may_be_read(mixture):
        return
    total = mixture.sum(-1)
    wrong = ~((mixture >= 0).all(-1) & ((total - 1).abs() < 1e-2))
    if _holds_any(wrong):
        raise InputError(
            "Expected soft targets to be probabilities that sum to 1, but got rows such as "
            f"{listed(mixture[wrong][0].tolist())}; multi-label targets have no definition here."
        )


def _may_be_read(tensor: Tensor) -> bool:
    # Reading from a GPU waits for the device, and a compiled graph cannot branch on values.
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _holds_any(wrong: Tensor) -> bool:
    try:
        return bool(wrong.any())
    except RuntimeError:  # inside vmap, or for tensors without values
        return False


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
    """Return the weight ``base + focus * [selected]`` per sample; 0 for ignored samples.

    A sample of a class that the old model lacks has the weight base (PCT, equation 7), because the
    old model is wrong there.
    """
    weight = target.mass().to(dtype, copy=True)
    if base != 1:
        weight.mul_(base)
    if focus == 0:
        return weight
    chosen = focus_share(which, new=new, old=old, target=target, classes=classes)
    return weight.add_(chosen, alpha=focus)


def focus_share(
    which: Filter,
    *,
    new: Logits,
    old: OldLogits,
    target: HardTarget | SoftTarget,
    classes: SharedClasses | None,
) -> PerSample:
    """Return the share of each sample's target that the filter selects, from 0 to 1."""
    if which == "all":
        return target.mass()
    if which == "old_right":
        return target.mass_at(old_prediction(old, classes))
    if which == "negative_flip":
        old_says = old_prediction(old, classes)
        return target.mass_at(old_says) * (old_says != new.argmax(-1))
    return missed(new.argmax(-1), target=target)


def missed(says: Labels, *, target: HardTarget | SoftTarget) -> PerSample:
    """Return the share of each sample's target that is not on the predicted class."""
    if isinstance(target, HardTarget):
        return target.valid & (target.labels != says)
    return target.mass() - target.mass_at(says)
