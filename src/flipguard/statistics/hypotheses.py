"""P values: corrections for many groups, and any interval turned round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import FloatArray, Interval, find_root

SMALLEST_ALPHA = 1e-12


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
    surest, loosest = beyond(ends[0]), beyond(ends[1])
    alpha = np.exp(find_root(beyond, low=ends[0], high=ends[1]))
    alpha = np.where(surest > 0, SMALLEST_ALPHA, np.where(loosest > 0, alpha, 1.0))
    return np.where(np.isnan(surest + loosest), np.nan, alpha)[()]
