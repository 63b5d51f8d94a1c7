"""Metrics with intervals, for independent rows and for rows in clusters.

The formulas of each kind of metric belong to `flipguard.metric_kinds`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import FlipCounts, FloatArray
from flipguard.formatting import finite_or_none
from flipguard.metric import Metric
from flipguard.metric_kinds import ClusterRatioKind, Design, PValueKind

# Groups that are computed together have at most this many numbers (32 MB).
MOST_NUMBERS = 4_000_000

REPLICATES = 2_000
# With many groups, each gets fewer draws: a design effect needs fewer than a percentile.
REPLICATES_A_GROUP = 500
SEED = 20210619


def has_cluster_interval(metric: Metric) -> bool:
    """Return whether the metric is a ratio of sums over clusters with a largest possible value."""
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

    Takes one group with many confidences, or many groups with one confidence for all or one per
    group. `scale` multiplies the number of clusters, and `times` is how often each cluster of a
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
    """Return per group the alpha at which the interval over its clusters touches the limit."""
    found = np.full(len(groups), np.nan)
    kind = ratio_of(metric)
    bound = kind.bound(limit, side, _reach(metric, groups[0]))
    for places, sums, times in _together([_distinct(metric, clusters) for clusters in groups]):
        top, opposite, bottom, rows = np.moveaxis(sums, -1, 0)
        parts = [opposite] if side == "above" else [top, opposite][: 1 + kind.is_absolute]
        each = [statistics.p_value_below(p, bottom, rows, times, limit=bound) for p in parts]
        found[places] = np.maximum.reduce(each)
    return found


def end_without_flips(metric: Metric, clusters: FlipCounts, confidence: float) -> float:
    """Return the upper end for a value of 0, as a share of the largest value."""
    sums, times = _distinct(metric, clusters)
    nothing = np.zeros(len(sums))
    return float(
        statistics.upper_end(nothing, sums[:, 2], sums[:, 3], times, confidence=confidence)
    )


def _reach(metric: Metric, clusters: FlipCounts) -> float:
    """Return the largest possible value, which is the same for all clusters of a comparison."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A metric of one group, with its interval at the comparison's confidence.

    >>> Estimate(value=0.02, low=0.015, high=0.026, n=10_000)
    Estimate(value=0.02, low=0.015, high=0.026, n=10000)
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def is_defined(self) -> bool:
        """False if there are no samples, or if the inputs lack what the metric needs."""
        return not math.isnan(self.value)

    def as_json(self) -> dict[str, float | int | None]:
        """Return the numbers; undefined and infinite ones are None, because JSON has neither."""
        return {
            "value": finite_or_none(float(self.value)),
            "low": finite_or_none(float(self.low)),
            "high": finite_or_none(float(self.high)),
            "n": self.n,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The counts of one set of samples, and of its clusters if rows are clustered."""

    counts: FlipCounts
    clusters: FlipCounts | None = None
    replicates: int = REPLICATES
    _designs: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False)

    def interval(
        self, metric: Metric, confidence: float, *, scale: float = 1.0
    ) -> tuple[float, float]:
        """Return the interval of a metric; with `scale`, as if n were that many times larger."""
        low, high = self.interval_array(metric, np.asarray(confidence), scale=scale)
        return float(low), float(high)

    def interval_array(
        self, metric: Metric, confidence: FloatArray, *, scale: float = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Return the intervals of a metric at several confidences."""
        counts = self.counts if scale == 1.0 else self.counts.scaled(scale)
        if self.clusters is None or not metric.needs <= self.counts.layout.available:
            return intervals(metric, counts, confidence)
        if has_cluster_interval(metric):
            independent = np.broadcast_arrays(*intervals(metric, counts, confidence), confidence)
            return widened(
                metric, (independent[0], independent[1]), [self.clusters], confidence, scale=scale
            )
        effect, degrees = self.design(metric)
        # More clusters estimate the variance between them better.
        return intervals(metric, counts, confidence, effect=effect, degrees=degrees * scale)

    def p_value(self, metric: Metric, limit: float, side: Literal["above", "below"]) -> float:
        """Return the alpha at which the (1 - alpha) interval touches a limit."""
        return float(p_values(metric, [self], limit, side)[0])

    def end_at_zero(self, metric: Metric, confidence: float) -> tuple[float, float]:
        """Return the upper end for a rate or mean of 0 on these samples, and the largest value.

        No value on these samples has a smaller upper end. By symmetry, none has a larger lower end
        than the largest value minus this end. nan for other metrics.
        """
        end, most = metric.kind.end_at_zero(self.counts, confidence)
        if self.clusters is not None and not math.isnan(end):
            end = max(end, most * end_without_flips(metric, self.clusters, confidence))
        return end, most

    def estimate(self, metric: Metric, confidence: float) -> Estimate:
        """Return the metric with its interval."""
        low, high = self.interval(metric, confidence)
        estimate = _estimate(metric, self.counts, low, high)
        if self.clusters is not None and isinstance(metric.kind, PValueKind):
            # The test assumes independent rows, which clustered rows are not.
            return replace(estimate, value=math.nan)
        return estimate

    def design(self, metric: Metric) -> tuple[float, float]:
        """Return the design effect of clusters on the variance, and its degrees of freedom."""
        if metric.name not in self._designs:
            self._designs[metric.name] = self._measure_design(metric)
        return self._designs[metric.name]

    def _measure_design(self, metric: Metric) -> tuple[float, float]:
        clusters = self.clusters
        if clusters is None or len(clusters) < 2:
            # One cluster is one observation: the variance between clusters is unknown.
            return math.inf, 1.0
        layout, kind = clusters.layout, metric.kind
        drawn = statistics.cluster_replicates(
            clusters.values, replicates=self.replicates, seed=SEED
        )
        rows = clusters.rows
        effect = statistics.design_effect(
            kind.scale(kind.value(FlipCounts(layout, drawn))),
            kind.variance(self.counts),
            len(clusters),
            largest=float((rows**2).sum() / rows.sum()),
        )
        sums, weights = statistics.leave_one_out(clusters.values)
        without = kind.scale(kind.value(FlipCounts(layout, sums)))
        degrees = statistics.effective_degrees(without, weights)
        return float(effect), float(degrees)


def estimate_groups(
    metric: Metric, samples: Sequence[GroupCounts], confidence: float
) -> list[Estimate]:
    """Return the estimates of a metric for many groups at once."""
    if not samples:
        return []
    clusters = [sample.clusters for sample in samples if sample.clusters is not None]
    layout = samples[0].counts.layout
    known = metric.needs <= layout.available
    if clusters and not (known and has_cluster_interval(metric)):
        return [sample.estimate(metric, confidence) for sample in samples]
    counts = FlipCounts(layout, np.stack([sample.counts.values for sample in samples]))
    low, high = intervals(metric, counts, confidence)
    if clusters:
        low, high = widened(metric, (low, high), clusters, confidence)
    values, sizes = metric.value(counts), _size(metric, counts)
    return [
        Estimate(value=float(v), low=float(a), high=float(b), n=int(n))
        for v, a, b, n in zip(values, low, high, sizes, strict=True)
    ]


def p_values(
    metric: Metric, samples: Sequence[GroupCounts], limit: float, side: Literal["above", "below"]
) -> FloatArray:
    """Return per sample the alpha at which the (1 - alpha) interval touches a limit."""
    clusters = [sample.clusters for sample in samples if sample.clusters is not None]
    if not samples:
        return np.zeros(0)
    if clusters and not has_cluster_interval(metric):
        each = [
            statistics.p_value_by_inversion(
                lambda confidence, sample=sample: sample.interval_array(metric, confidence),  # type: ignore[misc]
                limit=limit,
                side=side,
            )
            for sample in samples
        ]
        return np.array(each, dtype=np.float64)
    counts = FlipCounts(
        samples[0].counts.layout, np.stack([sample.counts.values for sample in samples])
    )
    independent = statistics.p_value_by_inversion(
        lambda confidence: intervals(metric, counts, confidence), limit=limit, side=side
    )
    if not clusters:
        return np.asarray(independent, dtype=np.float64)
    # Clusters only widen an interval, so the p value is the larger of the two.
    return np.maximum(independent, p_values_beyond(metric, clusters, limit, side))


def _estimate(metric: Metric, counts: FlipCounts, low: float, high: float) -> Estimate:
    n = int(_size(metric, counts))
    return Estimate(value=float(metric.value(counts)), low=low, high=high, n=n)


def _size(metric: Metric, counts: FlipCounts) -> FloatArray:
    if not metric.needs <= counts.layout.available:
        return np.zeros(counts.values.shape[:-1])
    return metric.kind.size(counts)


def intervals(
    metric: Metric,
    counts: FlipCounts,
    confidence: float | FloatArray,
    *,
    effect: float = 1.0,
    degrees: float = math.inf,
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of every group, by the method of the metric's kind."""
    nothing = np.full(counts.values.shape[:-1], np.nan)
    if not metric.needs <= counts.layout.available or math.isinf(effect):
        return nothing, nothing
    design = Design(effect=effect, degrees=degrees)
    found = metric.kind.interval(counts, confidence=confidence, design=design)
    return (nothing, nothing) if found is None else found
