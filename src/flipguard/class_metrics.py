"""Metrics of classes: precision, recall and F1 of each, and the gain of the mean F1 over all.

They need counts that exist only where samples are grouped by target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flipguard import statistics
from flipguard.counts import SIDES, FlipCounts, FloatArray, Side
from flipguard.metric import Metric, inputs
from flipguard.metric_kinds import (
    NO_END,
    Design,
    Interval,
    Limit,
    MetricKind,
    RateKind,
    divide_or_nan,
)


@dataclass(frozen=True, slots=True)
class F1Kind(RateKind):
    """F1 from the Jaccard index J = part / whole, a rate of samples: F1 = 2 J / (1 + J)."""

    def value(self, counts: FlipCounts) -> FloatArray:
        return _f1(divide_or_nan(self.part(counts), self.whole(counts)))

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        # Explicitly: without arguments it does not work in a dataclass with slots.
        low, high = RateKind.interval(self, counts, confidence=confidence, design=design)
        return _f1(low), _f1(high)

    def variance(self, counts: FlipCounts) -> FloatArray:
        jaccard = divide_or_nan(self.part(counts), self.whole(counts))
        slope = 2.0 / (1.0 + jaccard) ** 2
        return slope**2 * RateKind.variance(self, counts)

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        end, most = RateKind.end_at_zero(self, counts, confidence)
        return 2.0 * end / (1.0 + end), most

    def bound(self, limit: float, side: Limit, reach: float) -> float:
        return RateKind.bound(self, limit / (2.0 - limit), side, reach)

    def ends(self, share: FloatArray, opposite: FloatArray, reach: float) -> Interval:
        high, low = RateKind.ends(self, share, opposite, reach)
        return _f1(high), _f1(low)


def _f1(jaccard: FloatArray) -> FloatArray:
    return 2.0 * jaccard / (1.0 + jaccard)


@dataclass(frozen=True, slots=True)
class ClassGainKind(MetricKind):
    """The gain of the mean F1: a mean over samples of their linearised shares in it.

    The interval allows for flips that the samples do not show, in any class.
    """

    def value(self, counts: FlipCounts) -> FloatArray:
        return divide_or_nan(counts["class_gain"], counts.labelled)

    def size(self, counts: FlipCounts) -> FloatArray:
        return counts.labelled

    def interval(
        self, counts: FlipCounts, *, confidence: float | FloatArray, design: Design
    ) -> Interval:
        return statistics.padded_mean(
            counts["class_gain"],
            counts["class_gain_squared"],
            counts["class_gain_of_flip_squared"],
            counts.labelled,
            confidence=confidence,
            **design.arguments,
        )

    def variance(self, counts: FlipCounts) -> FloatArray:
        return statistics.mean_variance(
            counts["class_gain"], counts["class_gain_squared"], counts.labelled
        )

    def scale(self, values: FloatArray) -> FloatArray:
        return values

    def end_at_zero(self, counts: FlipCounts, confidence: float) -> tuple[float, float]:
        return NO_END


def _right(counts: FlipCounts, side: Side) -> FloatArray:
    return counts.old_right if side == "old" else counts.new_right


def _false(counts: FlipCounts, side: Side) -> FloatArray:
    return counts["false_both"] + counts[f"false_{side}"]


def _of_side(side: Side) -> Iterator[Metric]:
    needs = inputs("target", "label", "class")
    yield Metric(
        name=f"precision_{side}",
        sentence=f"How often the {side} model is right when it predicts this class.",
        formula=f"right_{side} / predicted_as_class_{side}",
        needs=needs,
        better="higher",
        kind=RateKind(lambda c: _right(c, side), lambda c: _right(c, side) + _false(c, side)),
        use="To limit false alarms of one class: 1 minus the precision is their share of all "
        "alarms.",
        paper="none",
        pitfalls="Measured per class, so only in groups by `target`. Undefined if the model never "
        "predicts the class.",
    )
    yield Metric(
        name=f"recall_{side}",
        sentence=f"How often the {side} model finds a sample of this class.",
        formula=f"right_{side} / samples_of_class",
        needs=needs,
        better="higher",
        kind=RateKind(lambda c: _right(c, side), lambda c: c.labelled),
        use='To protect one class: `metric = "recall_new"`, `by = "target"`, `only = ["fraud"]`, '
        "`min = 0.9`.",
        paper="none",
        pitfalls="Measured per class, so only in groups by `target`. It is 1 minus the error rate "
        "of the group.",
    )
    yield Metric(
        name=f"f1_{side}",
        sentence=f"The harmonic mean of precision and recall of this class ({side} model).",
        formula="2 * precision * recall / (precision + recall)",
        needs=needs,
        better="higher",
        kind=F1Kind(lambda c: _right(c, side), lambda c: c.labelled + _false(c, side)),
        use="One number for misses and false alarms of a class.",
        paper="none",
        pitfalls="Measured per class, so only in groups by `target`. It is 0 if the model is never "
        "right on the class. `n` counts the samples that are of the class or predicted as it.",
    )


CLASS_METRICS = (
    *(metric for side in SIDES for metric in _of_side(side)),
    Metric(
        name="macro_f1_gain",
        sentence="The new model's F1 minus the old model's, as a mean over classes.",
        formula="mean over classes(f1_new - f1_old)",
        needs=inputs("target", "label", "classes"),
        better="higher",
        kind=ClassGainKind(),
        range=(-1.0, 1.0),
        use="For non-inferiority rules if all classes matter equally, however rare they are.",
        paper="none",
        pitfalls="Counted if samples are grouped by `target`, or if a rule of the gate asks for "
        "it. The mean is over the classes that occur among the targets. A class with a few "
        "samples weighs as much as any other, so the interval is wide, and it does not allow for "
        "classes that these samples lack.",
    ),
)
