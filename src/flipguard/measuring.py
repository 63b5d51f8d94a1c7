"""`compare`: two models in, counted by an engine, a `Comparison` out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from flipguard import statistics
from flipguard.comparison import Comparison, Correction, Group, Grouping, NoiseFloor
from flipguard.counts import FlipCounts
from flipguard.engines.plan import Counted, CountingPlan, Groups, Progress
from flipguard.errors import InputError, listed
from flipguard.estimates import REPLICATES, REPLICATES_A_GROUP, Sample, estimate_groups
from flipguard.metrics import METRICS
from flipguard.predictions.table import Predictions

CORRECTIONS: tuple[Correction, ...] = ("holm", "benjamini-hochberg", "none")
ENGINES = ("local", "spark")

# The rates whose spread over several controls is the noise of an ordinary retrain.
FLOOR_METRICS = ("negative_flip_rate", "churn", "accuracy_gain")


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
        plan=plan,
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
                replicates=REPLICATES_A_GROUP if len(places) > 1 else REPLICATES,
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
