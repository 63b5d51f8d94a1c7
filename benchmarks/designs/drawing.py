"""Shared by the designs: drawing or listing tables of counts, and making rows from intervals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from designs.row import Rival, Row

Floats = NDArray[np.float64]
Interval = tuple[Floats, Floats]
FAMILIES = (10, 100, 1000)
FAMILY_ERROR = 0.05


def normal(confidence: float) -> float:
    """The two-sided critical value."""
    return float(-ndtri((1 - confidence) / 2))


def cells(*, error_old: float, error_new: float, relative: float) -> Floats:
    """Probabilities of both right, negative flip, positive flip, both wrong, from three rates."""
    negative = relative * (1 - error_old) * error_new
    both_wrong = error_new - negative
    positive = error_old - both_wrong
    table = np.array([1 - error_old - negative, negative, positive, both_wrong])
    assert table.min() >= -1e-12
    return np.maximum(table, 0.0)


def drawn(rng: np.random.Generator, n: int, chances: Floats, draws: int) -> tuple[Floats, Floats]:
    """Distinct tables, and the share of draws of each."""
    tables, often = np.unique(rng.multinomial(n, chances, size=draws), axis=0, return_counts=True)
    return tables.astype(np.float64), often / draws


def likely(n: int, chance: float, omitted: float = 1e-10) -> Floats:
    """Counts of a binomial, without tails of a probability below `omitted` on each side."""
    low, high = binom.ppf(omitted, n, chance), binom.isf(omitted, n, chance)
    return np.arange(max(low, 0), min(high, n) + 1)


def shares(interval: Interval, truth: float, weight: Floats) -> tuple[float, float, float]:
    """Shares of the defined intervals that lie above and below the truth; share of undefined."""
    low, high = interval
    defined = ~(np.isnan(low) | np.isnan(high))
    total = (weight * defined).sum()
    with np.errstate(invalid="ignore"):
        above = (weight * (defined & (low > truth + 1e-12))).sum()
        below = (weight * (defined & (high < truth - 1e-12))).sum()
    if total == 0:
        return 0.0, 0.0, 1.0
    return float(above / total), float(below / total), max(0.0, float(1 - total / weight.sum()))


def median_width(interval: Interval, weight: Floats) -> float | None:
    width = interval[1] - interval[0]
    known = ~np.isnan(width)
    if not known.any():
        return None
    width, weight = width[known], weight[known]
    order = np.argsort(width)
    total = np.cumsum(weight[order])
    return float(width[order][np.searchsorted(total, total[-1] / 2)])


def covered(interval: Interval, truth: float, weight: Floats) -> Rival:
    above, below, _ = shares(interval, truth, weight)
    return {"measured": 1 - above - below, "width": median_width(interval, weight)}


def coverage_row(
    metric: str,
    design: str,
    n: int,
    confidence: float,
    draws: int,
    interval: Interval,
    truth: float,
    weight: Floats,
    rivals: dict[str, Interval],
    *,
    exact: bool = False,
    printed: str | None = None,
) -> Row:
    """The row of an interval that should contain the true value; `draws` is 0 if exact."""
    above, below, undefined = shares(interval, truth, weight)
    row: Row = {
        "metric": metric,
        "design": design,
        "n": n,
        "confidence": confidence,
        "draws": len(weight) if exact else draws,
        "promise": "coverage",
        "nominal": confidence,
        "measured": 1 - above - below,
        "above": above,
        "below": below,
        "width": median_width(interval, weight),
        "undefined": undefined,
        "rivals": {name: covered(rival, truth, weight) for name, rival in rivals.items()},
        "printed": printed,
    }
    if exact:
        row["exact"] = True
    return row


def family_row(
    metric: str,
    design: str,
    n: int,
    groups: int,
    interval: Interval,
    truth: float,
    weight: Floats,
    rivals: dict[str, Interval] | None = None,
) -> Row:
    """The row of many equal groups at their limit, each judged at the corrected confidence.

    Holm's first step and Bonferroni's both need a confidence of 1 - 0.05 / groups. So the chance
    that any group fails follows from the chance that one does. The worse of the two sides counts.
    """

    def any_fails(interval: Interval) -> tuple[float, float, float]:
        above, below, undefined = shares(interval, truth, weight)
        fails = -np.expm1(groups * np.log1p(-max(above, below) * (1 - undefined)))
        return float(fails), above, below

    error, above, below = any_fails(interval)
    return {
        "metric": metric,
        "design": f"{design}, {groups:,} groups",
        "n": n,
        "confidence": 1 - FAMILY_ERROR / groups,
        "draws": len(weight),
        "exact": True,
        "promise": "family-wise error",
        "nominal": FAMILY_ERROR,
        "measured": error,
        "above": above,
        "below": below,
        "width": median_width(interval, weight),
        "undefined": shares(interval, truth, weight)[2],
        "rivals": {
            name: {"measured": any_fails(rival)[0], "width": median_width(rival, weight)}
            for name, rival in (rivals or {}).items()
        },
        "printed": None,
    }


def bootstrap(
    rng: np.random.Generator,
    tables: Floats,
    weight: Floats,
    value: object,
    influence: object,
    truth: float,
    confidence: float,
    *,
    draws: int = 300,
    most: int = 2000,
) -> Iterator[tuple[str, Rival]]:
    """Multinomial bootstrap, percentile and BCa, on at most `most` of the tables."""
    assert callable(value)
    assert callable(influence)
    alpha, z = 1 - confidence, normal(confidence)
    table = tables[rng.choice(len(tables), size=most, p=weight / weight.sum())]
    n = table[0].sum()
    again = rng.multinomial(int(n), table / n, size=(draws, len(table))).astype(np.float64)
    estimate = value(table)
    values = np.sort(np.nan_to_num(value(again), nan=0.0), axis=0)
    once = np.ones(most)
    low, high = np.quantile(values, [alpha / 2, 1 - alpha / 2], axis=0)
    yield "bootstrap percentile", covered((low, high), truth, once)
    with np.errstate(all="ignore"):
        u = np.nan_to_num(influence(table), posinf=0.0, neginf=0.0)
        u = u - (table * u).sum(axis=-1, keepdims=True) / n
        skew = (table * u**3).sum(axis=-1) / (6 * (table * u**2).sum(axis=-1) ** 1.5)
        under = ((values < estimate).sum(axis=0) + 0.5 * (values == estimate).sum(axis=0)) / draws
        shift = ndtri(np.clip(under, 0.5 / draws, 1 - 0.5 / draws))

        def end(z: float) -> Floats:
            level = ndtr(shift + (shift + z) / (1 - np.nan_to_num(skew) * (shift + z)))
            at = (np.nan_to_num(level, nan=0.5) * (draws - 1)).round().astype(int)
            return np.take_along_axis(values, np.clip(at, 0, draws - 1)[np.newaxis], axis=0)[0]

        yield "bootstrap BCa", covered((end(-z), end(z)), truth, once)
