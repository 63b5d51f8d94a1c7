"""`compare`: two models in, a `Comparison` out, with all that can be said about the update."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from flipguard import statistics
from flipguard.counts import CELLS, UNLABELLED, FlipCounts, FloatArray, Layout
from flipguard.engines.plan import Counted, CountingPlan, Groups, Progress, RowCounts
from flipguard.errors import InputError, listed
from flipguard.estimates import (
    REPLICATES_A_GROUP,
    Estimate,
    Sample,
    estimate_groups,
)
from flipguard.metrics import METRICS
from flipguard.predictions.table import Predictions

Correction = Literal["holm", "benjamini-hochberg", "none"]
CORRECTIONS: tuple[Correction, ...] = ("holm", "benjamini-hochberg", "none")
FlipKind = Literal["negative", "positive", "wrong_to_wrong", "changed"]
FLIP_KINDS: tuple[FlipKind, ...] = ("negative", "positive", "wrong_to_wrong", "changed")
SCHEMA = "flipguard.comparison/1"
ENGINES = ("local", "spark")

# The rates whose spread over several controls is the noise of an ordinary retrain.
FLOOR_METRICS = ("negative_flip_rate", "churn", "accuracy_gain")


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
    """What ordinary retrains do, and whether this update does more."""

    metric: str
    controls: tuple[float, ...]
    low: float
    high: float
    value: float

    @property
    def verdict(self) -> Literal["above", "within", "below", "unknown"]:
        """Where the new model is, beside the range in which one more retrain would be expected."""
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
    _plan: CountingPlan | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        told = ", ".join(
            f"{name}={self[name].value:.4f}"
            for name in ("negative_flip_rate", "churn", "accuracy_gain")
        )
        groups = "".join(f", by {column}: {len(g)} groups" for column, g in self.by.items())
        return f"<Comparison {self.old!r} -> {self.new!r}, n={self.n:,}, {told}{groups}>"

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
        if self._plan is None:
            raise InputError("This comparison no longer has its rows; compare the files again.")
        from flipguard.engines import local

        flips = local.flips(self._plan)
        return flips if kind is None else flips.filter(pl.col("kind") == kind)

    def compared_ids(self, wanted: pl.Series) -> pl.Series | None:
        """Those of the wanted ids that were compared, as text; None where rows have no ids."""
        if self._plan is None:
            raise InputError("This comparison no longer has its rows; compare the files again.")
        from flipguard.engines import local

        return local.compared_ids(self._plan, wanted)

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
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def compare(
    *,
    old: Predictions,
    new: Predictions,
    by: Sequence[str] = (),
    control: Predictions | Sequence[Predictions] = (),
    cluster: str | None = None,
    confidence: float = 0.95,
    correction: Correction = "holm",
    on_missing: Literal["error", "drop"] = "error",
    exponent: float = 1.0,
    engine: str = "local",
    progress: Progress | None = None,
) -> Comparison:
    """What the update from `old` to `new` changes, with intervals.

    >>> from flipguard import Predictions, compare
    >>> target = [0, 1, 1, 0, 1, 0]
    >>> old = Predictions.from_arrays(labels=[0, 1, 0, 0, 1, 1], targets=target)
    >>> new = Predictions.from_arrays(labels=[0, 1, 1, 1, 1, 1], targets=target)
    >>> result = compare(old=old, new=new)
    >>> result["negative_flip_rate"].value, result["positive_flip_rate"].value
    (0.16666666666666666, 0.16666666666666666)
    """
    check_choices(confidence, correction, on_missing, exponent, engine)
    controls = (control,) if isinstance(control, Predictions) else tuple(control)
    for role, given in (("old", old), ("new", new), *(("control", c) for c in controls)):
        if not isinstance(given, Predictions):
            raise InputError(
                f"Expected `{role}` to be Predictions, but got {type(given).__name__}; read a file "
                "with flipguard.read_predictions, or use Predictions.from_arrays."
            )
    plan = CountingPlan(
        old=old,
        new=new,
        controls=controls,
        by=tuple(dict.fromkeys([by] if isinstance(by, str) else by)),
        cluster=cluster,
        on_missing=on_missing,
        exponent=exponent,
        progress=progress,
    )
    return judged_counts(
        _count(plan, engine), plan, confidence=confidence, correction=correction, engine=engine
    )


def check_choices(
    confidence: float, correction: str, on_missing: str, exponent: float, engine: str
) -> None:
    """Refuses what no comparison can be made with."""
    if not 0.0 < confidence < 1.0:
        raise InputError(
            f"Expected `confidence` to be between 0 and 1, but got {confidence}; 0.95 is usual."
        )
    if correction not in CORRECTIONS:
        raise InputError(
            f"Expected `correction` to be one of {', '.join(CORRECTIONS)}, but got '{correction}'."
        )
    if on_missing not in ("error", "drop"):
        raise InputError(f"Expected `on_missing` to be error or drop, but got '{on_missing}'.")
    if not (exponent > 0 and np.isfinite(exponent)):
        raise InputError(f"Expected `exponent` to be above 0, but got {exponent}; 1 is usual.")
    if engine not in ENGINES:
        raise InputError(f"Expected `engine` to be one of {', '.join(ENGINES)}, not '{engine}'.")


def _count(plan: CountingPlan, engine: str) -> Counted:
    if engine == "spark":
        from flipguard.engines import spark

        return spark.count(plan)
    from flipguard.engines import local

    return local.count(plan)


def judged_counts(
    counted: Counted,
    plan: CountingPlan,
    *,
    confidence: float,
    correction: Correction,
    engine: str,
) -> Comparison:
    """Counts, whoever counted them, with their estimates."""
    clustered = plan.cluster is not None
    whole = _groups(counted.whole, confidence, clustered=clustered)[0]
    by = {
        column: _grouping(column, groups, confidence, correction, clustered=clustered)
        for column, groups in counted.by.items()
    }
    return Comparison(
        old=plan.old.name,
        new=plan.new.name,
        controls=tuple(control.name for control in plan.controls),
        confidence=confidence,
        whole=whole,
        rows=counted.rows,
        by=by,
        noise_floor=_noise_floor(whole, confidence),
        cluster=plan.cluster,
        clusters=len(counted.whole.counts) if clustered else None,
        notes=(*_notes(whole, plan), *counted.notes),
        engine=engine,
        _plan=plan,
    )


def _notes(whole: Group, plan: CountingPlan) -> Iterator[str]:
    """What a careful reader would want to know about the files before believing the numbers."""
    if plan.old.id is None:
        yield "the files have no ids, so rows were matched by their position"
    counts = whole.counts
    if counts.layout.has_target and counts.labelled < counts.rows:
        yield (
            f"{counts.rows - counts.labelled:,.0f} of {counts.rows:,.0f} rows have no target and "
            "count for churn alone"
        )
    if counts.different == 0:
        yield "old and new give every sample the same label; are these the files you meant?"
    yield from _new_classes(plan)
    # A model that is never right is more often a class spelled in two ways than a bad model.
    right = {plan.old.name: counts.old_right, plan.new.name: counts.new_right}
    for name, count in right.items():
        if counts.labelled > 0 and count == 0:
            yield (
                f"{name}: no prediction equals its target; check that predictions and targets "
                "name the classes alike (3 and cat are different names)"
            )


def _new_classes(plan: CountingPlan) -> Iterator[str]:
    """Classes that only one of the models can predict."""
    old, new = plan.old.class_names, plan.new.class_names
    if old is None or new is None:
        return
    for name, known, other in ((plan.old.name, old, new), (plan.new.name, new, old)):
        lacks = [c for c in other if c not in set(known)]
        if lacks:
            yield f"{name} does not know class {listed(lacks)}, so it is wrong on all its samples"


def _groups(groups: Groups, confidence: float, *, clustered: bool) -> list[Group]:
    places: dict[str, list[int]] = {}
    for i, name in enumerate(groups.keys):
        places.setdefault(name, []).append(i)
    layout, values = groups.counts.layout, groups.counts.values
    samples = []
    for rows in places.values():
        clusters = FlipCounts(layout, values[rows])
        samples.append(
            Sample(
                counts=clusters.total(),
                clusters=clusters if clustered else None,
                replicates=REPLICATES_A_GROUP if len(places) > 1 else 2_000,
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
        for i, name in enumerate(places)
    ]


def _grouping(
    column: str, groups: Groups, confidence: float, correction: Correction, *, clustered: bool
) -> Grouping:
    found = _groups(groups, confidence, clustered=clustered)
    raw = np.array([_change_p(group) for group in found])
    adjusted = dict(
        zip((group.name for group in found), corrected(raw, correction).tolist(), strict=True)
    )
    alpha = 1.0 - confidence
    grouping = Grouping(
        column=column, groups=(), p_adjusted=adjusted, correction=correction, alpha=alpha
    )
    ranked = tuple(sorted(found, key=lambda group: _badness(grouping, group)))
    return Grouping(
        column=column, groups=ranked, p_adjusted=adjusted, correction=correction, alpha=alpha
    )


def corrected(p_values: FloatArray, correction: str) -> FloatArray:
    """P values that allow for how many there are."""
    if correction == "holm":
        return statistics.holm(p_values)
    if correction == "benjamini-hochberg":
        return statistics.benjamini_hochberg(p_values)
    return p_values


def _change_p(group: Group) -> float:
    """The p value of flips that lean one way: exact, or by the interval if rows are clustered."""
    if group.sample.clusters is None:
        return group["mcnemar_p"].value
    gain = METRICS["accuracy_gain"]
    value = group["accuracy_gain"].value
    if np.isnan(value):
        return float("nan")
    return float(
        statistics.p_value_by_inversion(
            lambda confidence: group.sample.interval_array(gain, confidence),
            limit=0.0,
            side="above" if value > 0 else "below",
        )
    )


def _badness(grouping: Grouping, group: Group) -> tuple[bool, float, float, str]:
    """Sorts groups: those that regress beyond chance, then by what surely breaks."""
    metric = "negative_flip_rate" if group["negative_flip_rate"].is_defined else "churn"
    estimate = group[metric]
    low = estimate.low if not np.isnan(estimate.low) else -1.0
    value = estimate.value if estimate.is_defined else -1.0
    return grouping.change(group) != "regressed", -low, -value, group.name


def _noise_floor(whole: Group, confidence: float) -> tuple[NoiseFloor, ...]:
    layout = whole.counts.layout
    if layout.controls < 2:
        return ()
    floors = []
    for name in FLOOR_METRICS:
        metric = METRICS[name]
        values = [float(metric.value(whole.counts.control(i))) for i in range(layout.controls)]
        low, high = statistics.prediction_interval(values, confidence=confidence)
        if name != "accuracy_gain":
            low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
        floors.append(
            NoiseFloor(
                metric=name,
                controls=tuple(values),
                low=float(low),
                high=float(high),
                value=whole[name].value,
            )
        )
    return tuple(floors)


def _counts_json(counts: FlipCounts) -> dict[str, int | None]:
    known = counts.layout.has_target
    cells: dict[str, int | None] = {c: int(counts[c]) if known else None for c in CELLS}
    unlabelled = {c: int(counts[c]) for c in UNLABELLED}
    return cells | (unlabelled if any(unlabelled.values()) or not known else {})


def _finite(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)
