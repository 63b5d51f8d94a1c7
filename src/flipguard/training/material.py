"""Samples as a model takes them: on its device, scaled, augmented, in batches of a given order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

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
from flipguard.models import Inputs, encode_texts, tokenizer_for
from flipguard.training.config import Config, Scope

# Held out from training for the methods that have to measure something along the way.
HELD_OUT = 0.1
EVALUATED = 1024  # samples in a batch without gradients


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
    ) -> None:
        # Small sets live on the device; larger ones are fetched batch by batch.
        self.split = split.to(device) if isinstance(split, ArraySplit) else split
        self.device = device
        self.targets = split.targets.to(device)
        self._numbers = split.ids_index.to(device)
        self._augmentation = augmentation
        self._seed = seed
        self._tokenizer: Any = tokenizer_for(model) if isinstance(split, TextSplit) else None

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, indices: Tensor, *, epoch: int | None = None) -> tuple[Inputs, Tensor]:
        """The inputs and targets of some samples, augmented if an epoch is given."""
        raw = self.split.inputs(indices.to(self.device))
        where = indices.to(self.device)
        target = self.targets[where]
        if isinstance(raw, list):
            encoded = encode_texts(raw, tokenizer=self._tokenizer)
            return {name: tensor.to(self.device) for name, tensor in encoded.items()}, target
        inputs = raw.to(self.device)
        if epoch is not None and self._augmentation is not None:
            inputs = self._augmentation(
                inputs, ids_index=self._numbers[where], epoch=epoch, seed=self._seed
            )
        return _scaled(inputs), target

    def batches(self, most: int | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """All samples in order, or the first so many, as they are."""
        count = len(self) if most is None else min(most, len(self))
        for start in range(0, count, EVALUATED):
            yield self.batch(torch.arange(start, min(start + EVALUATED, count)))


def _scaled(inputs: Tensor) -> Tensor:
    """Bytes of an image as numbers from -1 to 1."""
    return inputs.float().div_(127.5).sub_(1) if inputs.dtype == torch.uint8 else inputs


def without_held_out(scope: Scope) -> Scope:
    """The scope of a run that must not see what others measure on."""
    return dataclasses.replace(scope, samples=scope.samples * (1 - HELD_OUT))


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
