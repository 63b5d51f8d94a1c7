"""`compare()` and `Comparison`: what an update changes, in metrics with intervals.

Counting belongs to `flipguard.engines`, and how a comparison is shown to `flipguard.render`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from flipguard.controls import NoiseFloor, count_as_one, distinct_controls, noise_floors
from flipguard.counts import FLIP_KINDS, FlipCounts, StatisticsLayout
from flipguard.engines import local
from flipguard.engines.pairing import settled
from flipguard.engines.plan import (
    NOTHING_MORE,
    Counted,
    CountingPlan,
    Details,
    Progress,
    RowCounts,
    Want,
    checked_wants,
)
from flipguard.engines.strangers import odd_spellings, refuse_strangers
from flipguard.errors import InputError, MissingExtraError
from flipguard.estimates import Estimate
from flipguard.formatting import json_text
from flipguard.groups import (
    Correction,
    Group,
    Groupings,
    counts_json,
    estimated_groups,
    grouping_of,
)
from flipguard.notes import notes
from flipguard.predictions.sides import (
    ColumnOrValues,
    Columns,
    GivenSide,
    checked_column_name,
    names_to_group_by,
)
from flipguard.predictions.table import ScoreKind

if TYPE_CHECKING:
    from flipguard.render.display import ComparisonDisplay

FlipKind = Literal["negative", "positive", "wrong_to_wrong", "changed"]
SCHEMA = "flipguard.comparison/1"

CORRECTIONS: tuple[Correction, ...] = ("holm", "benjamini-hochberg", "none")
ENGINES = ("local", "spark")
METRIC_COLUMNS = {
    "by": pl.String,
    "group": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What an update changes: `result["negative_flip_rate"]` is an `Estimate`.

    `print(result)` shows what `flipguard compare` prints.
    """

    old: str
    new: str
    controls: tuple[str, ...]
    confidence: float
    whole: Group
    rows: RowCounts
    by: Groupings
    noise_floor: tuple[NoiseFloor, ...]
    cluster: str | None
    clusters: int | None
    notes: tuple[str, ...]
    engine: str
    # How to read the samples again; None if only the counts are known.
    plan: CountingPlan | None = field(default=None, repr=False, compare=False)
    # Details of single samples that have been counted so far.
    details: Details = field(default_factory=Details, repr=False, compare=False)

    def __repr__(self) -> str:
        text = ", ".join(
            f"{name}={self[name].value:.4f}"
            for name in ("negative_flip_rate", "churn", "accuracy_gain")
        )
        groups = "".join(f", by {column}: {len(g)} groups" for column, g in self.by.items())
        return f"<Comparison {self.old!r} -> {self.new!r}, n={self.n:,}, {text}{groups}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        return self._display().html()

    def __str__(self) -> str:
        return self.summary()

    def summary(self, *, all_metrics: bool = False) -> str:
        """Return what `flipguard compare` prints; with `all_metrics`, what it prints with --all."""
        return self._display().text(all_metrics=all_metrics)

    def to_markdown(self) -> str:
        """Return the comparison as Markdown for a pull request."""
        return self._display().markdown()

    def to_frame(self) -> pl.DataFrame:
        """Return one row per metric, of all samples and then of each group."""
        groups: list[tuple[str | None, str | None, Group]] = [(None, None, self.whole)]
        groups += [(column, g.name, g) for column, grouping in self.by.items() for g in grouping]
        rows = [
            (column, name, metric, estimate.value, estimate.low, estimate.high, estimate.n)
            for column, name, group in groups
            for metric, estimate in group.items()
        ]
        return pl.DataFrame(rows, schema=METRIC_COLUMNS, orient="row")

    def grouped_by(self, columns: Iterable[str]) -> Comparison:
        """Return the comparison also by these columns; groups not counted yet are counted now."""
        missing = tuple(column for column in dict.fromkeys(columns) if column not in self.by)
        if not missing:
            return self
        if self.plan is None:
            raise InputError(
                f"This comparison has only counts and no rows; compare with by={list(missing)!r}."
            )
        by = (*self.plan.by, *missing)
        plan, _ = settled(replace(self.plan, by=by, readings=None, progress=None))
        counted = _count_with(self.engine)(plan, NOTHING_MORE)
        correction: Correction = next((one.correction for one in self.by.values()), "holm")
        grouped = comparison_from_counts(
            counted, plan, confidence=self.confidence, correction=correction, engine=self.engine
        )
        return replace(self, whole=grouped.whole, by=grouped.by, plan=plan)

    def _display(self) -> ComparisonDisplay:
        # Rendering is built on comparisons, so this import goes up and is made when it is needed.
        from flipguard.render.display import ComparisonDisplay

        return ComparisonDisplay(self)

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
    def layout(self) -> StatisticsLayout:
        """What the inputs contain, which decides the metrics that are defined."""
        return self.counts.layout

    def flips(self, kind: FlipKind | None = None) -> pl.DataFrame:
        """Return the samples whose label changed, worst first; of one kind, or of all kinds."""
        if kind is not None and kind not in FLIP_KINDS:
            raise InputError(
                f"Expected `kind` to be one of {', '.join(FLIP_KINDS)}, but got '{kind}'."
            )
        flips = self.with_details(["flips"]).flips
        if flips is None:
            raise AssertionError("Flips were counted but are missing.")
        return flips if kind is None else flips.filter(pl.col("kind") == kind)

    def with_details(self, wants: Iterable[Want]) -> Details:
        """Return the details that are wanted; those not counted yet are counted in one pass."""
        missing = checked_wants(wants) - self.details.counted
        if missing:
            if self.plan is None:
                raise InputError(
                    "This comparison has only counts and no rows; compare the files again."
                )
            self.details.add(local.details(self.plan, missing))
        return self.details

    def compared_ids(self, wanted: pl.Series) -> pl.Series | None:
        """Return the wanted ids that were compared, as text; None if rows have no ids."""
        if self.plan is None:
            raise InputError(
                "This comparison has only counts and no rows; compare the files again."
            )
        return local.compared_ids(self.plan, wanted)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as the values of its JSON document."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "old": self.old,
            "new": self.new,
            "n": self.n,
            "confidence": self.confidence,
            "counts": counts_json(self.counts),
            "rows": {
                "matched": self.rows.matched,
                "only_old": self.rows.only_old,
                "only_new": self.rows.only_new,
                **_first_ids(self.rows),
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
                {"name": name, "counts": counts_json(self.counts.control(i))}
                for i, name in enumerate(self.controls)
            ]
            document["noise_floor"] = {
                floor.metric: {
                    **{key: _finite(getattr(floor, key)) for key in ("value", "low", "high")},
                    "controls": [_finite(value) for value in floor.controls],
                    "verdict": floor.verdict,
                    "shows": _finite(floor.shows),
                    "five_show": _finite(floor.five_show),
                }
                for floor in self.noise_floor
            }
        if self.cluster is not None:
            document["cluster"] = {"column": self.cluster, "clusters": self.clusters}
        if self.details.thresholds is not None:
            document["thresholds"] = asdict(self.details.thresholds)
        if self.notes:
            document["notes"] = list(self.notes)
        return document

    def to_json(self) -> str:
        """Return the comparison as a JSON document."""
        return json_text(self.as_dict())


def _first_ids(rows: RowCounts) -> dict[str, list[object]]:
    """Return the first ids that only one file has, if there are any."""
    ids = {"only_old_ids": rows.ids_only_old, "only_new_ids": rows.ids_only_new}
    return {key: list(found) for key, found in ids.items() if found}


def _finite(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def compare(
    *,
    old: GivenSide,
    new: GivenSide,
    target: ColumnOrValues = None,
    id: ColumnOrValues = None,
    label: str | None = None,
    label_old: str | None = None,
    label_new: str | None = None,
    correct: str | None = None,
    scores: ScoreKind | None = None,
    class_names: Sequence[object] | None = None,
    positive_score: str | None = None,
    threshold: float | None = None,
    threshold_new: float | None = None,
    positive: object = None,
    name_old: str | None = None,
    name_new: str | None = None,
    by: str | Sequence[str] | None = (),
    control: GivenSide | Sequence[GivenSide] | None = (),
    cluster: str | None = None,
    confidence: float = 0.95,
    correction: Correction = "holm",
    on_missing: Literal["error", "drop"] = "error",
    exponent: float = 1.0,
    engine: str = "local",
    wants: Iterable[Want] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Return what the update from `old` to `new` changes, with intervals.

    `old`, `new` and each control are `Predictions`, the path of a prediction file or of a run, a
    table (pandas, Polars, Arrow), predicted labels, or `scores` of shape (samples, classes) with
    their `class_names`. `id`, `target`, `label` and `correct` (grades) name columns of files and
    tables, `"index"` the index of pandas; of labels and scores, `id` and `target` are values.
    `label_old` and `label_new` are the labels of one side, also of one table given as both.
    A row is `positive` if its `positive_score` is at least `threshold`, or `threshold_new` for new
    and controls. `wants` are details: `"flips"`, `"target_groups"`, `"distances"`, `"thresholds"`.

    >>> result = compare(old=[0, 1, 0, 0], new=[0, 1, 1, 1], target=[0, 1, 1, 0])
    >>> result["negative_flip_rate"].value, result["positive_flip_rate"].value
    (0.25, 0.25)
    """
    given = locals()
    check_choices(confidence, correction, on_missing, exponent, engine)
    checked_column_name(cluster, "cluster")
    columns = Columns(**{one.name: given[one.name] for one in fields(Columns)})
    sides = columns.sides(old=old, new=new, control=control, names=(name_old, name_new))
    more = {name: given[name] for name in ("cluster", "on_missing", "exponent", "progress")}
    plan, copies = distinct_controls(CountingPlan(**sides, **more, by=names_to_group_by(by)))
    plan, _ = settled(plan)
    count, wanted = _count_with(engine), _wanted(plan, wants, engine)
    counted = count(plan, wanted)
    if same_controls := count_as_one(plan, counted.whole.counts.total()):
        copies.append(same_controls)
        plan = replace(plan, controls=plan.controls[:1])
        counted = count(plan, wanted)
    notes = (*copies, *counted.notes, *_notes_on_classes(plan, counted, engine))
    asked: dict[str, Any] = {"confidence": confidence, "correction": correction, "engine": engine}
    return comparison_from_counts(replace(counted, notes=notes), plan, **asked)


def _wanted(plan: CountingPlan, wants: Iterable[Want], engine: str) -> frozenset[Want]:
    """Return the details to count; of scores with a threshold always the other thresholds."""
    scored: frozenset[Want] = frozenset({"thresholds"})
    is_scored = plan.new.binary is not None and engine == "local"
    return checked_wants(wants) | (scored if is_scored else NOTHING_MORE)


def _notes_on_classes(plan: CountingPlan, counted: Counted, engine: str) -> Iterator[str]:
    """Yield notes on odd spellings of classes; raise if models share no class."""
    if not plan.layout.graded and plan.old.binary is None:
        refuse_strangers(plan, _met(counted, len(plan.controls)))
    yield from odd_spellings(plan)
    if plan.new.binary is not None and plan.layout.has_target and engine == "spark":
        yield "the Spark engine does not try other thresholds of the new model"


def _met(counted: Counted, controls: int) -> list[bool]:
    """Return for old, new and each control whether a label equals a target or another label."""
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
    """Refuse options that are not valid for a comparison."""
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
        raise InputError(
            f"Expected `engine` to be one of {', '.join(ENGINES)}, but got '{engine}'."
        )


def _count_with(engine: str) -> Callable[[CountingPlan, frozenset[Want]], Counted]:
    """Return the function with which an engine counts."""
    if engine == "spark":
        try:
            from flipguard.engines import spark
        except ModuleNotFoundError as problem:
            package = problem.name or "pyarrow"
            raise MissingExtraError("The Spark engine", package=package, extra="spark") from problem

        return spark.count
    return local.count


def comparison_from_counts(
    counted: Counted,
    plan: CountingPlan,
    *,
    confidence: float,
    correction: Correction,
    engine: str,
) -> Comparison:
    """Return the comparison with the estimates of these counts."""
    clustered = plan.cluster is not None
    whole = estimated_groups(counted.whole, confidence, clustered=clustered)[0]
    by = Groupings(
        (column, grouping_of(column, groups, confidence, correction, clustered=clustered))
        for column, groups in counted.by.items()
    )
    return Comparison(
        old=plan.old.name,
        new=plan.new.name,
        controls=tuple(control.name for control in plan.controls),
        confidence=confidence,
        whole=whole,
        rows=counted.rows,
        by=by,
        noise_floor=noise_floors(whole, confidence),
        cluster=plan.cluster,
        clusters=len(counted.whole.counts) if clustered else None,
        notes=(*notes(whole, plan), *counted.notes),
        engine=engine,
        plan=plan,
        details=counted.details,
    )
