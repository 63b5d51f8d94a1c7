"""
What every interval needs: arrays in, critical values, and roots, all element by element.

SciPy is imported by the functions that need it, in all modules: it would more than double the time
of importing flipguard.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Interval = tuple[FloatArray, FloatArray]


def floats(*values: ArrayLike) -> list[FloatArray]:
    """Broadcast the values against each other, as float64.

    >>> [x.shape for x in floats([1, 2], 3)]
    [(2,), (2,)]
    """
    return list(np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values)))


def divide(numerator: ArrayLike, denominator: ArrayLike) -> FloatArray:
    """Divide, with nan wherever the denominator is 0: an undefined rate is never 0.

    >>> divide([1.0, 0.0], [2.0, 0.0])
    array([0.5, nan])
    """
    top, bottom = floats(numerator, denominator)
    out = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=out, where=bottom != 0)
    return out


def critical_value(*, confidence: ArrayLike, degrees: ArrayLike = np.inf) -> FloatArray:
    """Two-sided critical value: of the normal, or of Student's t where `degrees` is finite.

    >>> float(critical_value(confidence=0.95).round(3))
    1.96
    >>> float(critical_value(confidence=0.95, degrees=10).round(3))
    2.228
    """
    from scipy.special import ndtri, stdtrit

    level, freedom = floats(confidence, degrees)
    # The tail is formed first: 1 - (1 + c) / 2 would lose the digits of a confidence near 1.
    tail = (1.0 - level) / 2.0
    finite = np.isfinite(freedom)
    with np.errstate(all="ignore"):
        student = -stdtrit(np.where(finite, freedom, 1.0), tail)
        normal = -ndtri(tail)
    critical = np.where(finite, student, normal)
    # Fewer than one degree of freedom says nothing at all about the spread.
    return np.where(np.isnan(freedom) | (freedom <= 0), np.nan, critical)


def tail_of(critical: FloatArray) -> FloatArray:
    """Both normal tails beyond a critical value: the error rate that a t value stands for."""
    from scipy.special import ndtr

    return np.asarray(2.0 * ndtr(-critical), dtype=np.float64)


def find_root(
    function: Callable[[FloatArray], FloatArray], *, low: FloatArray, high: FloatArray
) -> FloatArray:
    """A root of each element's function in its bracket, by Chandrupatla's method.

    Where the ends have the same sign the end nearer to zero is returned.

    >>> float(find_root(lambda x: x**3 - 2, low=np.array(0.0), high=np.array(2.0)).round(6))
    1.259921
    """
    with np.errstate(all="ignore"):
        return _chandrupatla(function, low, high)


def _chandrupatla(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> FloatArray:
    # a: newest point, b: the other end of the bracket, c: the point that was dropped last.
    a, b = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
    fa, fb = function(a), function(b)
    c, fc = a, fa
    step = np.full(np.shape(a), 0.5)
    bracketed = np.sign(fa) * np.sign(fb) <= 0
    best = np.where(np.abs(fa) <= np.abs(fb), a, b)
    for _ in range(100):
        tolerance = 4e-16 * np.abs(best) + 1e-300
        width = np.abs(b - a)
        active = bracketed & (width > 2 * tolerance) & (np.minimum(np.abs(fa), np.abs(fb)) > 0)
        if not np.any(active):
            break
        x = np.where(active, a + step * (b - a), a)
        fx = np.where(active, function(x), fa)
        same = np.sign(fx) == np.sign(fa)
        moved = active & same
        swapped = active & ~same
        c, fc = (
            np.where(moved, a, np.where(swapped, b, c)),
            np.where(moved, fa, np.where(swapped, fb, fc)),
        )
        b, fb = np.where(swapped, a, b), np.where(swapped, fa, fb)
        a, fa = x, fx
        best = np.where(bracketed, np.where(np.abs(fa) < np.abs(fb), a, b), best)
        # Inverse quadratic interpolation where the three points allow it, else halve.
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        good = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
        jump = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        least = np.minimum(tolerance / np.maximum(np.abs(b - a), 1e-300), 0.5)
        step = np.where(good & np.isfinite(jump), np.clip(jump, least, 1 - least), 0.5)
    return best
