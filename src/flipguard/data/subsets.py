"""Splits by id: which samples are in a part is computed from their ids and a seed.

Nothing here depends on the order of the samples. `part` looks at each id alone; the other functions
take shares of classes, so that there membership depends on the other samples of the class too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from flipguard.data.dataset import Ids, Split, TrainingLabels, ids_index_of
from flipguard.errors import InputError
from flipguard.randomness import bits

# They differ from all epochs of training, which start at 0, so that no choice is correlated with
# what an augmentation draws for the same ids and seed, nor with another choice.
MEMBERSHIP = -1
MEASURED = -2
VALIDATION = -3
CLASSES = -4


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
    _check_fraction(fraction)
    index = ids_index_of(ids)
    # 53 bits, which float64 represents exactly on every device.
    drawn = (bits(seed, MEMBERSHIP, index, 0) >> 11) & (2**53 - 1)
    return drawn.to(torch.float64) * 2.0**-53 < fraction


def part_per_class(samples: Split | TrainingLabels, seed: int, fraction: float) -> Tensor:
    """Return which samples are in a part with this share of each class: bool [n].

    The share is rounded to whole samples, half up; at least one sample of each class is in. A
    larger fraction with the same seed keeps all members.

    >>> from flipguard.data.dataset import TextSplit
    >>> split = TextSplit(texts=list("aaaabbb"), targets=torch.tensor([0, 0, 0, 0, 1, 1, 1]))
    >>> split.targets[part_per_class(split, seed=0, fraction=0.5)].tolist()
    [0, 0, 1, 1]
    """
    _check_fraction(fraction)
    return _first_of_classes(
        samples, seed, MEMBERSHIP, lambda size: max(_rounded(size, fraction), min(size, 1))
    )


def held_out_per_class(samples: Split | TrainingLabels, seed: int, fraction: float) -> Tensor:
    """Return which samples are held out of training to validate on: bool [n].

    They are the share of each class, rounded to whole samples, half up; at least one sample of each
    class stays in training.

    >>> from flipguard.data.dataset import TextSplit
    >>> split = TextSplit(texts=list("aaaab"), targets=torch.tensor([0, 0, 0, 0, 1]))
    >>> split.targets[held_out_per_class(split, seed=0, fraction=0.5)].tolist()
    [0, 0]
    """
    _check_fraction(fraction)
    return _first_of_classes(
        samples, seed, VALIDATION, lambda size: min(_rounded(size, fraction), max(size - 1, 0))
    )


def random_classes(names: Sequence[str], count: int, seed: int) -> list[int]:
    """Return the sorted indices of `count` classes, chosen by their names and the seed.

    A larger count with the same seed keeps all of them.

    >>> random_classes(["cat", "dog", "bird", "fish"], 2, seed=0)
    [0, 2]
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= len(names):
        raise InputError(
            f"Expected `count` to be a whole number from 1 to {len(names)}, but got {count!r}; say "
            "how many classes the old model knew."
        )
    drawn = bits(seed, CLASSES, ids_index_of(list(names)), 0)
    return sorted(drawn.argsort(stable=True)[:count].tolist())


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
    sizes = split.targets.cpu().bincount()
    shares, rest = sizes * most // count, sizes * most % count
    # Samples left over by rounding go to the classes that lost most by it.
    shares[rest.argsort(descending=True, stable=True)[: most - int(shares.sum())]] += 1
    return (_rank_in_class(split, 0, MEASURED) < shares[split.targets.cpu()]).nonzero().squeeze(1)


def _first_of_classes(
    samples: Split | TrainingLabels, seed: int, purpose: int, count_of: Callable[[int], int]
) -> Tensor:
    """Return a mask of the first samples of each class; `count_of` gives how many of a size."""
    target = samples.targets.cpu()
    counts = torch.tensor([count_of(size) for size in target.bincount().tolist()])
    if not len(target):
        return torch.zeros(0, dtype=torch.bool)
    return (_rank_in_class(samples, seed, purpose) < counts[target]).to(samples.targets.device)


def _rank_in_class(samples: Split | TrainingLabels, seed: int, purpose: int) -> Tensor:
    """Return the place of each sample in its class, by numbers drawn from the ids: int64 [n]."""
    target = samples.targets.cpu()
    drawn = bits(seed, purpose, samples.ids_index.cpu(), 0).argsort(stable=True)
    by_class = drawn[target[drawn].argsort(stable=True)]
    sizes = target.bincount()
    rank = torch.empty_like(target)
    rank[by_class] = torch.arange(len(target)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return rank


def _rounded(size: int, fraction: float) -> int:
    """Return a share of a number, rounded half up: of the decimal number, not of its float."""
    return math.floor(size * Fraction(repr(float(fraction))) + Fraction(1, 2))


def _check_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise InputError(
            f"Expected `fraction` to be from 0 to 1, but got {fraction!r}; give a share of the "
            "samples."
        )
