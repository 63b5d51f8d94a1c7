"""Intervals of rates, gains and ratios where rows belong to clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import FlipCounts, FloatArray
from flipguard.metric_kinds import ClusterRatioKind
from flipguard.metrics import Metric

# At most this many numbers are held by groups that are computed together (32 MB).
MOST_NUMBERS = 4_000_000


def has_cluster_interval(metric: Metric) -> bool:
    """Whether the metric is a ratio of two sums over clusters and has a largest possible value."""
    return isinstance(metric.kind, ClusterRatioKind) and metric.kind.has_largest_value


def ratio_of(metric: Metric) -> ClusterRatioKind:
    """Return the kind of a metric that has an interval over clusters."""
    if not isinstance(metric.kind, ClusterRatioKind):
        raise AssertionError(f"{metric.name} is not a ratio of sums over clusters.")
    return metric.kind


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
    kind, reach = ratio_of(metric), _reach(metric, groups[0])
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
        upper, lower = kind.ends(ends[0], ends[1], reach)
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
    bound = ratio_of(metric).bound(limit, side, _reach(metric, groups[0]))
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


def _reach(metric: Metric, clusters: FlipCounts) -> float:
    """The largest possible value; the same for all clusters of a comparison."""
    return float(np.nanmax(ratio_of(metric).reach(clusters)))


def _distinct(
    metric: Metric, clusters: FlipCounts, times: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    sums = ratio_of(metric).cluster_sums(clusters, times)
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
