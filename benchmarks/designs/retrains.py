"""Simulated retrains: models of one recipe that tend to flip the same samples, at varying rates."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]


def flip_rates(
    rng: np.random.Generator, draws: int, models: int, rate: float, variation: float
) -> Floats:
    """The rate of each model: log-normal with this relative spread from seed to seed."""
    scale = math.sqrt(math.log1p(variation**2))
    return np.minimum(rate * np.exp(scale * rng.standard_normal((draws, models))), 0.9)


def flip_counts(rng: np.random.Generator, n: int, rates: Floats, shared: float) -> Floats:
    """The flips of each model on the same n samples, some of which flip more easily."""
    chances, weights = _by_sample(rates, shared, 15)
    samples = rng.multinomial(n, weights, size=len(rates))
    return rng.binomial(samples[:, None, :], chances).sum(axis=-1).astype(np.float64)


def joint_flips(
    rng: np.random.Generator, n: int, rates: Floats, shared: float
) -> tuple[Floats, Floats]:
    """The joint table of new (the first model) and its controls, and each control's flips."""
    chances, weights = _by_sample(rates, shared, 15)
    k = rates.shape[1] - 1
    patterns = np.array(list(itertools.product((0, 1), repeat=k + 1)))
    cells = np.ones((len(rates), len(patterns), len(weights)))
    for model in range(k + 1):
        flipped = patterns[:, model, None] == 1
        one = chances[:, model, None, :]
        cells *= np.where(flipped, one, 1 - one)
    law = (cells * weights).sum(axis=-1)
    seen = rng.multinomial(n, law / law.sum(axis=-1, keepdims=True)).astype(np.float64)
    joint = np.zeros((len(rates), 2, k + 1))
    for i, pattern in enumerate(patterns):
        joint[:, pattern[0], pattern[1:].sum()] += seen[:, i]
    return joint, seen @ patterns[:, 1:].astype(np.float64)


def _by_sample(rates: Floats, shared: float, nodes: int) -> tuple[Floats, Floats]:
    """Flip probabilities by model and by how easily a sample flips, with the share of each."""
    ease, weights = np.polynomial.hermite_e.hermegauss(nodes)
    threshold = ndtri(rates)[..., None]
    chances = ndtr((threshold + math.sqrt(shared) * ease) / math.sqrt(1 - shared))
    return chances, weights / weights.sum()
