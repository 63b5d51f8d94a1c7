"""Batches of samples for a model: on its device, encoded, scaled and augmented."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flipguard.data import (
    ArraySplit,
    Augmentation,
    DataSet,
    FolderSplit,
    Split,
    TextSplit,
    load_data,
    seen_by,
)
from flipguard.errors import InputError
from flipguard.models import Inputs, encode_texts, tokenizer_for
from flipguard.models.hugging_face import LONGEST
from flipguard.models.preprocessing import Preprocessing
from flipguard.runs.config import Config, Recipe, Seeds, needs_of
from flipguard.runs.folder import Run
from flipguard.training.read_ahead import read_ahead
from flipguard.training.scoping import scoped

AT_ONCE = 1000
WIDTHS = 16  # a batch's width is a multiple of it, so that few widths occur
MOST = 2**30  # bytes that are kept on the device
TRIED = 100  # texts on which tokenizers are compared

EVALUATED = 5000  # samples in a batch without gradients, at most
AHEAD = 32 * 2**20  # bytes of inputs that are prepared at once
AHEAD_ON_CPU = 2**18  # fits into the cache
FLOAT = 4  # bytes
# Batches of image files that are decoded before they are needed, and the bytes that they may take.
DECODED_AHEAD, DECODED_BYTES = 4, 2**29


def check_tokens(model: str, runs: Sequence[Run], texts: Sequence[str]) -> None:
    """Raise if a run has another tokenizer than the model, because all get the same tokens."""
    for run in runs:
        if run.config.model == model:
            continue
        own, other = tokenizer_for(model), tokenizer_for(run.config.model)
        some = list(texts[:TRIED])
        if own.get_vocab() != other.get_vocab() or own(some) != other(some):
            raise InputError(
                f"Expected {run.folder} to read texts by the tokenizer of {model}, since both are "
                f"given the same tokens, but {run.config.model} has another; choose a model with "
                "the same one, or train without it and compare their predictions."
            )


class EncodedTexts:
    """The tokens of all texts of a split, on the device if they fit into `MOST` bytes.

    Shorter texts are padded on the right and masked, so a narrower batch gives the same logits, to
    rounding. A tokenizer that pads on the left gets full width.
    """

    def __init__(self, texts: Sequence[str], *, tokenizer: Any, device: torch.device) -> None:
        longest = min(LONGEST, tokenizer.model_max_length)
        some = [
            encode_texts(texts[start : start + AT_ONCE], tokenizer=tokenizer, max_length=longest)
            for start in range(0, len(texts), AT_ONCE)
        ]
        tokens = {name: torch.cat([one[name] for one in some]) for name in some[0]}
        width = next(iter(tokens.values())).shape[1]
        self._lengths = torch.full((len(texts),), width)
        if "attention_mask" in tokens and tokenizer.padding_side == "right":
            self._lengths = tokens["attention_mask"].sum(1)
        self._device = device
        size = sum(tensor.numel() * tensor.element_size() for tensor in tokens.values())
        self._tokens = {name: t.to(device) if size <= MOST else t for name, t in tokens.items()}
        self._lengths = self._lengths.to(device)

    def widths(self, pieces: Sequence[Tensor]) -> list[int]:
        """Return the widths of batches, all at once so that the device is waited for only once."""
        longest = torch.stack([self._lengths[piece].amax() for piece in pieces])
        return [-(-one // WIDTHS) * WIDTHS for one in longest.tolist()]

    def batch(self, where: Tensor, width: int) -> dict[str, Tensor]:
        """Return the named tensors of some texts."""
        found = {}
        for name, tokens in self._tokens.items():
            found[name] = tokens[where.to(tokens.device), :width].to(self._device)
        return found


def steps_per_epoch(recipe: Recipe, samples: int) -> int:
    """Return the number of steps per epoch.

    An incomplete last batch is dropped unless it is the only one.
    """
    return max(samples // (recipe.batch_size * recipe.accumulate), 1)


def smallest_batch(recipe: Recipe, samples: int) -> int:
    """Return the number of samples in the smallest batch; few samples make an incomplete step.

    >>> smallest_batch(Recipe(batch_size=4, accumulate=3), samples=7)
    1
    """
    step = min(recipe.batch_size * recipe.accumulate, samples)
    most = max(-(-step // recipe.accumulate), 1)
    return step % most or most


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one forward pass: [n, ...], or [m, n, ...] if each of m models has its own."""

    inputs: Inputs
    target: Tensor
    # Indices into the training samples. With stored views, indices into the samples of all views,
    # one view after the other. None for several models, whose losses need none.
    indices: Tensor | None
    share: float  # of the samples of the step
    dropout_seed: int | None  # None: dropout goes on from the batch before


class EpochBatches:
    """The batches of each epoch for one model or several.

    Every model has its own order and its own augmentations, by its seeds. Models whose seeds agree
    in both get the same batch, which is then made once.

    Args:
        sources: The training samples, augmented by each model's seed.
        seeds: The seeds of each model.
        recipe: How many samples a step has, in how many pieces.
        rank: Which of several processes this is; each takes its share of every batch.
        world_size: The number of processes.
        views: After how many epochs augmentations repeat; never if None.
    """

    def __init__(
        self,
        sources: Sequence[BatchSource],
        seeds: Sequence[Seeds],
        recipe: Recipe,
        *,
        rank: int = 0,
        world_size: int = 1,
        views: int | None = None,
    ) -> None:
        self._sources, self._seeds, self._recipe = sources, seeds, recipe
        self._rank, self._world_size, self._views = rank, world_size, views
        self.device = sources[0].device
        self.samples = len(sources[0])
        self.steps = steps_per_epoch(recipe, self.samples)

    def epoch(self, epoch: int) -> Iterator[Iterator[Batch]]:
        """Yield the batches of each step, which must be used up before the next step."""
        view = epoch if self._views is None else epoch % self._views
        count = 1 if self.are_shared(epoch) else len(self._sources)
        plans = [self._pieces(seeds, epoch) for seeds in self._seeds[:count]]
        coming = zip(
            *(
                source.epoch_batches([piece for step in plan for piece, _ in step], epoch=view)
                for source, plan in zip(self._sources[:count], plans, strict=True)
            ),
            strict=True,
        )
        # Stored views lie one after the other.
        first = 0 if self._views is None else view * self.samples
        batches = self._batches(coming, plans[0], epoch, first)
        for step in plans[0]:
            yield islice(batches, len(step))

    def are_shared(self, epoch: int = 0) -> bool:
        """Whether all models get the same batches in an epoch."""
        return len({(s.of("order", epoch), s.of("augment")) for s in self._seeds}) == 1

    def example(self) -> Tensor:
        """Return zeros in the shape of a batch."""
        size = min(self._recipe.batch_size, self.samples)
        inputs, _ = self._sources[0].batch(torch.zeros(size, dtype=torch.int64))
        assert isinstance(inputs, Tensor)  # texts have batches of many shapes
        inputs = torch.zeros_like(inputs)
        return inputs if self.are_shared() else torch.stack([inputs] * len(self._seeds))

    def _pieces(self, seeds: Seeds, epoch: int) -> list[list[tuple[Tensor, float]]]:
        """Return the sample indices of each piece of each step, and its share of the step."""
        size = self._recipe.batch_size * self._recipe.accumulate
        drawn = torch.Generator().manual_seed(seeds.of("order", epoch))
        # On the device at once: a copy for every step would wait for the device every time.
        order = torch.randperm(self.samples, generator=drawn).to(self.device)
        steps = [order[step * size : (step + 1) * size] for step in range(self.steps)]
        # Every process has a part of each piece: in each piece, processes wait for each other.
        return [
            [
                (own, len(own) / len(step))
                for piece in step.chunk(self._recipe.accumulate)
                for own in [piece[self._rank :: self._world_size]]
            ]
            for step in steps
        ]

    def _batches(
        self,
        coming: Iterator[tuple[tuple[Inputs, Tensor], ...]],
        plan: list[list[tuple[Tensor, float]]],
        epoch: int,
        first: int,  # the index of the first sample
    ) -> Iterator[Batch]:
        for step, pieces in enumerate(plan):
            for number, (piece, share) in enumerate(pieces):
                inputs, target = _stacked(next(coming))
                indices = piece + first if first else piece
                yield Batch(
                    inputs=inputs,
                    target=target,
                    indices=indices if len(self._seeds) == 1 else None,
                    share=share,
                    dropout_seed=self._dropout_seed(epoch, step, number),
                )

    def _dropout_seed(self, epoch: int, step: int, piece: int) -> int | None:
        """Return the seed of dropout for a piece of a step.

        The first process draws what a single process would; the others draw something else. A
        single model has a new seed for each piece, because what a twin draws must not change what
        the model draws next. Several models draw from one stream per step, seeded by the first.
        """
        seeds = self._seeds[0]
        if len(self._seeds) > 1:
            return None if piece else seeds.of("dropout", epoch, step)
        if self._rank or piece:
            return seeds.of("dropout", epoch, step, piece, self._rank)
        return seeds.of("dropout", epoch, step)


def _stacked(given: Sequence[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
    if len(given) == 1:
        return given[0]
    inputs, targets = zip(*given, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def data_of(config: Config) -> DataSet:
    """Return the part of the data that a run may see."""
    root = None if config.data_root is None else Path(config.data_root)
    return scoped(load_data(config.data, root=root), config.scope)


def input_shape_of(data: DataSet) -> tuple[int, ...] | None:
    """Return the shape of one input, or None for texts."""
    if isinstance(data.train, TextSplit):
        return None
    first = data.train.inputs(torch.tensor([0]))
    assert isinstance(first, Tensor)  # every split but texts gives tensors
    return tuple(first.shape[1:])


class BatchSource:
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
    def has_fixed_shape(self) -> bool:
        """Whether all batches of one size have one shape."""
        return self._texts is None

    def batch(
        self, indices: Tensor, *, epoch: int | None = None, width: int | None = None
    ) -> tuple[Inputs, Tensor]:
        """Return the inputs and targets of some samples, augmented if an epoch is given."""
        where = indices.to(self.device)
        target = self.targets[where]
        if self._texts is not None:
            wide = self._texts.widths([where])[0] if width is None else width
            return self._texts.batch(where, wide), target
        return self._finished(self._fetched(where, epoch), where, epoch), target

    def epoch_batches(
        self, pieces: Sequence[Tensor], *, epoch: int | None
    ) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield the batches of an epoch, or batches that are not augmented if it is None.

        Samples on a device are prepared several batches at a time, which is faster. Image files are
        decoded while earlier batches are used. Neither changes a number, because the augmentation
        of a sample does not depend on the other samples.
        """
        if self._texts is not None:
            for piece, width in zip(pieces, self._texts.widths(pieces), strict=True):
                yield self.batch(piece, width=width)
            return
        if isinstance(self.split, FolderSplit) and self.split.workers:
            yield from self._decoded_ahead(pieces, epoch, self.split)
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

    def _decoded_ahead(
        self, pieces: Sequence[Tensor], epoch: int | None, split: FolderSplit
    ) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield batches whose files other threads decode ahead of their use."""
        if not pieces:
            return
        sizes = [len(piece) for piece in pieces]
        # All at once, because every copy from a device waits for it.
        on_host = torch.split(torch.cat(list(pieces)).cpu(), sizes)
        bytes_of_batch = 3 * split.sizes[0] * split.sizes[1] * max(sizes)
        ahead = max(min(DECODED_AHEAD, DECODED_BYTES // max(bytes_of_batch, 1)), 1)
        on_cpu = self.device.type == "cpu"

        def fetch(piece: Tensor) -> Tensor:
            raw = self._fetched(piece, epoch)
            # A GPU scales in the training's own stream; on a CPU the training need not wait for it.
            return self._finished(raw, piece, epoch) if on_cpu else raw

        with closing(read_ahead(fetch, on_host, ahead=ahead)) as coming:
            for piece, inputs in zip(pieces, coming, strict=True):
                where = piece.to(self.device)
                ready = inputs if on_cpu else self._finished(inputs, where, epoch)
                yield ready, self.targets[where]

    def _fetched(self, where: Tensor, epoch: int | None) -> Tensor:
        """Return samples as the split has them, where the split has them."""
        if epoch is not None and self._augmentation is not None:
            raw = self._augmentation.fetch(self.split, where, epoch=epoch, seed=self._seed)
        else:
            found = self.split.inputs(where)
            assert isinstance(found, Tensor)  # as every split but texts gives
            raw = found
        # Pinned memory is copied to a GPU while the GPU computes.
        waits = self.device.type == "cuda" and raw.device.type == "cpu"
        return raw.pin_memory() if waits else raw

    def _finished(self, raw: Tensor, where: Tensor, epoch: int | None) -> Tensor:
        """Return fetched samples on the device: augmented if an epoch is given, and scaled."""
        inputs = raw.to(self.device, non_blocking=True)
        if epoch is not None and self._augmentation is not None:
            inputs = self._augmentation.finish(
                inputs, self.split, where, epoch=epoch, seed=self._seed
            )
        inputs = _scaled(inputs).to(self._dtype)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def seen_by(self, preprocessing: Preprocessing | None) -> BatchSource:
        """Return a source of the same samples as a model with this preprocessing wants them."""
        split = seen_by(self.split, preprocessing)
        if split is self.split:
            return self
        other = copy.copy(self)
        other.split = split
        return other

    def with_seed(self, seed: int) -> BatchSource:
        """Return a source of the same samples, augmented with another seed."""
        other = copy.copy(self)
        other._seed = seed
        return other

    def evaluation_batch_size(self) -> int:
        """Return the number of samples of a batch without gradients."""
        if self._texts is not None:
            return 250
        if not len(self):
            return EVALUATED
        first = self.split.inputs(torch.zeros(1, dtype=torch.int64))
        assert isinstance(first, Tensor)
        return min(EVALUATED, max(AHEAD // (first.numel() * FLOAT), 1))

    def batches(self, places: Tensor | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield batches of the samples with some indices, or of all in order, not augmented."""
        wanted = torch.arange(len(self)) if places is None else places
        pieces = torch.split(wanted, self.evaluation_batch_size())
        if isinstance(self.split, FolderSplit):
            yield from self.epoch_batches(pieces, epoch=None)
        else:
            yield from (self.batch(some) for some in pieces)


def _scaled(inputs: Tensor) -> Tensor:
    """Return the bytes of an image as numbers from -1 to 1."""
    return inputs.float().div_(127.5).sub_(1) if inputs.dtype == torch.uint8 else inputs


def calibrates(config: Config) -> bool:
    """Return whether a run holds out samples, to fit the temperatures of its members on."""
    members = needs_of(config).members
    return members is not None and members.calibrated
