"""Notes: unusual properties of the files that a reader should know before using the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from flipguard.counts import FloatArray
from flipguard.engines.classes import TEXT, dtype_of, spelled
from flipguard.engines.pairing import settled
from flipguard.engines.plan import CountingPlan
from flipguard.engines.readings import lacks
from flipguard.errors import listed
from flipguard.groups import Group
from flipguard.predictions.names import score_like, suggestion, well_known
from flipguard.predictions.sides import columns_taken
from flipguard.predictions.table import Predictions

# How other tools write a missing value as text; flipguard takes these texts as class names.
MISSING_SPELLINGS = ("NA", "N/A", "null", "None", "NaN", "nan")
# A note is shown if the effective number of clusters is less than a fourth of their number. In
# simulations, intervals did not keep their confidence with sizes that uneven.
MOST_UNEVEN = 4


def notes(whole: Group, plan: CountingPlan) -> Iterator[str]:
    """Yield one clause per unusual property of the files of a comparison."""
    if plan.old.id is None:
        yield "rows were matched by their position, not by an id" + _hint(
            "id", (plan.old, plan.new)
        )
    yield from columns_taken(plan.sides)
    counts = whole.counts
    if not counts.layout.has_target and (hint := _hint("target", plan.sides)):
        yield "there is no target column, so only churn is measured" + hint
    if counts.layout.has_target and counts.labelled < counts.rows:
        yield (
            f"{counts.rows - counts.labelled:,.0f} of {counts.rows:,.0f} rows have no target and "
            "count only towards churn"
        )
    yield from _missing_spellings(plan)
    if counts.different == 0:
        same = "label" if counts.layout.has_labels else "grade"
        yield f"old and new give every sample the same {same}; are these the files you meant?"
    yield from _infinite_ratios(whole)
    yield from _of_clusters(whole)
    yield from _new_classes(plan)
    yield from _unused_scores(plan)
    yield from _unused_grades(plan)
    # If a model is never right, predictions and targets probably spell the classes differently.
    right = {plan.old.name: counts.old_right, plan.new.name: counts.new_right}
    for name, count in right.items():
        if counts.labelled > 0 and count == 0 and counts.layout.graded:
            yield f"{name}: no sample is graded as right; check the column of grades"
        elif counts.labelled > 0 and count == 0 and plan.old.binary is not None:
            yield f"{name}: every prediction is wrong; does a high score mean the other class?"
        elif counts.labelled > 0 and count == 0:
            yield (
                f"{name}: no prediction equals its target; check that predictions and targets "
                "use the same class names (3 and cat are different names)"
            )


def _infinite_ratios(whole: Group) -> Iterator[str]:
    """Yield a note per ratio to controls that have no flip."""
    counts = whole.counts
    for metric, kind, flips in (
        ("churn_ratio", "churn", "changed label"),
        ("negative_flip_ratio", "negative_flip", "negative flip"),
    ):
        if math.isinf(whole[metric].value):
            new = counts.joint(kind)[1].sum()
            many = "" if new == 1 else "s"
            yield f"{metric} is infinite: new has {new:,.0f} {flips}{many}, and no control has any"


def forgotten_target(plan: CountingPlan | None) -> str:
    """Return a hint that names a column which may contain the targets; empty if there is none."""
    return _hint("target", plan.sides) if plan is not None else ""


def _hint(role: str, sides: tuple[Predictions, ...]) -> str:
    """Return a hint that names the first file with a column that may have a missing role."""
    for side in sides:
        columns = [
            c for c in side.columns if c not in (side.id, side.target, side.label, side.correct)
        ]
        if well_known(role, columns):
            found = listed(well_known(role, columns))
            return f"; {side.name} has a column {found}: try {suggestion(columns, [role])}"
    return ""


def _of_clusters(whole: Group) -> Iterator[str]:
    """Yield a note if there is one cluster, or if cluster sizes are very uneven."""
    clusters = whole.sample.clusters
    if clusters is None:
        return
    if len(clusters) < 2:
        yield "all samples belong to one cluster, so there are no intervals"
        return
    rows = clusters.rows
    if are_uneven(rows):
        share = 100 * rows.max() / rows.sum()
        yield (
            f"the largest of {len(clusters):,} clusters holds {share:.0f} % of the rows; "
            "intervals assume that large clusters flip as often as small ones"
        )


def are_uneven(sizes: FloatArray) -> bool:
    """Return whether intervals may be too narrow for such sizes if flips depend on the size."""
    # The effective number of clusters: as many of equal size would have the same sum of squared
    # shares of rows.
    effective = sizes.sum() ** 2 / (sizes**2).sum()
    return bool(effective < len(sizes) / MOST_UNEVEN)


def _new_classes(plan: CountingPlan) -> Iterator[str]:
    """Yield notes on classes that one model's scores have and the other's lack."""
    old, new = plan.old.class_names, plan.new.class_names
    if old is None or new is None or set(old) == set(new):
        return
    for i, (side, known, other) in enumerate(((plan.old, old, new), (plan.new, new, old))):
        missing = [c for c in other if c not in set(known)]
        predicted = _predicted(plan, i, missing)
        unknown = [c for c in missing if c not in predicted]
        gone = _left_out(plan, unknown)
        if gone:
            yield (
                f"{side.name} does not know class {listed(gone)}, so no samples of it are compared"
            )
        if unknown := [c for c in unknown if c not in gone]:
            yield (
                f"{side.name} does not know class {listed(unknown)}, so it is wrong on all its "
                "samples"
            )
        if predicted:
            yield (
                f"{side.name} predicts class {listed(predicted)} in its labels, but its scores "
                "have no column for it; metrics that use these scores, such as calibration and "
                "margin, are computed without it"
            )


def _predicted(plan: CountingPlan, index: int, classes: list[str]) -> list[str]:
    """Return those of some classes that a model's column of labels contains."""
    side = plan.sides[index]
    if side.label is None or not classes:
        return []
    _, readings = settled(plan)
    label = spelled(side.label, side, pl.String(), readings.of(index, "label")).alias("label")
    found = side.frame.select(label.unique()).collect(engine="streaming")["label"]
    return [c for c in classes if c in set(found)]


def _left_out(plan: CountingPlan, classes: list[str]) -> list[str]:
    """Return those of some classes whose samples are not compared, because a file has none."""
    if plan.on_missing != "drop" or not classes:
        return []
    _, readings = settled(plan)
    gone = set()
    for i, side in enumerate((plan.old, plan.new)):
        if side.target is not None:
            target = spelled(side.target, side, pl.String(), readings.of(i, "target"))
            found = side.frame.select(target.alias("target").unique()).collect(engine="streaming")
            gone |= set(classes) - set(found["target"])
    return [c for c in classes if c in gone]


def _missing_spellings(plan: CountingPlan) -> Iterator[str]:
    """Yield notes on text targets that look like missing values, for the first file with any."""
    plan, readings = settled(plan)
    for i, side in enumerate(plan.sides):
        if side.target is None or dtype_of(side, side.target) not in TEXT:
            continue
        if lacks(side.paths, [spelling[0].encode() for spelling in MISSING_SPELLINGS]):
            continue
        target = spelled(side.target, side, pl.String(), readings.of(i, "target"))
        odd = side.frame.select(target.alias("target")).filter(
            pl.col("target").is_in(MISSING_SPELLINGS)
        )
        found = odd.group_by("target").len().sort("target").collect(engine="streaming")
        for spelling, n in found.iter_rows():
            yield (
                f"{side.name}: {n:,} target{'s are' if n > 1 else ' is'} the text '{spelling}', "
                "which counts as a class name; leave a missing target empty"
            )
        if found.height:
            return


def _unused_scores(plan: CountingPlan) -> Iterator[str]:
    """Yield a note per file with columns that are named like class scores but were not used."""
    for side in (plan.old, plan.new):
        uses_none = side.scores is None and side.binary is None
        found = score_like(side.columns) if uses_none else []
        if found:
            yield (
                f"{side.name} has columns named like class scores that were not used: "
                f"{listed(found)}; to use them, give at least two columns, named logit_<class> or "
                "probability_<class>"
            )


def _unused_grades(plan: CountingPlan) -> Iterator[str]:
    """Yield a note if files have columns that are named like grades but were not used."""
    if plan.layout.graded or not plan.layout.has_target:
        return
    found: dict[str, list[str]] = {}
    for side in plan.sides:
        used = {side.id, side.target, side.label, *plan.cuts}
        for column in well_known("correct", [c for c in side.columns if c not in used])[:1]:
            found.setdefault(column, []).append(side.name)
    for column, names in found.items():
        has = "has" if len(dict.fromkeys(names)) == 1 else "have"
        yield (
            f"{', '.join(dict.fromkeys(names))} {has} a column {column!r} that was not used, "
            "because rows are right where the label is the target; if it holds the grades to use, "
            f"give `correct={column!r}`"
        )
