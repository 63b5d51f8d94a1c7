"""One row of the table of metrics, and the counts that several rows use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flipguard.counts import MOST_DIVERGENCE, UNLABELLED, FlipCounts, FloatArray, Side
from flipguard.metric_kinds import MetricKind, divide_or_nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its name, what it measures, what it needs, and how it is computed.

    `range` is the smallest and the largest possible value. `use` (when to use it), `paper`
    and `pitfalls` are for the docs.
    """

    name: str
    sentence: str
    formula: str
    needs: frozenset[str]
    better: Literal["lower", "higher", "neither"]
    kind: MetricKind
    use: str
    paper: str
    pitfalls: str
    range: tuple[float, float] = (0.0, 1.0)
    percent: bool = True

    def value(self, counts: FlipCounts) -> FloatArray:
        """Return the metric of every group; nan if undefined or if the inputs do not allow it."""
        if not self.needs <= counts.layout.available:
            return np.full(counts.values.shape[:-1], np.nan)
        return self.kind.value(counts)


def inputs(*what: str) -> frozenset[str]:
    """Return the inputs that a metric needs."""
    return frozenset(what)


def wrong_new(counts: FlipCounts) -> FloatArray:
    """Return the number of samples that the new model gets wrong."""
    return counts.labelled - counts.new_right


def wrong_old(counts: FlipCounts) -> FloatArray:
    """Return the number of samples that the old model gets wrong."""
    return counts.labelled - counts.old_right


def compared_rows(counts: FlipCounts) -> FloatArray:
    """Return the number of samples on which the labels of old and new were compared."""
    return np.asarray(counts.answers.sum(axis=-1) + counts.columns(UNLABELLED).sum(axis=-1))


def half_the_classes(counts: FlipCounts) -> FloatArray:
    """Return the largest possible change: one class falls from 1 to 0, and all others rise to 1."""
    return divide_or_nan(counts["classes"], 2.0 * counts.rows)


def ones(counts: FlipCounts) -> FloatArray:
    """Return 1 for every group."""
    return np.ones(counts.rows.shape)


def most_divergence(counts: FlipCounts) -> FloatArray:
    """Return the largest divergence of one sample, for every group."""
    return np.full(counts.rows.shape, MOST_DIVERGENCE)


def largest_entropy(counts: FlipCounts, side: Side) -> FloatArray:
    """Return the entropy of equally likely classes."""
    return np.asarray(np.log(divide_or_nan(counts[f"{side}_classes"], counts.rows)))
