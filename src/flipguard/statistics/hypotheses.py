"""P values: corrections for many groups, tests by inverted intervals, and sample sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flipguard.statistics._arrays import FloatArray, Interval, find_root, floats

SMALLEST_ALPHA = 1e-12

# From this variance on, a quantile of a binomial is approximated by a normal one with skewness.
LARGEST_EXACT_VARIANCE = 10_000.0
LARGEST_SAMPLE = 1e12
# Beyond two hundred samples the answer has at most this relative error.
PRECISION = 5e-3

Decided = Callable[[NDArray[np.int64], FloatArray], NDArray[np.bool_]]


def mcnemar(negative: ArrayLike, positive: ArrayLike) -> FloatArray:
    """Return the exact two-sided McNemar p value of equally likely negative and positive flips.

    It is 1 if nothing flipped.

    >>> print(f"{mcnemar(2, 10):.4f}")
    0.0386
    """
    from scipy.special import betainc  # here, because SciPy doubles the import time

    losses, gains = np.asarray(negative, dtype=np.float64), np.asarray(positive, dtype=np.float64)
    fewer, more = np.minimum(losses, gains), np.maximum(losses, gains)
    # P(X <= fewer) of a fair coin is an incomplete beta function. A sum of binomial coefficients
    # would be slow, and would overflow with many flips.
    with np.errstate(all="ignore"):
        tail = betainc(np.maximum(more, 1.0), fewer + 1.0, 0.5)
    p_value = np.where(fewer == more, 1.0, np.minimum(2.0 * tail, 1.0))
    return np.where(np.isnan(losses + gains), np.nan, p_value)


def holm(p_values: ArrayLike) -> FloatArray:
    """Holm's adjusted p values (family-wise error); nan passes through and is not counted.

    >>> holm([0.01, 0.04, float("nan")])
    array([0.02, 0.04,  nan])
    """
    return _adjust(p_values, _holm_sorted)


def benjamini_hochberg(p_values: ArrayLike) -> FloatArray:
    """Benjamini and Hochberg's adjusted p values (false discovery rate); nan passes through.

    >>> benjamini_hochberg([0.01, 0.04, float("nan")])
    array([0.02, 0.04,  nan])
    """
    return _adjust(p_values, _benjamini_hochberg_sorted)


def corrected(p_values: ArrayLike, correction: str) -> FloatArray:
    """P values adjusted by the correction of that name; "none" leaves them as they are.

    >>> corrected([0.01, 0.04], "holm")
    array([0.02, 0.04])
    """
    if correction == "holm":
        return holm(p_values)
    if correction == "benjamini-hochberg":
        return benjamini_hochberg(p_values)
    return np.asarray(p_values, dtype=np.float64)


def _adjust(p_values: ArrayLike, rule: Callable[[FloatArray], FloatArray]) -> FloatArray:
    given = np.asarray(p_values, dtype=np.float64)
    flat = given.ravel()
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    adjusted = np.full(flat.shape, np.nan)
    adjusted[order] = np.minimum(rule(flat[order]), 1.0)
    return adjusted.reshape(given.shape)[()]


def _holm_sorted(ascending: FloatArray) -> FloatArray:
    m = ascending.size
    return np.maximum.accumulate(ascending * np.arange(m, 0, -1))


def _benjamini_hochberg_sorted(ascending: FloatArray) -> FloatArray:
    m = ascending.size
    scaled = ascending * m / np.arange(1, m + 1)
    return np.minimum.accumulate(scaled[::-1])[::-1]


def p_value_by_inversion(
    interval: Callable[[FloatArray], Interval],
    *,
    limit: ArrayLike,
    side: Literal["above", "below"],
) -> FloatArray:
    """The alpha at which the (1 - alpha) interval just touches the limit.

    `interval(confidence)` gives (low, high) for an array of confidences, one an element. `side`
    "above" asks whether the value lies above the limit (low > limit), "below" whether it lies
    below. The convention is two-sided, like that of the interval: half of alpha is the one-sided p
    value. 1 where the estimate itself is on the wrong side of the limit, nan where it is nan, and
    never below 1e-12, because 1 - alpha cannot tell smaller ones apart.

    >>> from flipguard.statistics import wilson
    >>> p = p_value_by_inversion(lambda c: wilson(60, 100, confidence=c), limit=0.5, side="above")
    >>> print(f"{p:.4f}")
    0.0569
    """
    if side not in ("above", "below"):
        raise ValueError(f"Expected `side` to be 'above' or 'below', but got {side!r}.")
    bound = np.asarray(limit, dtype=np.float64)

    def beyond(log_alpha: FloatArray) -> FloatArray:
        low, high = interval(1.0 - np.exp(log_alpha))
        return np.asarray(low - bound if side == "above" else bound - high, dtype=np.float64)

    # On the logarithm, because small p values matter as much as large ones.
    shape = np.shape(beyond(np.log(0.5)))
    ends = np.full(shape, np.log(SMALLEST_ALPHA)), np.full(shape, np.log1p(-1e-9))
    at_first, at_last = beyond(ends[0]), beyond(ends[1])
    alpha = np.exp(find_root(beyond, low=ends[0], high=ends[1]))
    alpha = np.where(at_first > 0, SMALLEST_ALPHA, np.where(at_last > 0, alpha, 1.0))
    return np.where(np.isnan(at_first + at_last), np.nan, alpha)[()]


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
