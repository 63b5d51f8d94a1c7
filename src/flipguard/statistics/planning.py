"""How many further samples decide an inconclusive rule with a given chance.

The further samples are drawn at the observed rates. A quantile of their counts is used, not the
mean: a rule that is decided at the mean is decided only about every second time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flipguard.statistics._arrays import FloatArray, floats

# From this variance on, a quantile of a binomial is approximated by a normal one with skewness.
LARGEST_EXACT_VARIANCE = 10_000.0
LARGEST_SAMPLE = 1e12
# Beyond two hundred samples the answer has at most this relative error.
PRECISION = 5e-3

Decided = Callable[[NDArray[np.int64], FloatArray], NDArray[np.bool_]]


def samples_to_decide(decided: Decided, start: ArrayLike) -> FloatArray:
    """The smallest number of further samples that decides each of many questions.

    `decided(questions, samples)` gets indices of questions and a number of samples for each.
    `start` is a guess per question. nan where no number up to 1e12 decides.

    >>> needed = np.array([3.0, 40.0, np.inf])
    >>> samples_to_decide(lambda i, m: m >= needed[i], [10.0, 10.0, 10.0])
    array([ 3., 40., nan])
    """
    guess = np.maximum(np.ceil(np.asarray(start, dtype=np.float64)), 1.0)
    guess = np.minimum(np.where(np.isnan(guess), 1.0, guess), LARGEST_SAMPLE)
    # `few` is the largest number known not to decide, `enough` the smallest known to decide.
    few, enough = np.zeros_like(guess), np.full_like(guess, np.nan)
    factor = np.full_like(guess, 2.0)
    active = np.ones(guess.shape, dtype=bool)
    while active.any():
        questions = np.flatnonzero(active)
        answer = decided(questions, guess[questions])
        enough[questions[answer]] = guess[questions[answer]]
        few[questions[~answer]] = guess[questions[~answer]]
        lost = np.isnan(enough) & (few >= LARGEST_SAMPLE)
        active &= ~lost & ~(enough - few <= np.maximum(1.0, PRECISION * enough))
        with np.errstate(all="ignore"):
            between = np.where(few > 0, np.sqrt(few * enough), enough / factor)
        guess = np.where(np.isnan(enough), np.minimum(few * factor, LARGEST_SAMPLE), between)
        # The middle may round to an end, which has been asked already.
        guess = np.where(np.isnan(enough), guess, np.clip(np.ceil(guess), few + 1, enough - 1))
        factor = np.where(np.isnan(enough) | (few == 0), np.minimum(factor**1.5, 1e3), factor)
    return enough


def binomial_quantile(level: ArrayLike, n: ArrayLike, p: ArrayLike) -> FloatArray:
    """The smallest count that a binomial does not exceed with a chance of at least `level`.

    >>> binomial_quantile([0.5, 0.9], 10, 0.3)
    array([3., 5.])
    """
    from scipy.special import bdtrik, betainc, ndtri

    chance, size, rate = floats(level, n, p)
    chance = np.clip(chance, 1e-6, 1 - 1e-6)
    spread = np.sqrt(size * rate * (1 - rate))
    with np.errstate(all="ignore"):
        z = skewed(ndtri(chance), (1 - 2 * rate) / spread)
        limit = np.floor(size * rate + z * spread + 0.5)
        few = spread**2 < LARGEST_EXACT_VARIANCE
        found = np.ceil(bdtrik(chance, np.where(few, size, 1.0), rate))
        lower = np.maximum(found - 1, 0.0)
        enough = betainc(np.maximum(size - lower, 1e-300), lower + 1, 1 - rate) >= chance
        found = np.where(enough, lower, found)
    found = np.where(few, found, limit)
    found = np.where(rate >= 1, size, np.clip(found, 0.0, size))
    return np.where((rate <= 0) | (size <= 0), 0.0, found)


def skewed(z: ArrayLike, skewness: ArrayLike) -> FloatArray:
    """The quantile of a skewed standardised sum from the normal one `z` (Cornish and Fisher)."""
    normal, skew = floats(z, skewness)
    return np.asarray(normal + (normal**2 - 1) * np.clip(skew, -2.0, 2.0) / 6)
