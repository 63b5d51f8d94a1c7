"""Whether a study comes out as the paper's table does: computed from numbers, not felt.

For two rows of one update and one metric, three questions with a rule each:

1. Does the paper separate them clearly? Where it prints deviations, if the values are further apart
   than twice the root of the sum of their squares. Where it prints none, if they are further apart
   than twice the standard error of the difference of two shares of its test samples, each with the
   binomial variance p (1 - p) / n; a relative negative flip rate varies in proportion to its
   negative flip rate. Cells that the paper leaves in doubt separate nothing.
2. Do we separate them? If the interval of the mean difference, Student's t over differences
   paired by seed, at 95 %, leaves 0 out. One seed separates nothing.
3. Then the pair agrees or disagrees by the signs; else it is undecided.

The agreement is the share of agreeing pairs among those that the paper separates clearly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flipguard.statistics import mean
from flipguard.studies.papers import Cell

Verdict = Literal["agree", "disagree", "undecided"]
CONFIDENCE = 0.95
STANDARD_ERRORS = 2.0
RATE, RELATIVE = "negative_flip_rate", "relative_negative_flip_rate"
# Shares of the test samples, whose variance is binomial.
SHARES = frozenset({"accuracy", "error_rate_old", "error_rate_new", RATE, "churn"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row: what the paper prints, in its unit of percent, and our values as shares, by seed."""

    label: str
    block: tuple[str, ...]
    paper: Mapping[str, Cell]
    values: Mapping[str, Sequence[float]]
    samples: int | None  # the paper's test samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two rows that the paper separates by a metric, and how we order them: second less first."""

    metric: str
    first: int
    second: int
    paper: tuple[float, float]
    ours: tuple[float, float]
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All pairs that the paper separates clearly."""

    pairs: tuple[Pair, ...]

    def count(self, verdict: Verdict) -> int:
        """How many pairs have a verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)

    @property
    def share(self) -> float:
        """Agreeing pairs among all; nan if the paper separates none."""
        return self.count("agree") / len(self.pairs) if self.pairs else math.nan

    def of(self, row: int) -> tuple[Pair, ...]:
        """The pairs that a row is in."""
        return tuple(pair for pair in self.pairs if row in (pair.first, pair.second))


def agreement(rows: Sequence[Measured], metrics: Sequence[str]) -> Agreement:
    """Every pair of rows of the same update that the paper separates, metric by metric."""
    pairs = []
    for metric in metrics:
        for first, second in itertools.combinations(range(len(rows)), 2):
            a, b = rows[first], rows[second]
            if a.block != b.block or not separated(a, b, metric):
                continue
            printed = (_printed(a, metric), _printed(b, metric))
            low, high = paired_interval(a.values.get(metric, ()), b.values.get(metric, ()))
            pairs.append(
                Pair(
                    metric=metric,
                    first=first,
                    second=second,
                    paper=printed,
                    ours=(_mean(a.values.get(metric, ())), _mean(b.values.get(metric, ()))),
                    low=low,
                    high=high,
                    verdict=verdict_of(printed[1] - printed[0], low, high),
                )
            )
    return Agreement(pairs=tuple(pairs))


def separated(first: Measured, second: Measured, metric: str) -> bool:
    """Whether the paper's two values are clearly apart."""
    cells = [row.paper.get(metric) for row in (first, second)]
    errors = [_standard_error(row, metric) for row in (first, second)]
    a, b = cells
    if a is None or b is None or a.value is None or b.value is None or a.unsure or b.unsure:
        return False
    if errors[0] is None or errors[1] is None:
        return False
    return abs(a.value - b.value) > STANDARD_ERRORS * math.hypot(errors[0], errors[1])


def _standard_error(row: Measured, metric: str) -> float | None:
    """In percent; None if nothing says how far the value may be off."""
    cell = row.paper.get(metric)
    if cell is None or cell.value is None:
        return None
    if cell.deviation is not None:
        return cell.deviation
    if row.samples is None:
        return None
    if metric in SHARES:
        share = cell.value / 100
        return 100 * math.sqrt(max(share * (1 - share), 0.0) / row.samples)
    flips = row.paper.get(RATE)
    if metric == RELATIVE and flips is not None and flips.value:
        share = flips.value / 100
        return cell.value * math.sqrt((1 - share) / (share * row.samples))
    return None


def paired_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of second less first, seed by seed; nan for one seed."""
    if len(first) != len(second) or len(first) < 2:
        return math.nan, math.nan
    apart = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    low, high = mean(apart.sum(), (apart**2).sum(), len(apart), confidence=CONFIDENCE)
    return float(low), float(high)


def verdict_of(paper: float, low: float, high: float) -> Verdict:
    """The verdict on a pair from the paper's difference and the interval of ours.

    >>> verdict_of(-2.1, -0.05, -0.01), verdict_of(-2.1, 0.01, 0.05), verdict_of(-2.1, -0.01, 0.02)
    ('agree', 'disagree', 'undecided')
    """
    if low > 0 or high < 0:
        return "agree" if (low > 0) == (paper > 0) else "disagree"
    return "undecided"


def _printed(row: Measured, metric: str) -> float:
    value = row.paper[metric].value
    return math.nan if value is None else value


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
