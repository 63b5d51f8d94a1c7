"""The batches that models are trained on: their order, share of a step and dropout seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from flipguard.models import Inputs
from flipguard.training.config import Recipe
from flipguard.training.material import Material
from flipguard.training.seeds import Seeds


def steps_per_epoch(recipe: Recipe, samples: int) -> int:
    """Return the number of steps per epoch.

    An incomplete last batch is dropped unless it is the only one.
    """
    return max(samples // (recipe.batch_size * recipe.accumulate), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one forward pass: [n, ...], or [m, n, ...] if each of m models has its own."""

    inputs: Inputs
    target: Tensor
    # Of the samples among the training samples; with stored views, among those of all views, one
    # view after the other. None for several models, whose losses need none.
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
        sources: Sequence[Material],
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
                source.ahead([piece for step in plan for piece, _ in step], epoch=view)
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
        return [
            [
                (piece, len(piece) / len(step))
                for piece in step[self._rank :: self._world_size].chunk(self._recipe.accumulate)
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
