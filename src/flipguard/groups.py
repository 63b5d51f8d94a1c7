"""`Group` and `Grouping`: the estimates of each group of rows, ranked and tested against chance.

Estimates belong to `flipguard.estimates`, the whole comparison to `flipguard.comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import CELLS, UNLABELLED, FlipCounts, FloatArray
from flipguard.engines.count_table import Groups
from flipguard.errors import UnknownNameError, listed, nearest
from flipguard.estimates import (
    REPLICATES,
    REPLICATES_A_GROUP,
    Estimate,
    GroupCounts,
    estimate_groups,
    p_values_beyond,
)
from flipguard.metrics import METRICS

Correction = Literal["holm", "benjamini-hochberg", "none"]

SIDES: tuple[Literal["above", "below"], ...] = ("above", "below")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Group(Mapping[str, Estimate]):
    """The estimates of all samples or of one group: `group["churn"]` is an `Estimate`."""

    name: str
    sample: GroupCounts
    estimates: dict[str, Estimate]
    confidence: float

    def __repr__(self) -> str:
        rate = self["negative_flip_rate"].value
        return f"<Group {self.name!r}, n={self.n:,}, negative_flip_rate={rate:.4f}>"

    def __getitem__(self, metric: str) -> Estimate:
        try:
            return self.estimates[metric]
        except KeyError:
            told = nearest(str(metric), METRICS, all_in=f"the metrics are {', '.join(METRICS)}")
            raise UnknownNameError(f"There is no metric '{metric}'; {told}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def counts(self) -> FlipCounts:
        """The sufficient statistics of the estimates."""
        return self.sample.counts

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.counts.rows)

    def as_json(self) -> dict[str, Any]:
        """Return the part of the JSON that all samples and groups share."""
        return {
            "n": self.n,
            "counts": counts_json(self.counts),
            "metrics": {name: estimate.as_json() for name, estimate in self.estimates.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Grouping:
    """The groups of one column, worst first, and which of them regress by more than chance."""

    column: str
    groups: tuple[Group, ...]
    p_adjusted: dict[str, float]
    correction: Correction
    alpha: float

    def __repr__(self) -> str:
        return f"<Grouping by {self.column!r}: {listed([g.name for g in self], most=5)}>"

    def __getitem__(self, name: object) -> Group:
        for group in self.groups:
            if group.name == str(name):
                return group
        known = [group.name for group in self.groups]
        told = nearest(str(name), known, all_in=f"the groups are {listed(known, most=8)}")
        raise UnknownNameError(f"There is no group '{name}' of column '{self.column}'; {told}")

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def change(self, group: Group) -> Literal["regressed", "improved", None]:
        """Return whether negative and positive flips differ significantly, after correction."""
        if not self.p_adjusted.get(group.name, 1.0) <= self.alpha:
            return None
        return "regressed" if group["accuracy_gain"].value < 0 else "improved"


class Groupings(dict[str, Grouping]):
    """The groups by column: `result.by["target"]`."""

    def __missing__(self, column: str) -> Grouping:
        if not self:
            raise UnknownNameError(
                f"There are no groups by '{column}', because this comparison has no group-by "
                f"columns; compare with by=[{column!r}]."
            )
        told = nearest(str(column), self, all_in=f"the columns are {listed(self, most=8)}")
        raise UnknownNameError(f"There are no groups by '{column}' in this comparison; {told}")


def counts_json(counts: FlipCounts) -> dict[str, int | None]:
    """Return the outcome counts by name; None if the rows have no targets, or no labels."""
    known = counts.layout.has_target
    if not counts.layout.has_labels:
        wrong = int(counts["wrong_same"])
        right = {c: int(counts[c]) for c in CELLS[:3]}
        return right | {"both_wrong": wrong} | dict.fromkeys(CELLS[3:])
    cells: dict[str, int | None] = {c: int(counts[c]) if known else None for c in CELLS}
    unlabelled = {c: int(counts[c]) for c in UNLABELLED}
    return cells | (unlabelled if any(unlabelled.values()) or not known else {})


def estimated_groups(groups: Groups, confidence: float, *, clustered: bool) -> list[Group]:
    """Return each group with its estimates."""
    indices: dict[str, list[int]] = {}
    for i, name in enumerate(groups.keys):
        indices.setdefault(name, []).append(i)
    layout, values = groups.counts.layout, groups.counts.values
    samples = []
    for rows in indices.values():
        clusters = FlipCounts(layout, values[rows])
        samples.append(
            GroupCounts(
                counts=clusters.total(),
                clusters=clusters if clustered else None,
                replicates=REPLICATES_A_GROUP if len(indices) > 1 else REPLICATES,
            )
        )
    estimates = {
        name: estimate_groups(metric, samples, confidence) for name, metric in METRICS.items()
    }
    return [
        Group(
            name=name,
            sample=samples[i],
            estimates={metric: values[i] for metric, values in estimates.items()},
            confidence=confidence,
        )
        for i, name in enumerate(indices)
    ]


def grouping_of(
    column: str, groups: Groups, confidence: float, correction: Correction, *, clustered: bool
) -> Grouping:
    """Return the groups of a column with their estimates, worst first."""
    found = estimated_groups(groups, confidence, clustered=clustered)
    raw = _change_p_values(found)
    adjusted = dict(
        zip(
            (group.name for group in found),
            statistics.corrected(raw, correction).tolist(),
            strict=True,
        )
    )
    alpha = 1.0 - confidence
    grouping = Grouping(
        column=column, groups=(), p_adjusted=adjusted, correction=correction, alpha=alpha
    )
    ranked = tuple(sorted(found, key=lambda group: _badness(grouping, group)))
    return Grouping(
        column=column, groups=ranked, p_adjusted=adjusted, correction=correction, alpha=alpha
    )


def _change_p_values(groups: Sequence[Group]) -> FloatArray:
    """Return p values of more negative than positive flips per group, or the reverse.

    Exact for independent rows. With clusters, the p value is the larger of the exact one and that
    of the interval over clusters, because clusters only widen an interval.
    """
    gain, chance = METRICS["accuracy_gain"], METRICS["mcnemar_p"]
    p_values = np.array([float(chance.value(group.counts)) for group in groups])
    clusters = [group.sample.clusters for group in groups if group.sample.clusters is not None]
    if clusters and gain.needs <= clusters[0].layout.available:
        gained = np.array([group["accuracy_gain"].value for group in groups])
        above, below = (p_values_beyond(gain, clusters, 0.0, s) for s in SIDES)
        p_values = np.maximum(p_values, np.where(gained > 0, above, below))
    return p_values


def _badness(grouping: Grouping, group: Group) -> tuple[bool, float, float, str]:
    """Return a sort key: regressed groups first, then by the lower end of the rate."""
    metric = "negative_flip_rate" if group["negative_flip_rate"].is_defined else "churn"
    estimate = group[metric]
    low = estimate.low if not np.isnan(estimate.low) else -1.0
    value = estimate.value if estimate.is_defined else -1.0
    return grouping.change(group) != "regressed", -low, -value, group.name
