"""Kinds of metric: how a metric and its uncertainty are computed from counts.

A kind that leaves out an abstract method cannot be instantiated. The metrics themselves are rows of
`metrics.py`; intervals over clusters are computed in `estimates.py` from what a kind says here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import FlipCounts, FloatArray, Side

Count = Callable[[FlipCounts], FloatArray]
Interval = tuple[FloatArray, FloatArray]
NO_END = (math.nan, math.nan)
Limit = Literal["above", "below"]


def divide_or_nan(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide; anything divided by 0 is undefined, which is nan."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    out = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How rows were drawn: the design effect of clusters and its degrees of freedom."""

    effect: float = 1.0
    degrees: float = math.inf

    @property
    def arguments(self) -> dict[str, Any]:
        """The design as keyword arguments for the functions in `statistics`."""
        return {"design_effect": self.effect, "degrees": self.degrees}


class MetricKind(ABC):
    """The base class of metric kinds: value, size, interval and variance from counts."""

    @property
    def has_largest_value(self) -> bool:
        """Whether values are bounded, so that the interval has an upper end."""
        return True

    @abstractmethod
    def value(self, counts: FlipCounts) -> FloatArray:
        """The metric of every group."""

    @abstractmethod
    def size(self, counts: FlipCounts) -> FloatArray:
        """The number of samples that the value rests on."""

    @abstractmethod
    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval | None:
        """The interval of every group; None if metrics of this kind have none."""

    @abstractmethod
    def variance(self, counts: FlipCounts) -> FloatArray:
        """The sampling variance of `scale(value)` if rows were independent; nan if undefined."""

    @abstractmethod
    def scale(self, values: FloatArray) -> FloatArray:
        """Values on the scale on which they are nearly normal: unchanged, or their logarithm."""

    @abstractmethod
    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        """The upper end for a value of 0, and the largest value; nan if neither is useful."""


class ClusterRatioKind(MetricKind):
    """A ratio of two sums over rows, and so of two sums over clusters.

    The interval over clusters is that of a share between 0 and 1, and of its opposite.
    """

    def reach(self, counts: FlipCounts) -> FloatArray:
        """The largest possible value of each group."""
        return np.ones(counts.rows.shape)

    @property
    def is_absolute(self) -> bool:
        """Whether the upper end is that of the share or of its opposite, the larger of the two."""
        return False

    @abstractmethod
    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        """Per cluster: numerator, numerator of the opposite, denominator, and rows.

        `times` is how often each cluster occurs: once if it is None.
        """

    @abstractmethod
    def bound(self, limit: float, side: Limit, reach: float) -> float:
        """A limit of the metric as the bound of the share, or of its opposite if above."""

    @abstractmethod
    def ends(self, share: FloatArray, opposite: FloatArray, reach: float) -> Interval:
        """The upper and the lower end of the metric from the upper ends of share and opposite."""


class ShareKind(ClusterRatioKind):
    """A metric between 0 and its largest value: divided by it, a share; the opposite is 1 - share.

    Values are nearly normal as they are.
    """

    def scale(self, values: FloatArray) -> FloatArray:
        return values

    def bound(self, limit: float, side: Limit, reach: float) -> float:
        share = limit / reach
        return 1.0 - share if side == "above" else share

    def ends(self, share: FloatArray, opposite: FloatArray, reach: float) -> Interval:
        return reach * share, reach * (1.0 - opposite)


class QuotientKind(ClusterRatioKind):
    """A quotient a / b without an upper bound: the share is a / (a + b), its opposite b / (a + b).

    Logarithms of the values are nearly normal.
    """

    def scale(self, values: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            return np.asarray(np.log(values))

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        return NO_END

    def bound(self, limit: float, side: Limit, reach: float) -> float:
        share = limit / (1.0 + limit)
        return 1.0 - share if side == "above" else share

    def ends(self, share: FloatArray, opposite: FloatArray, reach: float) -> Interval:
        with np.errstate(all="ignore"):
            return share / (1.0 - share), (1.0 - opposite) / opposite


@dataclass(frozen=True, slots=True)
class RateKind(ShareKind):
    """`part` of `whole`, each sample counting 0 or 1."""

    part: Count
    whole: Count

    def value(self, counts: FlipCounts) -> FloatArray:
        return divide_or_nan(self.part(counts), self.whole(counts))

    def size(self, counts: FlipCounts) -> FloatArray:
        return self.whole(counts)

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        return statistics.wilson(
            self.part(counts), self.whole(counts), confidence=confidence, **design.arguments
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        return statistics.proportion_variance(self.part(counts), self.whole(counts))

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        return float(statistics.wilson(0.0, self.whole(counts), confidence=confidence)[1]), 1.0

    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        part, whole = self.part(clusters), self.whole(clusters)
        return np.stack([part, whole - part, whole, whole], axis=-1)


@dataclass(frozen=True, slots=True)
class GainKind(ClusterRatioKind):
    """A difference of two rates on the same samples: positive less negative flips."""

    def value(self, counts: FlipCounts) -> FloatArray:
        return divide_or_nan(counts["positive_flip"] - counts["negative_flip"], counts.labelled)

    def size(self, counts: FlipCounts) -> FloatArray:
        return counts.labelled

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        return statistics.paired_difference(
            counts["positive_flip"],
            counts["negative_flip"],
            counts.labelled,
            confidence=confidence,
            **design.arguments,
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        return statistics.paired_difference_variance(
            counts["positive_flip"], counts["negative_flip"], counts.labelled
        )

    def scale(self, values: FloatArray) -> FloatArray:
        return values

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        # A gain of 0 may come from many flips in both directions.
        return NO_END

    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        gain, rows = clusters["positive_flip"] - clusters["negative_flip"], clusters.labelled
        return np.stack([gain, -gain, rows, rows], axis=-1)

    def bound(self, limit: float, side: Limit, reach: float) -> float:
        return -limit if side == "above" else limit

    def ends(self, share: FloatArray, opposite: FloatArray, reach: float) -> Interval:
        return share, -opposite


@dataclass(frozen=True, slots=True)
class RelativeRateKind(QuotientKind):
    """NFR divided by the NFR that independent models with the same error rates would have."""

    def value(self, counts: FlipCounts) -> FloatArray:
        new_wrong = counts.labelled - counts.new_right
        return divide_or_nan(
            counts["negative_flip"] * counts.labelled, counts.old_right * new_wrong
        )

    def size(self, counts: FlipCounts) -> FloatArray:
        return counts.labelled

    def _parts(self, counts: FlipCounts) -> tuple[FloatArray, ...]:
        new_wrong = counts.labelled - counts.new_right
        return counts["negative_flip"], counts.old_right, new_wrong, counts.labelled

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        return statistics.relative_negative_flip_rate(
            *self._parts(counts), confidence=confidence, **design.arguments
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        return statistics.log_relative_negative_flip_rate_variance(*self._parts(counts))

    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        rows = clusters.labelled
        right, wrong = clusters.old_right, rows - clusters.new_right
        often = np.ones(rows.shape) if times is None else times
        n, all_right, all_wrong = ((often * x).sum() for x in (rows, right, wrong))
        n = max(n, 1.0)
        first = clusters["negative_flip"]
        # The linear change of all_right * all_wrong / n with each cluster.
        second = (all_right * wrong + all_wrong * right) / n - all_right * all_wrong / n**2 * rows
        return np.stack([first, second, first + second, rows], axis=-1)


@dataclass(frozen=True, slots=True)
class ControlRatioKind(QuotientKind):
    """New's rate divided by the mean rate of the controls; infinite if only the latter is 0."""

    flips: Literal["churn", "negative_flip"]

    def value(self, counts: FlipCounts) -> FloatArray:
        joint = counts.joint(self.flips)
        controls = joint.shape[-1] - 1
        flagged = (joint * np.arange(controls + 1)).sum(axis=(-2, -1)) / controls
        new = joint[..., 1, :].sum(axis=-1)
        return np.where((flagged == 0) & (new > 0), np.inf, divide_or_nan(new, flagged))

    def size(self, counts: FlipCounts) -> FloatArray:
        return np.asarray(counts.joint(self.flips).sum(axis=(-2, -1)))

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        return statistics.paired_ratio(
            counts.joint(self.flips),
            controls=counts.of_controls(self.flips),
            confidence=confidence,
            **design.arguments,
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        return statistics.log_paired_ratio_variance(counts.joint(self.flips))

    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        joint = clusters.joint(self.flips)
        first = joint[..., 1, :].sum(axis=-1)
        second = (joint * np.linspace(0.0, 1.0, joint.shape[-1])).sum(axis=(-2, -1))
        rows = joint.sum(axis=(-2, -1))
        return np.stack([first, second, first + second, rows], axis=-1)


@dataclass(frozen=True, slots=True)
class MeanKind(ShareKind):
    """A mean of one non-negative number per sample, kept as a sum and a sum of squares.

    `most` gives the largest number that a sample can have; None if there is no largest one.
    `guard_low` is False where less is better: there the lower end can only make a rule fail.
    `whole` counts the samples that have such a number; None if all have one.
    """

    statistic: str
    most: Count | None
    guard_low: bool
    whole: Count | None = None

    def value(self, counts: FlipCounts) -> FloatArray:
        return divide_or_nan(counts[self.statistic], self.size(counts))

    def size(self, counts: FlipCounts) -> FloatArray:
        return counts.rows if self.whole is None else self.whole(counts)

    @property
    def has_largest_value(self) -> bool:
        return self.most is not None

    def reach(self, counts: FlipCounts) -> FloatArray:
        return np.full(counts.rows.shape, np.inf) if self.most is None else self.most(counts)

    def _sums(self, counts: FlipCounts) -> tuple[FloatArray, FloatArray, FloatArray]:
        return counts[self.statistic], counts[f"{self.statistic}_squared"], self.size(counts)

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        return statistics.bounded_mean(
            *self._sums(counts),
            most=self.reach(counts),
            guard_low=self.guard_low,
            confidence=confidence,
            **design.arguments,
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        return statistics.mean_variance(*self._sums(counts))

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        if self.most is None:
            return NO_END
        most = float(self.reach(counts))
        ends = statistics.bounded_mean(
            0.0, 0.0, self.size(counts), most=most, confidence=confidence
        )
        return float(ends[1]), most

    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        # A mean divided by its largest possible value counts as a rate.
        reach = float(np.nanmax(self.reach(clusters)))
        part, whole = clusters[self.statistic] / reach, self.size(clusters)
        return np.stack([part, whole - part, whole, whole], axis=-1)


@dataclass(frozen=True, slots=True)
class CalibrationErrorKind(ClusterRatioKind):
    """Mean distance between confidence and accuracy over bins of confidence."""

    side: Side

    def _gaps(self, counts: FlipCounts) -> FloatArray:
        return counts.bins(self.side, "right") - counts.bins(self.side, "confidence")

    def _gap(self, counts: FlipCounts) -> FloatArray:
        return np.asarray(np.abs(self._gaps(counts)).sum(axis=-1))

    def value(self, counts: FlipCounts) -> FloatArray:
        return divide_or_nan(self._gap(counts), self.size(counts))

    def size(self, counts: FlipCounts) -> FloatArray:
        return np.asarray(counts.bins(self.side, "n").sum(axis=-1))

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        parts = ("n", "right", "confidence", "gap_squared")
        return statistics.calibration_error(
            *(counts.bins(self.side, part) for part in parts),
            confidence=confidence,
            **design.arguments,
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        # Gaps enter with the sign of their bin, so the variance is that of a mean of gaps.
        squares = counts.bins(self.side, "gap_squared").sum(axis=-1)
        return statistics.mean_variance(self._gap(counts), squares, self.size(counts))

    def scale(self, values: FloatArray) -> FloatArray:
        return values

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        return NO_END

    def cluster_sums(self, clusters: FlipCounts, times: FloatArray | None) -> FloatArray:
        gaps, rows = self._gaps(clusters), np.asarray(clusters.bins(self.side, "n").sum(axis=-1))
        often = np.ones(rows.shape) if times is None else times
        # Gaps enter with the sign of their bin, so that their sum is the metric.
        gap = gaps @ np.sign(often @ gaps)
        return np.stack([gap, -gap, rows, rows], axis=-1)

    def bound(self, limit: float, side: Limit, reach: float) -> float:
        return -limit if side == "above" else limit

    def ends(self, share: FloatArray, opposite: FloatArray, reach: float) -> Interval:
        # A sum of gaps near 0 may have the other sign, so its opposite bounds the error too.
        return np.maximum(share, opposite), np.maximum(-opposite, 0.0)

    @property
    def is_absolute(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class PValueKind(MetricKind):
    """A p value: it has no interval, and presumes that rows are independent."""

    p_value: Count

    def value(self, counts: FlipCounts) -> FloatArray:
        p = self.p_value(counts)
        return np.where(counts.labelled > 0, p, np.nan)

    def size(self, counts: FlipCounts) -> FloatArray:
        return counts.labelled

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> None:
        return None

    def variance(self, counts: FlipCounts) -> FloatArray:
        return np.full(counts.values.shape[:-1], np.nan)

    def scale(self, values: FloatArray) -> FloatArray:
        return values

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        return NO_END
