"""Samples as a model takes them: on its device, scaled, augmented, in batches of a given order."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from flipguard.data import (
    ArraySplit,
    Augmentation,
    DataSet,
    Split,
    TextSplit,
    first_classes,
    load_data,
    part,
    seen_before,
)
from flipguard.errors import InputError
from flipguard.methods.base import HELD_OUT
from flipguard.models import Inputs, tokenizer_for
from flipguard.training.config import Config, Scope, needs_of
from flipguard.training.texts import EncodedTexts

# Held out from training for the methods that have to measure something along the way.
EVALUATED = 5000  # samples in a batch without gradients, at most
AHEAD = 32 * 2**20  # bytes of inputs that are prepared at once
AHEAD_ON_CPU = 2**18  # what still lies in the cache when it is used
FLOAT = 4  # bytes


def data_of(config: Config) -> DataSet:
    """The data of a run: what it may see of it."""
    from pathlib import Path

    root = None if config.data_root is None else Path(config.data_root)
    return scoped(load_data(config.data, root=root), config.scope)


def scoped(data: DataSet, scope: Scope) -> DataSet:
    """The part of the data that a run may see; the test set has all samples of its classes."""
    train, test, names = data.train, data.test, data.class_names
    if scope.classes is not None:
        if not 1 <= scope.classes <= len(names):
            raise InputError(
                f"Expected `scope.classes` to be from 1 to {len(names)}, but got {scope.classes}."
            )
        train = first_classes(train, scope.classes)
        test = first_classes(test, scope.classes)
        names = names[: scope.classes]
    if scope.samples != 1:
        if not 0 < scope.samples < 1:
            raise InputError(
                f"Expected `scope.samples` to be a share from 0 to 1, but got {scope.samples:g}."
            )
        train = seen_before(train, fraction=scope.samples, seed=scope.seed)
    return DataSet.of(name=data.name, kind=data.kind, class_names=names, train=train, test=test)


def input_shape_of(data: DataSet) -> tuple[int, ...] | None:
    """The shape of one input, or None for texts."""
    if isinstance(data.train, TextSplit):
        return None
    first = data.train.inputs(torch.tensor([0]))
    assert isinstance(first, Tensor)  # every split but texts gives tensors
    return tuple(first.shape[1:])


class Material:
    """A split, ready to be fed to a model."""

    def __init__(
        self,
        split: Split,
        *,
        device: torch.device,
        model: str,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        # Small sets live on the device; larger ones are fetched batch by batch.
        self.split = split.to(device) if isinstance(split, ArraySplit) else split
        self.device = device
        self.targets = split.targets.to(device)
        self._augmentation = augmentation
        self._seed = seed
        self._dtype = dtype
        self._texts: EncodedTexts | None = None
        if isinstance(split, TextSplit):
            tokenizer = tokenizer_for(model)
            self._texts = EncodedTexts(split.texts, tokenizer=tokenizer, device=device)

    def __len__(self) -> int:
        return len(self.split)

    @property
    def one_shape(self) -> bool:
        """Whether all batches of one size have one shape."""
        return self._texts is None

    def batch(
        self, indices: Tensor, *, epoch: int | None = None, width: int | None = None
    ) -> tuple[Inputs, Tensor]:
        """The inputs and targets of some samples, augmented if an epoch is given."""
        where = indices.to(self.device)
        target = self.targets[where]
        if self._texts is not None:
            wide = self._texts.widths([where])[0] if width is None else width
            return self._texts.batch(where, wide), target
        if epoch is not None and self._augmentation is not None:
            inputs = self._augmentation.views(
                self.split, where, epoch=epoch, seed=self._seed, device=self.device
            )
        else:
            raw = self.split.inputs(where)
            assert isinstance(raw, Tensor)  # as every split but texts gives
            inputs = raw.to(self.device)
        inputs = _scaled(inputs).to(self._dtype)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, target

    def ahead(self, pieces: Sequence[Tensor], *, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches of an epoch, in turn.

        What lies on a device is prepared several batches at a time: a sample is augmented in the
        same way whatever others are beside it, and many small ones take the time of a few.
        """
        if self._texts is not None:
            for piece, width in zip(pieces, self._texts.widths(pieces), strict=True):
                yield self.batch(piece, width=width)
            return
        at_once = 1
        if isinstance(self.split, ArraySplit):
            one = self.split.all_inputs[:1].numel() * FLOAT * max(map(len, pieces))
            most = AHEAD if self.device.type == "cuda" else AHEAD_ON_CPU
            at_once = max(most // one, 1)
        for start in range(0, len(pieces), at_once):
            some = pieces[start : start + at_once]
            inputs, target = self.batch(torch.cat(list(some)), epoch=epoch)
            assert isinstance(inputs, Tensor)
            sizes = [len(piece) for piece in some]
            yield from zip(torch.split(inputs, sizes), torch.split(target, sizes), strict=True)

    def reseeded(self, seed: int) -> Material:
        """The same samples, augmented by another seed."""
        other = copy.copy(self)
        other._seed = seed
        return other

    def at_once(self) -> int:
        """How many samples a batch without gradients has."""
        if self._texts is not None:
            return 250
        if not len(self):
            return EVALUATED
        first = self.split.inputs(torch.zeros(1, dtype=torch.int64))
        assert isinstance(first, Tensor)
        return min(EVALUATED, max(AHEAD // (first.numel() * FLOAT), 1))

    def batches(self, places: Tensor | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """The samples at some places, or all in order, without augmentation."""
        wanted = torch.arange(len(self)) if places is None else places
        for some in torch.split(wanted, self.at_once()):
            yield self.batch(some)


def _scaled(inputs: Tensor) -> Tensor:
    """Bytes of an image as numbers from -1 to 1."""
    return inputs.float().div_(127.5).sub_(1) if inputs.dtype == torch.uint8 else inputs


def without_held_out(scope: Scope) -> Scope:
    """The scope of a run that must not see what others measure on."""
    return dataclasses.replace(scope, samples=scope.samples * (1 - HELD_OUT))


def calibrates(config: Config) -> bool:
    """Whether a run holds samples out, on which the temperatures of its members are fitted."""
    members = needs_of(config).members
    return members is not None and members.calibrated


def held_out_of(split: Split, scope: Scope) -> tuple[Split, Split]:
    """Training samples to learn from, and some apart from them to measure on.

    What is learned from is what a run of a scope that much smaller would see.
    """
    apart = ~part(split.ids, seed=scope.seed, fraction=without_held_out(scope).samples)
    if not bool(apart.any()) or bool(apart.all()):
        raise InputError(
            f"Expected training samples enough to hold some of them out, but got {len(split)}."
        )
    return split.subset(~apart), split.subset(apart)
