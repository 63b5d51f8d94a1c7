"""Two ratios: the relative negative flip rate, and new's flips over those of its controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics._arrays import (
    FloatArray,
    Interval,
    critical_value,
    divide,
    floats,
    tail_of,
)
from flipguard.statistics.rates import exact_limits, wilson
from flipguard.statistics.seeds import retraining_variance


def relative_negative_flip_rate(
    negative_flip: ArrayLike,
    old_right: ArrayLike,
    new_wrong: ArrayLike,
    n: ArrayLike,
    *,
    confidence: ArrayLike,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Interval of R = NFR / ((1 - ER_old) ER_new).

    R = p / (w p + (1 - w) q), where w is the share that old got right, p is new's error rate there,
    and q is new's error rate on the rest: three independent binomials. The ends are the extremes of
    R over combinations of exact limits of w, p and q, at critical values whose squares add up to
    that of the interval. With small counts and high confidence all three matter at once: with their
    distances added afterwards, some of 1,000 groups of 30 samples would fail wrongly in 21 % of
    cases instead of 5 %. R is defined without any flip; nan if old was never right or new never
    wrong.

    >>> low, high = relative_negative_flip_rate(20, 900, 80, 1000, confidence=0.95)
    >>> print(f"{low:.3f} {high:.3f}")
    0.179 0.397
    """
    critical = critical_value(confidence=confidence, degrees=degrees)
    flips, right, wrong, total, effect, critical = floats(
        negative_flip, old_right, new_wrong, n, design_effect, critical
    )
    flips, right, wrong, total = (divide(x, effect) for x in (flips, right, wrong, total))
    value = divide(flips * total, right * wrong)
    low, high = value, value
    for share, (low_p, high_p), (low_q, high_q) in _on_sphere(
        right, total, flips, wrong - flips, critical
    ):
        low = np.fmin(low, divide(low_p, share * low_p + (1 - share) * high_q))
        high = np.fmax(high, divide(high_p, share * high_p + (1 - share) * low_q))
    # The old model was never wrong, so the data allow any risk ratio.
    blind = (right == total) & ~np.isnan(value)
    low = np.where(blind, 0.0, low)
    high = np.where(blind, divide(1.0, _score_and_exact(right, total, critical)[0]), high)
    known = ~np.isnan(value + critical)
    return np.where(known, low, np.nan)[()], np.where(known, high, np.nan)[()]


# Directions in which two parts of a ratio are moved together.
CIRCLE_ANGLES = 7


# Directions between two axes. The direction that is extreme for large samples is added to them.
SPHERE_ANGLES = 4


def _on_sphere(
    right: FloatArray,
    total: FloatArray,
    broken: FloatArray,
    still_wrong: FloatArray,
    critical: FloatArray,
) -> Iterator[tuple[FloatArray, Interval, Interval]]:
    """Ends of w with the intervals of p and q; squared critical values add up to `critical`'s."""
    angles = np.linspace(0.0, np.pi / 2, SPHERE_ANGLES)
    # At the last height only w moves.
    grid = [(angles[-1], angles[:1]), *((up, angles) for up in angles[:-1])]
    up, around = _farthest(right, total, broken, still_wrong)
    for height, turns in [*grid, (up, around[np.newaxis])]:
        shares = _score_and_exact(right, total, critical * np.sin(height))
        for turn in turns:
            flat = critical * np.cos(height)
            where_right = exact_limits(broken, right, flat * np.cos(turn))
            elsewhere = exact_limits(still_wrong, total - right, flat * np.sin(turn))
            for share in shares:
                yield share, where_right, elsewhere


def _farthest(
    right: FloatArray, total: FloatArray, broken: FloatArray, still_wrong: FloatArray
) -> Interval:
    """The direction (height, turn) of the largest change of log R per standard error."""

    def rate(hits: FloatArray, n: FloatArray) -> tuple[FloatArray, FloatArray]:
        # Half a hit more on each side keeps the standard error above 0 if there are no hits.
        chance = (hits + 0.5) / (n + 1)
        return chance, np.sqrt(chance * (1 - chance) / (n + 1))

    (w, by_w), (p, by_p), (q, by_q) = (
        rate(right, total),
        rate(broken, right),
        rate(still_wrong, total - right),
    )
    of_p, of_q, of_w = (1 - w) * q / p * by_p, (1 - w) * by_q, np.abs(p - q) * by_w
    return np.arctan2(of_w, np.hypot(of_p, of_q)), np.arctan2(of_q, of_p)


def _extremes(
    value: FloatArray,
    first: Callable[[float], Interval],
    second: Callable[[float], Interval],
    combined: Callable[[FloatArray, FloatArray], FloatArray],
) -> Interval:
    """The extremes of a function of two independent parts; squared critical values add up."""
    low, high = value, value
    for angle in np.linspace(0.0, np.pi / 2, CIRCLE_ANGLES):
        ends = first(float(np.cos(angle))), second(float(np.sin(angle)))
        corners = [combined(a, b) for a in ends[0] for b in ends[1]]
        low, high = np.fmin(low, np.fmin.reduce(corners)), np.fmax(high, np.fmax.reduce(corners))
    return low, high


def _score_and_exact(hits: FloatArray, n: FloatArray, critical: FloatArray) -> Interval:
    return wilson(hits, n, confidence=1.0 - tail_of(critical))


def log_relative_negative_flip_rate_variance(
    negative_flip: ArrayLike, old_right: ArrayLike, new_wrong: ArrayLike, n: ArrayLike
) -> FloatArray:
    """Sampling variance of log R when the samples are independent (delta method).

    >>> print(f"{log_relative_negative_flip_rate_variance(20, 900, 80, 1000):.5f}")
    0.03594
    """
    flips, right, wrong, total = floats(negative_flip, old_right, new_wrong, n)
    ratio = divide(flips * total, right * wrong)
    variance = divide(1, flips) - divide(1, right) - divide(1, wrong) + divide(2 * ratio - 1, total)
    return np.maximum(variance, 0.0)[()]


def paired_ratio(
    joint: ArrayLike,
    *,
    confidence: ArrayLike,
    controls: ArrayLike | None = None,
    design_effect: ArrayLike = 1.0,
    degrees: ArrayLike = np.inf,
) -> Interval:
    """Interval of mean(new flagged) / mean(share of k controls flagged), same samples.

    `joint` (..., 2, k + 1) counts samples by new's flag and by how many of the k controls are
    flagged. Without `controls` the interval is about these models on other samples. It is made of
    two independent binomials: how many of the flagged samples are flagged on one side only, and how
    many of those on new's side. Both have exact limits. The ends are the extremes of the ratio over
    pairs of limits whose squared critical values add up to that of the interval.

    `controls` (..., k) holds the flags of each control. With two or more, the interval is about the
    recipes: it also allows for another seed of new and of the controls.

    If no control is flagged, the ratio is infinite, and the lower end still bounds it from below.
    nan if neither new nor any control is flagged.

    >>> low, high = paired_ratio([[900, 50], [20, 30]], confidence=0.95)
    >>> print(f"{low:.3f} {high:.3f}")
    0.467 0.820
    """
    table = _joint(joint)
    effect = np.asarray(design_effect, dtype=np.float64)
    table = divide(table, effect[..., np.newaxis, np.newaxis])
    critical = critical_value(confidence=confidence, degrees=degrees)
    low, high = _sampling_limits(table, critical)
    if controls is not None and table.shape[-1] > 2:
        flagged = divide(controls, effect[..., np.newaxis])
        more = retraining_variance(flagged, _apart(table), confidence=confidence)
        low, high = _widened(table, low, high, more)
    return low[()], high[()]


def _sampling_limits(table: FloatArray, critical: FloatArray) -> Interval:
    both, new, control, scale = _against_one(table)
    one_sided = new + control
    value = _quotient(both + new, both + control) + np.zeros(critical.shape)

    def ratio(side: FloatArray, share: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            return np.asarray((1 - share + share * side) / (1 - share * side))

    low, high = _extremes(
        value,
        lambda reach: _any_or_exact(new, one_sided, critical * reach),
        lambda reach: _any_or_exact(one_sided, both + one_sided, critical * reach),
        ratio,
    )
    known = ~np.isnan(value + critical)
    return np.where(known, scale * low, np.nan), np.where(known, scale * high, np.nan)


def _widened(table: FloatArray, low: FloatArray, high: FloatArray, more: FloatArray) -> Interval:
    """Widen the limits by a further variance of the logarithm, added to its squared half-widths."""
    both, new, control, scale = _against_one(table)
    # Half a flag replaces 0, which has no logarithm.
    centre = scale * np.maximum(both + new, 0.5) / np.maximum(both + control, 0.5)
    with np.errstate(all="ignore"):
        down = np.exp(-np.hypot(np.log(centre / low), np.sqrt(more)))
        up = np.exp(np.hypot(np.log(high / centre), np.sqrt(more)))
        return np.minimum(low, centre * down), np.maximum(high, centre * up)


def _against_one(table: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Samples flagged by new and control, by new only, and by the control only; and its scale.

    One imaginary control replaces several. It flags `scale` times as many samples as they do on
    average: k times if they never flag the same samples, once if they always do. The log ratio of
    new to it has the same sampling variance as the log ratio to their mean.
    """
    first, second, squares, both = _moments(table)
    scale = np.where(second > 0, divide(second, squares), table.shape[-1] - 1)
    both = np.minimum(scale * both, first)
    # Rounding may leave a number slightly below 0.
    return both, first - both, np.maximum(scale * second - both, 0.0), scale


def _moments(table: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Sums over samples: new's flag, the controls' share, its square, and flag times share."""
    share = np.linspace(0.0, 1.0, table.shape[-1])
    flagged, either = table[..., 1, :], table.sum(axis=-2)
    return (
        flagged.sum(axis=-1),
        (either * share).sum(axis=-1),
        (either * share**2).sum(axis=-1),
        (flagged * share).sum(axis=-1),
    )


def _apart(table: FloatArray) -> FloatArray:
    """On how many samples two of the k controls differ, averaged over all pairs."""
    k = table.shape[-1] - 1
    flagged = np.arange(k + 1)
    return np.asarray((table.sum(axis=-2) * flagged * (k - flagged)).sum(axis=-1) * 2 / (k * k - k))


def _any_or_exact(hits: FloatArray, n: FloatArray, critical: FloatArray) -> Interval:
    """Exact limits of a share; 0 and 1 if there is no sample."""
    low, high = exact_limits(hits, n, critical)
    return np.where(n > 0, low, 0.0), np.where(n > 0, high, 1.0)


def _quotient(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Division where anything over 0 is infinite; nan for 0 over 0."""
    with np.errstate(all="ignore"):
        return np.asarray(top / bottom)


def _joint(joint: ArrayLike) -> FloatArray:
    table = np.asarray(joint, dtype=np.float64)
    if table.ndim < 2 or table.shape[-2] != 2 or table.shape[-1] < 2:
        raise ValueError(f"Expected `joint` to be (..., 2, k + 1), but got shape {table.shape}.")
    return table


def log_paired_ratio_variance(joint: ArrayLike) -> FloatArray:
    """Sampling variance of the logarithm of the ratio when the samples are independent.

    >>> print(f"{log_paired_ratio_variance([[900, 50], [20, 30]]):.5f}")
    0.01750
    """
    first, second, squares, both = _moments(_joint(joint))
    variance = divide(1.0, first) + divide(squares, second**2) - 2 * divide(both, first * second)
    return np.maximum(variance, 0.0)[()]
