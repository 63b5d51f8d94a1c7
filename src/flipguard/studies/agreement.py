"""Compute whether a study's results agree with the paper's table.

For two rows of one update and one metric, three questions with a rule each:

1. Does the paper separate them clearly? If it prints deviations: yes if the values differ by more
   than twice the root of the sum of their squares. If it prints none: yes if they differ by more
   than twice the standard error of the difference of two shares of its test samples, each with the
   binomial variance p (1 - p) / n; a relative negative flip rate varies in proportion to its
   negative flip rate. Cells that are marked as unsure separate nothing.
2. Do we separate them? Yes if the 95 % interval of the mean difference, paired by seed, excludes 0.
   With fewer than ten seeds, its variance is shrunk towards those of the other pairs of the metric
   (`noise`), because few seeds say little about it. One seed separates nothing.
3. If both do, the pair agrees or disagrees by the signs; else it is undecided.

The agreement is the share of agreeing pairs among those that the paper separates clearly.

The same comparison is counted once in a study, and once over several studies (`Pair.question`).
For example, seven rows that replace the same old model have the same old error, so comparing each
of them with an eighth row is one question, not seven. Two pairs of rows are the same comparison if
they have the same metric, and both sides have the same value in the paper and the same values here
for each seed. The order of the sides and the update do not matter. The first pair is kept, and
lists the others that it stands for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flipguard.statistics.seeds import difference_intervals
from flipguard.studies.paper_tables import PaperCell

Verdict = Literal["agree", "disagree", "undecided"]
CONFIDENCE = 0.95
STANDARD_ERRORS = 2.0
RATE, RELATIVE = "negative_flip_rate", "relative_negative_flip_rate"
# Shares of the test samples, whose variance is binomial.
SHARES = frozenset({"accuracy", "error_rate_old", "error_rate_new", RATE, "churn"})


# One side of a comparison: the paper's value, and ours for each seed.
_Side: TypeAlias = tuple[float, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row: the paper's values, in percent, and our values as shares, by seed."""

    label: str
    block: tuple[str, ...]
    paper: Mapping[str, PaperCell]
    values: Mapping[str, Sequence[float]]
    samples: int | None  # the paper's test samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two rows that the paper separates by a metric, and our difference: second minus first.

    `same` lists more pairs of rows that are the same comparison, in each of which the row like
    `first` comes first.
    """

    metric: str
    first: int
    second: int
    paper: tuple[float, float]
    ours: tuple[float, float]
    low: float
    high: float
    verdict: Verdict
    same: tuple[tuple[int, int], ...] = ()
    # The metric and both sides: pairs of other tables with the same are the same comparison.
    question: tuple[str, frozenset[_Side]] = ("", frozenset())

    @property
    def stands_for(self) -> tuple[tuple[int, int], ...]:
        """All pairs of rows that this comparison stands for, (first, second) first."""
        return ((self.first, self.second), *self.same)

    @property
    def rows(self) -> frozenset[int]:
        """All rows in these pairs."""
        return frozenset(itertools.chain.from_iterable(self.stands_for))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All comparisons that the paper decides clearly, each once."""

    pairs: tuple[Pair, ...]

    def count(self, verdict: Verdict) -> int:
        """Return the number of pairs with a verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)

    @property
    def share(self) -> float:
        """The share of pairs that agree; nan if the paper separates none."""
        return self.count("agree") / len(self.pairs) if self.pairs else math.nan

    def of(self, row: int) -> tuple[Pair, ...]:
        """Return the pairs that contain a row, including the pairs that they stand for."""
        return tuple(pair for pair in self.pairs if row in pair.rows)


def agreement(rows: Sequence[Measured], metrics: Sequence[str]) -> Agreement:
    """Compare every two rows of the same update that the paper separates, each comparison once."""
    pairs = []
    for metric in metrics:
        found: dict[frozenset[_Side], list[tuple[int, int]]] = {}
        for first, second in itertools.combinations(range(len(rows)), 2):
            a, b = rows[first], rows[second]
            if a.block != b.block or not separated(a, b, metric):
                continue
            same = found.setdefault(frozenset({_side(a, metric), _side(b, metric)}), [])
            turned = same and _side(a, metric) != _side(rows[same[0][0]], metric)
            same.append((second, first) if turned else (first, second))
        asked = list(found.values())
        ours = [[rows[row].values.get(metric, ()) for row in same[0]] for same in asked]
        limits = difference_intervals([_apart(a, b) for a, b in ours], confidence=CONFIDENCE)
        pairs += [
            _pair(rows, metric, same, limit) for same, limit in zip(asked, limits, strict=True)
        ]
    return Agreement(pairs=tuple(pairs))


def _pair(
    rows: Sequence[Measured],
    metric: str,
    same: Sequence[tuple[int, int]],
    interval: tuple[float, float],
) -> Pair:
    """Return the `Pair` for pairs of rows that share one comparison."""
    first, second = same[0]
    a, b = rows[first], rows[second]
    ours = a.values.get(metric, ()), b.values.get(metric, ())
    printed = _printed(a, metric), _printed(b, metric)
    low, high = interval
    return Pair(
        metric=metric,
        first=first,
        second=second,
        paper=printed,
        ours=(_mean(ours[0]), _mean(ours[1])),
        low=low,
        high=high,
        verdict=verdict_of(printed[1] - printed[0], low, high),
        same=tuple(same[1:]),
        question=(metric, frozenset({_side(a, metric), _side(b, metric)})),
    )


def _side(row: Measured, metric: str) -> _Side:
    # nan does not equal itself, but None does.
    ours = (None if math.isnan(value) else value for value in row.values.get(metric, ()))
    return _printed(row, metric), tuple(ours)


def separated(first: Measured, second: Measured, metric: str) -> bool:
    """Return whether the paper separates two rows clearly."""
    cells = [row.paper.get(metric) for row in (first, second)]
    errors = [_standard_error(row, metric) for row in (first, second)]
    a, b = cells
    if a is None or b is None or a.value is None or b.value is None or a.unsure or b.unsure:
        return False
    if errors[0] is None or errors[1] is None:
        return False
    return abs(a.value - b.value) > STANDARD_ERRORS * math.hypot(errors[0], errors[1])


def _standard_error(row: Measured, metric: str) -> float | None:
    """Return the standard error of the paper's value in percent; None if it is unknown."""
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
    """Return the 95 % interval of the mean of second minus first, paired by seed; nan for one seed.

    The variance is that of this comparison alone.
    """
    return difference_intervals([_apart(first, second)], confidence=CONFIDENCE)[0]


def _apart(first: Sequence[float], second: Sequence[float]) -> NDArray[np.float64]:
    """Return second minus first for each seed; empty if they have different numbers of seeds."""
    if len(first) != len(second):
        return np.empty(0)
    return np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)


def verdict_of(paper: float, low: float, high: float) -> Verdict:
    """Return the verdict on a pair from the paper's difference and the interval measured here.

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
