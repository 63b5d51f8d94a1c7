"""Splits by id: whether a sample is in a part depends on its id and the seed only."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor

from flipguard.data.dataset import Ids, Split, ids_index_of
from flipguard.errors import InputError
from flipguard.randomness import bits

SplitT = TypeVar("SplitT", bound=Split)
# Differs from all epochs of training, which start at 0, so that membership is not correlated with
# what an augmentation draws for the same ids and seed.
MEMBERSHIP = -1
MEASURED = -2


def part(ids: Ids, seed: int, fraction: float) -> Tensor:
    """Return which samples are in a part of about `fraction` of all: bool [n], from each id.

    A larger fraction with the same seed keeps all members; new samples do not change the others.

    >>> ids = torch.arange(1000)
    >>> mask = part(ids, seed=0, fraction=0.25)
    >>> int(mask.sum()), bool((mask <= part(ids, seed=0, fraction=0.5)).all())
    (270, True)
    >>> torch.equal(part(ids.flip(0), seed=0, fraction=0.25), mask.flip(0))
    True
    """
    if not 0 <= fraction <= 1:
        raise InputError(
            f"Expected `fraction` to be from 0 to 1, but got {fraction!r}; give a share of the "
            "samples."
        )
    index = ids_index_of(ids)
    # 53 bits, which float64 represents exactly on every device.
    drawn = (bits(seed, MEMBERSHIP, index, 0) >> 11) & (2**53 - 1)
    return drawn.to(torch.float64) * 2.0**-53 < fraction


def stratified(split: Split, most: int) -> Tensor:
    """Return sorted indices of at most `most` samples, in proportion to class sizes: int64 [k].

    The choice depends only on the samples' ids and classes. A split with no more than `most`
    samples is returned whole.

    >>> from flipguard.data.dataset import TextSplit
    >>> split = TextSplit(texts=list("aaaabb"), targets=torch.tensor([0, 0, 0, 0, 1, 1]))
    >>> split.targets[stratified(split, 3)].tolist()
    [0, 0, 1]
    """
    count = len(split)
    if count <= most:
        return torch.arange(count)
    target = split.targets.cpu()
    sizes = target.bincount()
    shares, rest = sizes * most // count, sizes * most % count
    # Samples left over by rounding go to the classes that lost most by it.
    shares[rest.argsort(descending=True, stable=True)[: most - int(shares.sum())]] += 1
    drawn = bits(0, MEASURED, split.ids_index.cpu(), 0).argsort(stable=True)
    by_class = drawn[target[drawn].argsort(stable=True)]
    taken = [
        some[:share]
        for some, share in zip(torch.split(by_class, sizes.tolist()), shares.tolist(), strict=True)
    ]
    return torch.cat(taken).sort().values


def seen_before(split: SplitT, *, fraction: float, seed: int) -> SplitT:
    """Return the samples of an old model that was trained on `fraction` of the data."""
    return cast(SplitT, split.subset(part(split.ids, seed, fraction)))


def first_classes(split: SplitT, count: int) -> SplitT:
    """Return the samples of the first `count` classes, for an old model with fewer classes.

    >>> from flipguard.data.dataset import TextSplit
    >>> split = TextSplit(texts=["a", "b", "c"], targets=torch.tensor([0, 2, 1]))
    >>> first_classes(split, 2).texts
    ['a', 'c']
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(
            f"Expected `count` to be a whole number of at least 1, but got {count!r}; say how many "
            "classes the old model knew."
        )
    return cast(SplitT, split.subset(split.targets < count))
