"""The normal law of logit displacement, from inner products of the members' logits alone.

All squared distances between means of members, and the eigenvalues of their covariance, follow
from the inner products. With m models per side these are (2 m)^2 numbers per sample, however many
classes there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flipguard.analysis.members import Array, MemberScores
from flipguard.statistics.generalized_chi2 import generalized_chi2_cdf

FloatArray = npt.NDArray[np.float64]
# Eigenvalues below this share of the largest are rounding.
ROUNDING = 1e-10


def inner_products(old: Array, new: Array) -> FloatArray:
    """Return the inner products of the logits of all models, per row, about their common mean."""
    every = np.concatenate([old, new]).transpose(1, 0, 2).astype(np.float64)
    every -= every.mean(axis=1, keepdims=True)
    return np.asarray(every @ every.transpose(0, 2, 1))


def all_inner_products(members: MemberScores) -> FloatArray:
    """Return the inner products of all samples, of shape (samples, models, models)."""
    count = members.count("old") + members.count("new")
    found = np.empty((members.n, count, count))
    for rows, block in members.blocks():
        found[rows] = inner_products(block["old"], block.get("new", block["old"][:0]))
    return found


@dataclass(frozen=True, slots=True)
class GroupSplit:
    """Which models are old and which are new; with `central`, both follow one law."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    central: bool

    @classmethod
    def of(cls, members: MemberScores) -> GroupSplit:
        """Return the groups of members; a single group is cut into two halves of one law."""
        old, new = members.count("old"), members.count("new")
        if new:
            return cls(tuple(range(old)), tuple(range(old, old + new)), central=False)
        half = old // 2
        return cls(tuple(range(half)), tuple(range(half, 2 * half)), central=True)

    @property
    def models(self) -> int:
        """The number of models that are used."""
        return len(self.old) + len(self.new)

    def deviations(self, size: int = 1, *, drawn: bool = False) -> FloatArray:
        """Return the matrix that makes models' logits the columns of a root of a covariance.

        Its columns times their transpose are the covariance of the displacement between ensembles
        of a size. That of ensembles drawn from these models is less, as draws without replacement
        are; but not between two halves of one group, which exclude each other's models.
        """
        root = np.zeros((self.models, self.models))
        for side in self.sides():
            count = len(side)
            factor = 2 / size if self.central else 1 / size - (1 / count if drawn else 0.0)
            centred = np.eye(count) - 1 / count
            root[np.ix_(side, side)] = centred * np.sqrt(factor / (count - 1))
        return root

    def sides(self) -> list[list[int]]:
        """Return the models that follow one law, for each law."""
        if self.central:
            return [list(range(self.models))]
        return [list(self.old), list(self.new)]

    def shift(self) -> FloatArray:
        """Return the weights of the models in the mean displacement: new minus old."""
        weights = np.zeros(self.models)
        if not self.central:
            weights[list(self.old)] = -1 / len(self.old)
            weights[list(self.new)] = 1 / len(self.new)
        return weights

    def pairs(self) -> list[tuple[int, int]]:
        """Return pairs of an old and a new model in which no model occurs twice."""
        return list(zip(self.old, self.new, strict=False))


@dataclass(frozen=True, slots=True)
class NormLaw:
    """The generalized chi-squared law of squared displacement, per sample.

    The squared norm is `rest` plus the sum of `weights` times (z + `shifts`)^2.
    """

    weights: FloatArray
    shifts: FloatArray
    rest: FloatArray

    def cdf(self, squares: FloatArray) -> FloatArray:
        """Return the probability of at most these squared norms, to four digits.

        Both have shape (samples, values).
        """
        weights, shifts = self.weights[:, None, :], self.shifts[:, None, :]
        return generalized_chi2_cdf(squares - self.rest[:, None], weights, shifts, coarse=True)

    @property
    def spread(self) -> FloatArray:
        """The trace of the covariance of the displacement."""
        return np.asarray(self.weights.sum(axis=1))

    @property
    def squared_shift(self) -> FloatArray:
        """The squared norm of the mean displacement."""
        return np.asarray(self.rest + (self.weights * self.shifts**2).sum(axis=1))


def law_of(
    products: FloatArray, split: GroupSplit, size: int = 1, *, drawn: bool = False
) -> NormLaw:
    """Return the law between ensembles of a size, with the models' own mean and covariance."""
    root, weights = split.deviations(size, drawn=drawn), split.shift()
    values, vectors = np.linalg.eigh(root.T @ products @ root)
    kept = values > ROUNDING * values[:, -1:]
    values = np.where(kept, values, 0.0)
    # At least one weight must be above zero: of equal models, one so small that it does not matter.
    values[:, -1] = np.where(kept[:, -1], values[:, -1], np.finfo(float).tiny)
    along = ((products @ weights) @ root)[:, None, :] @ vectors
    shifts = np.where(kept, along[:, 0, :] / np.where(kept, values, 1.0), 0.0)
    squared = (products @ weights) @ weights
    rest = np.maximum(squared - (values * shifts**2).sum(axis=1), 0.0)
    if split.central:
        shifts, rest = np.zeros_like(shifts), np.zeros_like(rest)
    return NormLaw(values, shifts, rest)


def squared_distances(products: FloatArray, pairs: list[tuple[int, int]]) -> FloatArray:
    """Return the squared displacement of each pair of models, of shape (samples, pairs)."""
    old, new = np.array(pairs).T
    each = products[:, old, old] + products[:, new, new] - 2 * products[:, old, new]
    return np.maximum(each, 0.0)


def squared_norms(products: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the squared norms of combinations of models; weights have shape (models, columns)."""
    found = np.einsum("smc,mc->sc", products @ weights, weights)
    return np.asarray(np.maximum(found, 0.0))


def gaps(levels: FloatArray) -> FloatArray:
    """Return Kolmogorov and Smirnov's statistic of levels against the uniform law, per row.

    >>> gaps(np.array([[0.1, 0.5, 0.9]])).round(4)
    array([0.2333])
    """
    ordered, count = np.sort(levels, axis=1), levels.shape[1]
    steps = np.arange(count + 1) / count
    above, below = steps[1:] - ordered, ordered - steps[:-1]
    return np.asarray(np.maximum(above, below).max(axis=1))


def redrawn(products: FloatArray, split: GroupSplit, random: np.random.Generator) -> FloatArray:
    """Return the inner products of new models whose logits follow the normal law of these.

    Each new model is the mean plus a normal mixture of the deviations, the same mixture for all
    samples. So samples depend on each other as they do in the given models.
    """
    mix = np.zeros((split.models, split.models))
    for side in split.sides():
        count = len(side)
        numbers = random.standard_normal((count, count))
        numbers -= numbers.mean(axis=1, keepdims=True)
        mix[np.ix_(side, side)] = 1 / count + numbers / np.sqrt(count - 1)
    return np.asarray(mix @ products @ mix.T)
