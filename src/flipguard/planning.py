"""How many further samples decide a rule, if the rates stay as they are.

Further rows, or whole clusters, are assumed to occur at the observed rates. A quantile of their
counts is added to the observed counts, and the interval of the sum is judged. The reasons in words
belong to `flipguard.inconclusive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flipguard import statistics
from flipguard.class_metrics import ClassGainKind
from flipguard.counts import (
    ANSWERS,
    CELLS,
    FALSE_LABELS,
    UNLABELLED,
    FlipCounts,
    FloatArray,
    StatisticsLayout,
    joint_name,
)
from flipguard.estimates import GroupCounts, has_cluster_interval, intervals, ratio_of, widened
from flipguard.metric import Metric
from flipguard.metric_kinds import CalibrationErrorKind, ControlRatioKind, MeanKind, RateKind

# The chances of a decision for which the number of samples is computed.
CHANCES = (0.5, 0.9)
# With two limits, both ends are computed at these distances, in standard errors.
LOOKED_AT = (0.3, 1.5)
Indices = NDArray[np.int64]
End = Literal["low", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An inconclusive judgement: its value, its limits, and the confidences of the intervals.

    `passing` is the plain confidence. `failing` is the corrected one: to fail, the whole interval
    at this confidence must lie beyond a limit.
    """

    sample: GroupCounts
    value: float
    lowest: float
    highest: float
    passing: float
    failing: float

    @property
    def ends(self) -> dict[End, tuple[float, float]]:
        """The ends of the interval that decide, each with its limit and its confidence."""
        if self.value > self.highest:
            return {"low": (self.highest, self.failing)}
        if self.value < self.lowest:
            return {"high": (self.lowest, self.failing)}
        limits: dict[End, float] = {"low": self.lowest, "high": self.highest}
        return {end: (at, self.passing) for end, at in limits.items() if np.isfinite(at)}


def samples_needed(
    metric: Metric, questions: Sequence[Question]
) -> list[tuple[int | None, int | None]]:
    """Return per question the further samples that decide it with a chance of 50 % and of 90 %.

    None if no number of samples decides it, for example if the value lies on a limit.
    """
    if not questions:
        return []
    plan = _Plan(metric, questions)
    asked = np.repeat(plan.solvable, len(CHANCES))
    chances = np.tile(CHANCES, len(plan.solvable))

    def decided(i: Indices, samples: FloatArray) -> NDArray[np.bool_]:
        return plan.decided(asked[i], samples, 1.0 - chances[i])

    found = np.full((len(questions), len(CHANCES)), np.nan)
    start = plan.guess(asked) * np.where(chances > 0.5, 2.5, 1.0)
    found[plan.solvable] = statistics.samples_to_decide(decided, start).reshape(-1, len(CHANCES))
    # A number that decides with 90 % decides with 50 % too, though chances jump with few counts.
    found[:, 1] = np.maximum(found[:, 0], found[:, 1])
    rows = [[None if np.isnan(x) else int(x) for x in row] for row in found]
    return [(even, most) for even, most in rows]


class _Plan:
    def __init__(self, metric: Metric, questions: Sequence[Question]) -> None:
        self.metric = metric
        self.questions = questions
        self.further = _further(metric, [question.sample for question in questions])
        self.limits: dict[End, FloatArray] = {
            "low": np.full(len(questions), np.nan),
            "high": np.full(len(questions), np.nan),
        }
        self.confidences = np.full(len(questions), np.nan)
        self.fails = np.array([not q.lowest <= q.value <= q.highest for q in questions])
        values = np.array([q.value for q in questions])
        for i, question in enumerate(questions):
            for end, (limit, confidence) in question.ends.items():
                self.limits[end][i], self.confidences[i] = limit, confidence
        self.distance = np.fmin(*(np.abs(values - limit) for limit in self.limits.values()))
        self.solvable = np.flatnonzero(self.distance > 0)

    def decided(self, i: Indices, samples: FloatArray, miss: FloatArray) -> NDArray[np.bool_]:
        """Return whether these questions are decided with a chance of at least 1 - `miss`."""
        low, high = ~np.isnan(self.limits["low"][i]), ~np.isnan(self.limits["high"][i])
        answer = np.zeros(len(i), dtype=bool)
        for end in self.limits:
            here = low & ~high if end == "low" else high & ~low
            answer[here] = self._holds(end, i[here], samples[here], miss[here])
        both = low & high
        if both.any():
            # With two limits, either end of the interval may lie outside.
            chances = [self._chance(end, i[both], samples[both]) for end in self.limits]
            answer[both] = sum(chances) - 1 >= 1 - miss[both]
        return answer

    def _chance(self, end: End, i: Indices, samples: FloatArray) -> FloatArray:
        """Return the chance that an end lies inside its limit, if it is linear in the value."""
        from scipy.special import ndtr

        sign = 1.0 if end == "low" else -1.0
        near, far = (
            sign * (self._end(end, i, samples, np.full(len(i), ndtr(-z))) - self.limits[end][i])
            for z in LOOKED_AT
        )
        with np.errstate(all="ignore"):
            z = LOOKED_AT[0] + (LOOKED_AT[1] - LOOKED_AT[0]) * near / (near - far)
        z = np.where(near > far, z, np.where(near >= 0, np.inf, -np.inf))
        return np.asarray(ndtr(z))

    def guess(self, i: Indices) -> FloatArray:
        """Return a first guess: the width of an interval falls with the square root of n."""
        nothing = np.zeros(len(i))
        sizes = np.array([float(q.sample.counts.rows) for q in self.questions])[i]
        values = np.array([q.value for q in self.questions])[i]
        reach = np.full(len(i), np.nan)
        for end, limits in self.limits.items():
            at = self._end(end, i, nothing, nothing + 0.5)
            reach = np.fmax(reach, np.where(np.isnan(limits[i]), np.nan, np.abs(at - values)))
        with np.errstate(all="ignore"):
            return np.asarray(sizes * ((reach / self.distance[i]) ** 2 - 1))

    def _holds(
        self, end: End, i: Indices, samples: FloatArray, miss: FloatArray
    ) -> NDArray[np.bool_]:
        found, limit, fails = self._end(end, i, samples, miss), self.limits[end][i], self.fails[i]
        with np.errstate(invalid="ignore"):
            if end == "low":
                return np.where(fails, found > limit, found >= limit)
            return np.where(fails, found < limit, found <= limit)

    def _end(self, end: End, i: Indices, samples: FloatArray, miss: FloatArray) -> FloatArray:
        """Return the end that further samples reach with a chance of at least 1 - `miss`."""
        if not len(i):
            return np.zeros(0)
        return self.further.end(end, i, samples, miss, self.confidences[i])


def _further(metric: Metric, samples: Sequence[GroupCounts]) -> _Further:
    if samples[0].clusters is not None and has_cluster_interval(metric):
        return _OfClusters(metric, samples)
    # Rows with scores do not fall into a few kinds that could be counted.
    if isinstance(metric.kind, MeanKind | CalibrationErrorKind | ClassGainKind):
        return _OfMeans(metric, samples)
    if "grades" in metric.needs:
        return _OfMissingAnswers(metric, samples)
    return _OfRows(metric, samples)


class _Further:
    """The ends of an interval after further samples are added."""

    def __init__(self, metric: Metric, samples: Sequence[GroupCounts]) -> None:
        self.metric = metric
        self.samples = samples
        self.layout = samples[0].counts.layout
        self.sizes = np.array([float(sample.counts.rows) for sample in samples])

    def end(
        self, end: End, i: Indices, further: FloatArray, miss: FloatArray, confidence: FloatArray
    ) -> FloatArray:
        """Return the end for samples `i` plus `further` rows, exceeded with a chance of `miss`."""
        raise NotImplementedError


class _OfRows(_Further):
    """The further samples are rows of the observed kinds."""

    def __init__(self, metric: Metric, samples: Sequence[GroupCounts]) -> None:
        super().__init__(metric, samples)
        names = _kinds(metric, self.layout)
        self.columns = [self.layout.columns[name] for name in names]
        units = np.zeros((len(names), len(self.layout.names)))
        units[np.arange(len(names)), self.columns] = 1.0
        self.units = FlipCounts(self.layout, units)
        self.values = np.stack([sample.counts.values for sample in samples]).astype(np.float64)
        self.times = self.values[:, self.columns]
        self.pulls = [_Pull(metric, self.units, times) for times in self.times]

    def end(
        self, end: End, i: Indices, further: FloatArray, miss: FloatArray, confidence: FloatArray
    ) -> FloatArray:
        share = self.times[i] / self.sizes[i, np.newaxis]
        added = further[:, np.newaxis] * share
        if isinstance(self.metric.kind, RateKind):
            added = added * self._binomial(self.metric.kind, end, added, miss)
        else:
            pulls = [self.pulls[j] for j in i]
            strength = _strength(end, miss, further, np.array([pull.skewness for pull in pulls]))
            towards = np.stack([pull.towards for pull in pulls])
            added = added * np.maximum(1 + strength[:, np.newaxis] * towards, 0.0)
        # Other counts, such as the flips of each control, grow in proportion.
        values = self.values[i] * (1 + further / self.sizes[i])[:, np.newaxis]
        values[:, self.columns] = self.times[i] + added
        ends = intervals(self.metric, FlipCounts(self.layout, values), confidence)
        return ends[end == "high"]

    def _binomial(
        self, kind: RateKind, end: End, added: FloatArray, miss: FloatArray
    ) -> FloatArray:
        """Return factors on the expected count of each kind that bring the part to its quantile."""
        part, whole = kind.part(self.units) > 0, kind.whole(self.units) > 0
        expected, total = added[:, part].sum(axis=1), added[:, whole].sum(axis=1)
        rate = np.where(total > 0, expected / np.where(total > 0, total, 1.0), 0.0)
        size = np.round(total)
        count = _binomial_count(end, miss, size, rate)
        with np.errstate(all="ignore"):
            inside = np.where(expected > 0, count / expected, 1.0)
            outside = np.where(total > expected, (size - count) / (total - expected), 1.0)
        return np.where(part, inside[:, np.newaxis], np.where(whole, outside[:, np.newaxis], 1.0))


class _OfMissingAnswers(_Further):
    """The further samples are rows that lack an answer for the reason of the metric, or do not."""

    def __init__(self, metric: Metric, samples: Sequence[GroupCounts]) -> None:
        super().__init__(metric, samples)
        assert isinstance(metric.kind, RateKind)
        each = FlipCounts(self.layout, np.eye(len(self.layout.names)))
        # The reason is counted next to the cells of flips, not as one of them.
        (self.column,) = np.flatnonzero(metric.kind.part(each))
        self.values = np.stack([sample.counts.values for sample in samples]).astype(np.float64)

    def end(
        self, end: End, i: Indices, further: FloatArray, miss: FloatArray, confidence: FloatArray
    ) -> FloatArray:
        seen, size = self.values[i, self.column], np.round(further)
        count = _binomial_count(end, miss, size, seen / self.sizes[i])
        values = self.values[i] * (1 + size / self.sizes[i])[:, np.newaxis]
        values[:, self.column] = seen + count
        return intervals(self.metric, FlipCounts(self.layout, values), confidence)[end == "high"]


class _OfClusters(_Further):
    """The further samples are whole clusters like the observed ones."""

    def __init__(self, metric: Metric, samples: Sequence[GroupCounts]) -> None:
        super().__init__(metric, samples)
        self.clusters = [s.clusters for s in samples if s.clusters is not None]
        self.pulls = [_Pull(metric, c, np.ones(len(c))) for c in self.clusters]

    def end(
        self, end: End, i: Indices, further: FloatArray, miss: FloatArray, confidence: FloatArray
    ) -> FloatArray:
        clusters = [self.clusters[j] for j in i]
        added = further / self.sizes[i]  # further copies of every cluster
        drawn = added * np.array([len(table) for table in clusters])
        pulls = [self.pulls[j] for j in i]
        strength = _strength(end, miss, drawn, np.array([pull.skewness for pull in pulls]))
        times = [
            1 + more * np.maximum(1 + s * pull.towards, 0.0)
            for more, s, pull in zip(added, strength, pulls, strict=True)
        ]
        values = np.stack([w @ c.values for w, c in zip(times, clusters, strict=True)])
        rows = intervals(self.metric, FlipCounts(self.layout, values), confidence)
        ends = widened(self.metric, rows, clusters, confidence, times=times)
        return ends[end == "high"]


class _OfMeans(_Further):
    """The mean of further rows is normal around the observed mean, and moves the interval."""

    def __init__(self, metric: Metric, samples: Sequence[GroupCounts]) -> None:
        super().__init__(metric, samples)
        effects = [s.design(metric)[0] if s.clusters is not None else 1.0 for s in samples]
        variances = [float(metric.kind.variance(s.counts)) for s in samples]
        self.spreads = np.sqrt(np.array(variances) * np.array(effects) * self.sizes)

    def end(
        self, end: End, i: Indices, further: FloatArray, miss: FloatArray, confidence: FloatArray
    ) -> FloatArray:
        total = self.sizes[i] + further
        z = _strength(end, miss, np.ones(len(i)), np.zeros(len(i)))
        moved = z * self.spreads[i] * np.sqrt(further) / total
        scale = total / self.sizes[i]
        if self.samples[0].clusters is None:
            values = np.stack([self.samples[j].counts.values for j in i]) * scale[:, np.newaxis]
            ends = intervals(self.metric, FlipCounts(self.layout, values), confidence)
        else:
            each = [
                self.samples[j].interval(self.metric, float(c), scale=float(s))
                for j, c, s in zip(i, confidence, scale, strict=True)
            ]
            ends = np.array([low for low, _ in each]), np.array([high for _, high in each])
        return np.asarray(ends[end == "high"] + moved)


class _Pull:
    """How often each unit (kind of row, or cluster) occurs if the value comes out high.

    Given that the value lies z standard errors above its mean, a unit occurs
    1 + z * towards / sqrt(draws) times as often as on average.
    """

    def __init__(self, metric: Metric, units: FlipCounts, times: FloatArray) -> None:
        sums = ratio_of(metric).cluster_sums(units, times)
        share = times / times.sum()
        top, _, bottom, _ = np.moveaxis(sums, -1, 0)
        whole = (share * bottom).sum()
        moves = top - (share * top).sum() / whole * bottom if whole > 0 else np.zeros_like(top)
        spread = np.sqrt((share * moves**2).sum())
        self.towards = moves / spread if spread > 0 else np.zeros_like(moves)
        self.skewness = float((share * self.towards**3).sum())


def _binomial_count(end: End, miss: FloatArray, size: FloatArray, rate: FloatArray) -> FloatArray:
    """Return the count that moves an end of the interval so far with a chance of `miss`."""
    if end == "high":
        return statistics.binomial_quantile(1 - miss, size, rate)
    return size - statistics.binomial_quantile(1 - miss, size, 1 - rate)


def _strength(end: End, miss: FloatArray, draws: FloatArray, skewness: FloatArray) -> FloatArray:
    """Return the distance of the further value from its mean, in standard errors per root draw."""
    from scipy.special import ndtri

    root = np.sqrt(np.maximum(draws, 1e-300))
    sign = 1.0 if end == "high" else -1.0
    z = statistics.skewed(-ndtri(np.clip(miss, 1e-6, 1.0)), sign * skewness / root)
    return np.asarray(sign * z / root)


def _kinds(metric: Metric, layout: StatisticsLayout) -> list[str]:
    """Return names of statistics such that each row counts in exactly one of them."""
    if isinstance(metric.kind, ControlRatioKind):
        flips = metric.kind.flips
        flags = range(layout.controls + 1)
        return [joint_name(flips, new, flagged) for new in (0, 1) for flagged in flags]
    if metric.name.startswith("churn") and ANSWERS[0] in layout.columns:
        return list(ANSWERS)
    if "class" in metric.needs:
        return [*CELLS, *FALSE_LABELS]
    return [*CELLS, *UNLABELLED]
