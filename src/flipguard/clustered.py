"""Intervals of rates, gains and ratios where rows belong to clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import FlipCounts, FloatArray
from flipguard.metrics import (
    Mean,
    Metric,
    PairedDifference,
    PairedRatio,
    Proportion,
    RelativeRate,
    Shape,
    has_largest_value,
)

# At most this many numbers are held by groups that are computed together (32 MB).
MOST_NUMBERS = 4_000_000


def has_cluster_interval(metric: Metric) -> bool:
    """Whether the metric is a ratio of two sums over clusters and has a largest possible value."""
    ratios = Proportion | PairedDifference | PairedRatio | RelativeRate | Mean
    return isinstance(metric.shape, ratios) and has_largest_value(metric)


def cluster_sums(
    metric: Metric, clusters: FlipCounts, times: FloatArray | None = None
) -> FloatArray:
    """Per cluster: numerator, numerator of the opposite, denominator, and rows.

    `times` is how often each cluster occurs: once if left out.

    The opposite of a rate p is 1 - p, and the opposite of a gain is the loss. A mean is divided by
    its largest possible value, so it counts as a rate. A quotient a / b has no upper bound, so
    a / (a + b) takes its place, whose opposite is b / (a + b).
    """
    shape = metric.shape
    if isinstance(shape, Proportion):
        part, whole = shape.part(clusters), shape.whole(clusters)
        return np.stack([part, whole - part, whole, whole], axis=-1)
    if isinstance(shape, Mean):
        part, whole = clusters[shape.statistic] / _reach(shape, clusters), clusters.rows
        return np.stack([part, whole - part, whole, whole], axis=-1)
    rows = clusters.labelled
    if isinstance(shape, PairedDifference):
        gain = clusters["positive_flip"] - clusters["negative_flip"]
        return np.stack([gain, -gain, rows, rows], axis=-1)
    if isinstance(shape, PairedRatio):
        joint = clusters.joint(shape.kind)
        first = joint[..., 1, :].sum(axis=-1)
        second = (joint * np.linspace(0.0, 1.0, joint.shape[-1])).sum(axis=(-2, -1))
        rows = joint.sum(axis=(-2, -1))
    elif isinstance(shape, RelativeRate):
        right, wrong = clusters.old_right, rows - clusters.new_right
        often = np.ones(rows.shape) if times is None else times
        n, all_right, all_wrong = ((often * x).sum() for x in (rows, right, wrong))
        n = max(n, 1.0)
        first = clusters["negative_flip"]
        # The linear change of all_right * all_wrong / n with each cluster.
        second = (all_right * wrong + all_wrong * right) / n - all_right * all_wrong / n**2 * rows
    else:
        raise AssertionError(f"{metric.name} is not a ratio of sums over clusters.")
    return np.stack([first, second, first + second, rows], axis=-1)


def widened(
    metric: Metric,
    independent: tuple[FloatArray, FloatArray],
    groups: Sequence[FlipCounts],
    confidence: float | FloatArray,
    *,
    scale: float = 1.0,
    times: Sequence[FloatArray] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Widen intervals of independent rows by the intervals over the clusters of each group.

    Takes one group with many confidences, or many groups with one confidence for all or one for
    each. `scale` multiplies the number of clusters, and `times` is how often each cluster of a
    group occurs. nan for a group of fewer than two clusters.
    """
    low, high = (np.array(end, dtype=np.float64) for end in independent)
    often: Sequence[FloatArray | None] = [None] * len(groups) if times is None else times
    tables = [_distinct(metric, *group) for group in zip(groups, often, strict=True)]
    levels = np.asarray(confidence, dtype=np.float64)
    for places, sums, count in _together(tables):
        top, opposite, bottom, rows = np.moveaxis(sums, -1, 0)
        if len(groups) == 1:
            top, opposite, bottom, rows, count = (
                part[0] for part in (top, opposite, bottom, rows, count)
            )
        at = ... if len(groups) == 1 else places
        level = levels[at] if levels.ndim else levels
        ends = [
            statistics.upper_end(part, bottom, rows, count * scale, confidence=level)
            for part in (top, opposite)
        ]
        upper, lower = _back(metric.shape, ends[0], ends[1], _reach(metric.shape, groups[0]))
        high[at] = np.maximum(high[at], upper)
        low[at] = np.minimum(low[at], lower)
    return low, high


def p_values_beyond(
    metric: Metric,
    groups: Sequence[FlipCounts],
    limit: float,
    side: Literal["above", "below"],
) -> FloatArray:
    """For each group the alpha at which the interval over its clusters just touches the limit."""
    found = np.full(len(groups), np.nan)
    if isinstance(metric.shape, PairedDifference):
        bound = -limit if side == "above" else limit
    else:
        bounded = isinstance(metric.shape, Proportion | Mean)
        share = limit / _reach(metric.shape, groups[0]) if bounded else limit / (1.0 + limit)
        bound = 1.0 - share if side == "above" else share
    for places, sums, times in _together([_distinct(metric, clusters) for clusters in groups]):
        top, opposite, bottom, rows = np.moveaxis(sums, -1, 0)
        part = opposite if side == "above" else top
        found[places] = statistics.p_value_below(part, bottom, rows, times, limit=bound)
    return found


def end_without_flips(metric: Metric, clusters: FlipCounts, confidence: float) -> float:
    """Return the upper end of a value of 0, as a share of the largest value."""
    sums, times = _distinct(metric, clusters)
    nothing = np.zeros(len(sums))
    return float(
        statistics.upper_end(nothing, sums[:, 2], sums[:, 3], times, confidence=confidence)
    )


def _reach(shape: Shape, clusters: FlipCounts) -> float:
    """The largest possible value of a rate or mean; the same for all clusters of a comparison."""
    return float(np.nanmax(shape.reach(clusters))) if isinstance(shape, Mean) else 1.0


def _back(
    shape: Shape, end: FloatArray, opposite: FloatArray, reach: float
) -> tuple[FloatArray, FloatArray]:
    """Turn the upper ends of the two ratios of sums into the upper and lower end of the metric."""
    if isinstance(shape, Proportion | Mean):
        return reach * end, reach * (1.0 - opposite)
    if isinstance(shape, PairedDifference):
        return end, -opposite
    with np.errstate(all="ignore"):
        return end / (1.0 - end), (1.0 - opposite) / opposite


def _distinct(
    metric: Metric, clusters: FlipCounts, times: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    sums = cluster_sums(metric, clusters, times)
    some = sums[:, 3] > 0
    if times is None:
        return statistics.distinct_rows(sums[some])
    return sums[some], times[some]


def _together(
    tables: Sequence[tuple[FloatArray, FloatArray]],
) -> Iterator[tuple[list[int], FloatArray, FloatArray]]:
    """Yield batches of groups with similar numbers of clusters, padded with empty clusters."""
    order = sorted(range(len(tables)), key=lambda i: len(tables[i][1]))
    while order:
        widest = max(len(tables[order[-1]][1]), 1)
        # At most half of a group's clusters are padding.
        places = [i for i in order if 2 * len(tables[i][1]) >= widest or widest <= 8]
        places = places[-max(1, MOST_NUMBERS // (8 * widest)) :]
        chosen = set(places)
        order = [i for i in order if i not in chosen]
        sums, times = np.zeros((len(places), widest, 4)), np.zeros((len(places), widest))
        for row, i in enumerate(places):
            found, often = tables[i]
            sums[row, : len(found)], times[row, : len(often)] = found, often
        yield places, sums, times
