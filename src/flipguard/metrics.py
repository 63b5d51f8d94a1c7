"""The table of metrics. Each row is data; its value is a pure function of `FlipCounts`.

Comparison, intervals, command line, JSON, docs and tests all read this table. How a kind of metric
is computed belongs to `flipguard.metric_kinds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from flipguard.counts import FlipCounts, FloatArray
from flipguard.metric_kinds import (
    CalibrationErrorKind,
    ControlRatioKind,
    GainKind,
    MeanKind,
    MetricKind,
    PValueKind,
    RateKind,
    RelativeRateKind,
    divide_or_nan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its name, what it measures, what it needs, and how it is computed.

    `range` is the smallest and the largest possible value.
    """

    name: str
    sentence: str
    formula: str
    needs: frozenset[str]
    better: Literal["lower", "higher", "neither"]
    kind: MetricKind
    range: tuple[float, float] = (0.0, 1.0)
    percent: bool = True

    def value(self, counts: FlipCounts) -> FloatArray:
        """Return the metric of every group; nan if undefined or if the inputs do not allow it."""
        if not self.needs <= counts.layout.available:
            return np.full(counts.values.shape[:-1], np.nan)
        return self.kind.value(counts)


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


def _needs(*what: str) -> frozenset[str]:
    return frozenset(what)


def _wrong_new(counts: FlipCounts) -> FloatArray:
    return counts.labelled - counts.new_right


def _wrong_old(counts: FlipCounts) -> FloatArray:
    return counts.labelled - counts.old_right


def _half_the_classes(counts: FlipCounts) -> FloatArray:
    """Return the largest possible change: one class falls from 1 to 0, and all others rise to 1."""
    return divide_or_nan(counts["classes"], 2.0 * counts.rows)


def _one(counts: FlipCounts) -> FloatArray:
    return np.ones(counts.rows.shape)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="error_rate_old",
            sentence="How often the old model is wrong.",
            formula="wrong_old / n",
            needs=_needs("target"),
            better="lower",
            kind=RateKind(_wrong_old, lambda c: c.labelled),
        ),
        Metric(
            name="error_rate_new",
            sentence="How often the new model is wrong.",
            formula="wrong_new / n",
            needs=_needs("target"),
            better="lower",
            kind=RateKind(_wrong_new, lambda c: c.labelled),
        ),
        Metric(
            name="accuracy_gain",
            sentence="The new model's accuracy minus the old model's.",
            formula="error_rate_old - error_rate_new",
            needs=_needs("target"),
            better="higher",
            kind=GainKind(),
            range=(-1.0, 1.0),
        ),
        Metric(
            name="negative_flip_rate",
            sentence="How often the old model is right and the new one wrong.",
            formula="negative_flips / n",
            needs=_needs("target"),
            better="lower",
            kind=RateKind(lambda c: c["negative_flip"], lambda c: c.labelled),
        ),
        Metric(
            name="positive_flip_rate",
            sentence="How often the old model is wrong and the new one right.",
            formula="positive_flips / n",
            needs=_needs("target"),
            better="higher",
            kind=RateKind(lambda c: c["positive_flip"], lambda c: c.labelled),
        ),
        Metric(
            name="relative_negative_flip_rate",
            sentence="Negative flips divided by those of independent models as accurate as these.",
            formula="negative_flip_rate / ((1 - error_rate_old) * error_rate_new)",
            needs=_needs("target"),
            better="lower",
            kind=RelativeRateKind(),
            range=(0.0, math.inf),
        ),
        Metric(
            name="negative_flip_impact",
            sentence="The share of the new model's errors that the old model does not make.",
            formula="negative_flips / wrong_new",
            needs=_needs("target"),
            better="lower",
            kind=RateKind(lambda c: c["negative_flip"], _wrong_new),
        ),
        Metric(
            name="churn",
            sentence="How often the two models predict different classes, right or wrong.",
            formula="different_labels / n",
            needs=_needs(),
            better="lower",
            kind=RateKind(lambda c: c.different, lambda c: c.rows),
        ),
        Metric(
            name="churn_correct",
            sentence="Churn among the samples that the old model gets right.",
            formula="negative_flips / right_old",
            needs=_needs("target"),
            better="lower",
            kind=RateKind(lambda c: c["negative_flip"], lambda c: c.old_right),
        ),
        Metric(
            name="churn_incorrect",
            sentence="Churn among the samples that the old model gets wrong.",
            formula="(positive_flips + wrong_different) / wrong_old",
            needs=_needs("target"),
            better="neither",
            kind=RateKind(lambda c: c["positive_flip"] + c["wrong_different"], _wrong_old),
        ),
        Metric(
            name="wrong_to_wrong",
            sentence="How often both models are wrong and predict different classes.",
            formula="wrong_different / n",
            needs=_needs("target"),
            better="lower",
            kind=RateKind(lambda c: c["wrong_different"], lambda c: c.labelled),
        ),
        Metric(
            name="surrogate_churn",
            sentence="How far scores move, each divided by the sample's largest score.",
            formula="mean(sum(|(p_old / max p_old)^a - (p_new / max p_new)^a|)) / 2",
            needs=_needs("old scores", "new scores"),
            better="lower",
            kind=MeanKind("surrogate", _half_the_classes, guard_low=False),
            range=(0.0, math.inf),
        ),
        Metric(
            name="backward_trust_compatibility",
            sentence="The share of the old model's right answers that the new model keeps.",
            formula="both_right / right_old",
            needs=_needs("target"),
            better="higher",
            kind=RateKind(lambda c: c["both_right"], lambda c: c.old_right),
        ),
        Metric(
            name="backward_error_compatibility",
            sentence="The share of the new model's errors that the old model also makes.",
            formula="both_wrong / wrong_new",
            needs=_needs("target"),
            better="higher",
            kind=RateKind(lambda c: c["wrong_same"] + c["wrong_different"], _wrong_new),
        ),
        Metric(
            name="expected_calibration_error_old",
            sentence="How far the old model's confidence is from its accuracy.",
            formula="sum(|right - confidence| over 15 equal-width bins of the top probability) / n",
            needs=_needs("target", "old scores"),
            better="lower",
            kind=CalibrationErrorKind("old"),
        ),
        Metric(
            name="expected_calibration_error_new",
            sentence="How far the new model's confidence is from its accuracy.",
            formula="sum(|right - confidence| over 15 equal-width bins of the top probability) / n",
            needs=_needs("target", "new scores"),
            better="lower",
            kind=CalibrationErrorKind("new"),
        ),
        Metric(
            name="margin_old",
            sentence="The old model's highest probability minus its second highest.",
            formula="mean(p_old(1st) - p_old(2nd))",
            needs=_needs("old scores"),
            better="neither",
            kind=MeanKind("old_margin", _one, guard_low=True),
        ),
        Metric(
            name="margin_new",
            sentence="The new model's highest probability minus its second highest.",
            formula="mean(p_new(1st) - p_new(2nd))",
            needs=_needs("new scores"),
            better="neither",
            kind=MeanKind("new_margin", _one, guard_low=True),
        ),
        Metric(
            name="logit_displacement",
            sentence="How far the logits of a sample move.",
            formula="mean(||logits_new - logits_old||_2)",
            needs=_needs("logits"),
            better="lower",
            kind=MeanKind("distance", None, guard_low=False),
            range=(0.0, math.inf),
            percent=False,
        ),
        Metric(
            name="mcnemar_p",
            sentence="Probability of flips at least this uneven if both kinds were equally likely.",
            formula="two-sided exact binomial test of negative against positive flips",
            needs=_needs("target"),
            better="neither",
            kind=PValueKind(lambda c: mcnemar(c["negative_flip"], c["positive_flip"])),
            percent=False,
        ),
        Metric(
            name="churn_ratio",
            sentence="The new model's churn divided by that of the untreated control.",
            formula="churn(old, new) / churn(old, control)",
            needs=_needs("control"),
            better="lower",
            kind=ControlRatioKind("churn"),
            range=(0.0, math.inf),
            percent=False,
        ),
        Metric(
            name="negative_flip_ratio",
            sentence="The new model's negative flips divided by those of the untreated control.",
            formula="negative_flip_rate(old, new) / negative_flip_rate(old, control)",
            needs=_needs("target", "control"),
            better="lower",
            kind=ControlRatioKind("negative_flip"),
            range=(0.0, math.inf),
            percent=False,
        ),
    )
}
