"""`compare`: two models in, counted by an engine, a `Comparison` out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np

from flipguard import statistics
from flipguard.clustered import p_values_beyond
from flipguard.comparison import Comparison, Correction, Group, Grouping, NoiseFloor
from flipguard.controls import count_as_one, distinct_controls
from flipguard.counts import FlipCounts, FloatArray
from flipguard.engines.pairing import settled
from flipguard.engines.plan import Counted, CountingPlan, Groups, Progress, Want, checked_wants
from flipguard.engines.strangers import odd_spellings, refuse_strangers
from flipguard.errors import InputError
from flipguard.estimates import REPLICATES, REPLICATES_A_GROUP, Sample, estimate_groups
from flipguard.metrics import METRICS
from flipguard.notes import notes
from flipguard.predictions.table import Predictions

T = TypeVar("T")

CORRECTIONS: tuple[Correction, ...] = ("holm", "benjamini-hochberg", "none")
ENGINES = ("local", "spark")
SIDES: tuple[Literal["above", "below"], ...] = ("above", "below")

# The rates whose spread over several controls is the noise of an ordinary retrain.
FLOOR_METRICS = ("negative_flip_rate", "churn", "accuracy_gain")


def compare(
    *,
    old: Predictions,
    new: Predictions,
    by: str | Sequence[str] | None = (),
    control: Predictions | Sequence[Predictions] | None = (),
    cluster: str | None = None,
    confidence: float = 0.95,
    correction: Correction = "holm",
    on_missing: Literal["error", "drop"] = "error",
    exponent: float = 1.0,
    engine: str = "local",
    wants: Iterable[Want] = (),
    progress: Progress | None = None,
) -> Comparison:
    """What the update from `old` to `new` changes, with intervals.

    `wants` names what will be asked of the result, so that the files are read once: `"flips"` for
    `result.flips()`, and also `"target_groups"` and `"distances"` for `write_report`. What is not
    named is counted when it is asked for.

    >>> from flipguard import Predictions, compare
    >>> target = [0, 1, 1, 0, 1, 0]
    >>> old = Predictions.from_arrays(labels=[0, 1, 0, 0, 1, 1], targets=target)
    >>> new = Predictions.from_arrays(labels=[0, 1, 1, 1, 1, 1], targets=target)
    >>> result = compare(old=old, new=new)
    >>> result["negative_flip_rate"].value, result["positive_flip_rate"].value
    (0.16666666666666666, 0.16666666666666666)
    """
    check_choices(confidence, correction, on_missing, exponent, engine)
    controls = () if control is None else several(control, Predictions, "control")
    for role, given in (("old", old), ("new", new), *(("control", c) for c in controls)):
        if not isinstance(given, Predictions):
            raise InputError(
                f"Expected `{role}` to be Predictions, but got {type(given).__name__}; read a file "
                "with flipguard.read_predictions, or use Predictions.from_arrays."
            )
    plan, copies = distinct_controls(
        CountingPlan(
            old=old,
            new=new,
            controls=controls,
            by=tuple(dict.fromkeys(() if by is None else several(by, str, "by"))),
            cluster=cluster,
            on_missing=on_missing,
            exponent=exponent,
            progress=progress,
        )
    )
    plan, _ = settled(plan)
    wanted = checked_wants(wants)
    counted = _count(plan, engine, wanted)
    if same_controls := count_as_one(plan, counted.whole.counts.total()):
        copies.append(same_controls)
        plan = replace(plan, controls=plan.controls[:1])
        counted = _count(plan, engine, wanted)
    refuse_strangers(plan, _met(counted, len(plan.controls)))
    counted = replace(counted, notes=(*copies, *counted.notes, *odd_spellings(plan)))
    return judged_counts(counted, plan, confidence=confidence, correction=correction, engine=engine)


def several(given: object, kind: type[T], argument: str) -> tuple[T, ...]:
    """One value or several as a tuple."""
    if isinstance(given, kind):
        return (given,)
    if not isinstance(given, Iterable):
        raise InputError(
            f"Expected `{argument}` to be {kind.__name__} or a list of them, but got "
            f"{type(given).__name__}."
        )
    return tuple(given)


def _met(counted: Counted, controls: int) -> list[bool]:
    """Of old, new and each control: does its class equal a target or another's in some row?"""
    counts = counted.whole.counts.total()
    agree = counts.rows > counts.different
    met = [bool(agree or counts.old_right > 0), bool(agree or counts.new_right > 0)]
    for i in range(controls):
        control = counts.control(i)
        met.append(bool(control.rows > control.different or control.new_right > 0))
    return met


def check_choices(
    confidence: float, correction: str, on_missing: str, exponent: float, engine: str
) -> None:
    """Refuses what no comparison can be made with."""
    for argument, value in (("confidence", confidence), ("exponent", exponent)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise InputError(f"Expected `{argument}` to be a number, but got {value!r}.")
    if not 0.0 < confidence < 1.0:
        raise InputError(
            f"Expected `confidence=` to be between 0 and 1, but got {confidence}; 0.95 is usual."
        )
    if correction not in CORRECTIONS:
        raise InputError(
            f"Expected `correction` to be one of {', '.join(CORRECTIONS)}, but got '{correction}'."
        )
    if on_missing not in ("error", "drop"):
        raise InputError(f"Expected `on_missing` to be error or drop, but got '{on_missing}'.")
    if not (exponent > 0 and np.isfinite(exponent)):
        raise InputError(f"Expected `exponent=` to be above 0, but got {exponent}; 1 is usual.")
    if engine not in ENGINES:
        raise InputError(f"Expected `engine` to be one of {', '.join(ENGINES)}, not '{engine}'.")


def _count(plan: CountingPlan, engine: str, wants: frozenset[Want]) -> Counted:
    if engine == "spark":
        from flipguard.engines import spark

        return spark.count(plan, wants)
    from flipguard.engines import local

    return local.count(plan, wants)


def judged_counts(
    counted: Counted,
    plan: CountingPlan,
    *,
    confidence: float,
    correction: Correction,
    engine: str,
) -> Comparison:
    """Return the comparison of these counts, with its estimates."""
    clustered = plan.cluster is not None
    whole = _groups(counted.whole, confidence, clustered=clustered)[0]
    by = {
        column: grouping_of(column, groups, confidence, correction, clustered=clustered)
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
        notes=(*notes(whole, plan), *counted.notes),
        engine=engine,
        plan=plan,
        details=counted.details,
    )


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


def grouping_of(
    column: str, groups: Groups, confidence: float, correction: Correction, *, clustered: bool
) -> Grouping:
    """The groups of a column with their estimates, worst first."""
    found = _groups(groups, confidence, clustered=clustered)
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
    """P values of more negative than positive flips per group, or the reverse.

    Exact for independent rows. Clusters only widen an interval, so with clusters the p value is the
    larger of the exact one and that of the interval over clusters.
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
    """Sorts groups: those that regress beyond chance, then by what surely breaks."""
    metric = "negative_flip_rate" if group["negative_flip_rate"].is_defined else "churn"
    estimate = group[metric]
    low = estimate.low if not np.isnan(estimate.low) else -1.0
    value = estimate.value if estimate.is_defined else -1.0
    return grouping.change(group) != "regressed", -low, -value, group.name


def _noise_floor(whole: Group, confidence: float) -> tuple[NoiseFloor, ...]:
    counts = whole.counts
    if counts.layout.controls < 2:
        return ()
    each = [counts.control(i) for i in range(counts.layout.controls)]
    floors = []
    for name in FLOOR_METRICS:
        values = [float(METRICS[name].value(control)) for control in each]
        low, high = _retrain_range(name, counts, confidence)
        mean = float(np.mean(values))
        five = _retrain_range(name, counts, confidence, controls=5)
        floors.append(
            NoiseFloor(
                metric=name,
                controls=tuple(values),
                low=low,
                high=high,
                value=whole[name].value,
                shows=max(high - mean, mean - low),
                five_show=max(five[1] - mean, mean - five[0]),
            )
        )
    return tuple(floors)


def _retrain_range(
    name: str, counts: FlipCounts, confidence: float, *, controls: int | None = None
) -> tuple[float, float]:
    """The range of one more retrain, from these controls or as if there were `controls` of them."""
    seen: dict[str, Any] = {"confidence": confidence, "controls": controls}
    labelled = counts.labelled
    if name == "churn":
        ends = statistics.retrain_rate(counts.of_controls("churn"), counts.rows, **seen)
    elif name == "negative_flip_rate":
        ends = statistics.retrain_rate(counts.of_controls("negative_flip"), labelled, **seen)
    else:
        positive, negative = (
            counts.of_controls(f"{kind}_flip") for kind in ("positive", "negative")
        )
        ends = statistics.retrain_gain(positive, negative, labelled, **seen)
    return float(ends[0]), float(ends[1])
