"""`Comparison`: all that can be said about an update, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from flipguard.counts import CELLS, FLIP_KINDS, UNLABELLED, FlipCounts, Layout
from flipguard.documents import json_text
from flipguard.engines.plan import CountingPlan, Details, RowCounts, Want, checked_wants
from flipguard.errors import InputError, listed
from flipguard.estimates import Estimate, Sample
from flipguard.metrics import METRICS

Correction = Literal["holm", "benjamini-hochberg", "none"]
FlipKind = Literal["negative", "positive", "wrong_to_wrong", "changed"]
SCHEMA = "flipguard.comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Group(Mapping[str, Estimate]):
    """One set of samples, whole or a slice: `group["negative_flip_rate"]` is an `Estimate`."""

    name: str
    sample: Sample
    estimates: dict[str, Estimate]
    confidence: float

    def __repr__(self) -> str:
        rate = self["negative_flip_rate"].value
        return f"<Group {self.name!r}, n={self.n:,}, negative_flip_rate={rate:.4f}>"

    def __getitem__(self, metric: str) -> Estimate:
        try:
            return self.estimates[metric]
        except KeyError:
            raise KeyError(
                f"There is no metric '{metric}'; known are {', '.join(METRICS)}."
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def counts(self) -> FlipCounts:
        """The sufficient statistics behind every number here."""
        return self.sample.counts

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.counts.rows)

    def as_json(self) -> dict[str, Any]:
        """The part of the JSON that is the same for the whole and for a group."""
        return {
            "n": self.n,
            "counts": _counts_json(self.counts),
            "metrics": {name: estimate.as_json() for name, estimate in self.estimates.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Grouping:
    """The groups of one column, worst first, and which of them regress beyond chance."""

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
        known = listed([group.name for group in self.groups], most=8)
        raise KeyError(f"There is no group '{name}' in '{self.column}'; known are {known}.")

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def change(self, group: Group) -> Literal["regressed", "improved", None]:
        """Whether a group's flips lean one way beyond chance, after correction for many groups."""
        if not self.p_adjusted.get(group.name, 1.0) <= self.alpha:
            return None
        return "regressed" if group["accuracy_gain"].value < 0 else "improved"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """What ordinary retrains do, and whether this update does more.

    `shows` is how far the range reaches from the controls' mean: smaller changes cannot be told
    from a retrain. `five_show` is how far it would reach with five controls of the same mean and
    spread.
    """

    metric: str
    controls: tuple[float, ...]
    low: float
    high: float
    value: float
    shows: float
    five_show: float

    @property
    def verdict(self) -> Literal["above", "within", "below", "unknown"]:
        """Whether the new model is above, within or below the range of one more retrain."""
        if np.isnan(self.low) or np.isnan(self.value):
            return "unknown"
        if self.value > self.high:
            return "above"
        return "below" if self.value < self.low else "within"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """The truth about an update. `result["negative_flip_rate"]` is an `Estimate`."""

    old: str
    new: str
    controls: tuple[str, ...]
    confidence: float
    whole: Group
    rows: RowCounts
    by: dict[str, Grouping]
    noise_floor: tuple[NoiseFloor, ...]
    cluster: str | None
    clusters: int | None
    notes: tuple[str, ...]
    engine: str
    # Where the samples are; None where the counts came from elsewhere.
    plan: CountingPlan | None = field(default=None, repr=False, compare=False)
    # What has been counted of the samples themselves, with the comparison or since.
    details: Details = field(default_factory=Details, repr=False, compare=False)

    def __repr__(self) -> str:
        told = ", ".join(
            f"{name}={self[name].value:.4f}"
            for name in ("negative_flip_rate", "churn", "accuracy_gain")
        )
        groups = "".join(f", by {column}: {len(g)} groups" for column, g in self.by.items())
        return f"<Comparison {self.old!r} -> {self.new!r}, n={self.n:,}, {told}{groups}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        # Drawing lies above the data, but a notebook asks the data: the one import that goes up.
        from flipguard.report.notebook import notebook_html

        return notebook_html(self)

    def __getitem__(self, metric: str) -> Estimate:
        return self.whole[metric]

    @property
    def counts(self) -> FlipCounts:
        """The sufficient statistics of all samples."""
        return self.whole.counts

    @property
    def n(self) -> int:
        """The number of samples compared."""
        return self.whole.n

    @property
    def layout(self) -> Layout:
        """What the inputs held, and so which metrics are defined."""
        return self.counts.layout

    def flips(self, kind: FlipKind | None = None) -> pl.DataFrame:
        """The samples whose label changed, worst first; of one kind, or of all."""
        if kind is not None and kind not in FLIP_KINDS:
            raise InputError(
                f"Expected a kind of flip among {', '.join(FLIP_KINDS)}, not '{kind}'."
            )
        flips = self.with_details(["flips"]).flips
        if flips is None:
            raise AssertionError("Flips were looked for and are not there.")
        return flips if kind is None else flips.filter(pl.col("kind") == kind)

    def with_details(self, wants: Iterable[Want]) -> Details:
        """The details with what is wanted: what was not counted so far is counted in one pass."""
        missing = checked_wants(wants) - self.details.counted
        if missing:
            if self.plan is None:
                raise InputError("This comparison no longer has its rows; compare the files again.")
            from flipguard.engines import local

            self.details.add(local.details(self.plan, missing))
        return self.details

    def compared_ids(self, wanted: pl.Series) -> pl.Series | None:
        """Those of the wanted ids that were compared, as text; None where rows have no ids."""
        if self.plan is None:
            raise InputError("This comparison no longer has its rows; compare the files again.")
        from flipguard.engines import local

        return local.compared_ids(self.plan, wanted)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as the JSON has it."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "old": self.old,
            "new": self.new,
            "n": self.n,
            "confidence": self.confidence,
            "counts": _counts_json(self.counts),
            "rows": {
                "matched": self.rows.matched,
                "only_old": self.rows.only_old,
                "only_new": self.rows.only_new,
                **({"not_in_control": self.rows.not_in_control} if self.controls else {}),
            },
            "metrics": self.whole.as_json()["metrics"],
            "by": {
                column: {group.name: group.as_json() for group in grouping}
                for column, grouping in self.by.items()
            },
        }
        significant = {
            column: {
                "correction": grouping.correction,
                "groups": {
                    group.name: {
                        "p_adjusted": _finite(grouping.p_adjusted.get(group.name)),
                        "change": grouping.change(group),
                    }
                    for group in grouping
                },
            }
            for column, grouping in self.by.items()
        }
        if significant:
            document["significance"] = significant
        if self.controls:
            document["controls"] = [
                {"name": name, "counts": _counts_json(self.counts.control(i))}
                for i, name in enumerate(self.controls)
            ]
            document["noise_floor"] = {
                floor.metric: {
                    "value": _finite(floor.value),
                    "low": _finite(floor.low),
                    "high": _finite(floor.high),
                    "controls": [_finite(value) for value in floor.controls],
                    "verdict": floor.verdict,
                    "shows": _finite(floor.shows),
                    "five_show": _finite(floor.five_show),
                }
                for floor in self.noise_floor
            }
        if self.cluster is not None:
            document["cluster"] = {"column": self.cluster, "clusters": self.clusters}
        if self.notes:
            document["notes"] = list(self.notes)
        return document

    def to_json(self) -> str:
        """The comparison as a JSON document."""
        return json_text(self.as_dict())


def _counts_json(counts: FlipCounts) -> dict[str, int | None]:
    known = counts.layout.has_target
    cells: dict[str, int | None] = {c: int(counts[c]) if known else None for c in CELLS}
    unlabelled = {c: int(counts[c]) for c in UNLABELLED}
    return cells | (unlabelled if any(unlabelled.values()) or not known else {})


def _finite(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)
