"""Sums over paired rows, lists of flipped rows, and checks of paired rows.

What a flip is belongs to `row_kinds`, column names to `plan`, counting to `local`, `scored` and
`spark`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from flipguard.counts import ANSWERS, FLIP_CONFIDENCES, FLIP_KINDS, control_name, joint_name
from flipguard.engines.grades import GRADES
from flipguard.engines.plan import (
    ID,
    LABELS,
    NEW,
    OLD,
    TARGET,
    CountingPlan,
    control_column,
    group_column,
    score_column,
)
from flipguard.engines.row_kinds import SUMMED, RowKind, row_kind, total

# Columns of a flip if the model gives one score per row.
FLIP_SCORES = ("old_score", "new_score")
RESERVED = ("id", "kind", "target", "old", "new", *FLIP_CONFIDENCES, *FLIP_SCORES)
ROW = "__row"


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition that no row may meet, and the error message for it."""

    where: pl.Expr
    sentence: Callable[[str], str]
    # Columns whose values are shown after the id of each row that is named.
    values: tuple[str, ...] = ()


def no_label(i: int, name: str, column: str | None) -> RowCheck:
    """A row without a predicted class."""
    return RowCheck(
        pl.col(f"{i}|label").is_null(),
        lambda rows: (
            f"{name} has no predicted class in column '{column}' for {rows}; "
            "give every row a label, or leave the row out."
        ),
    )


def no_score(i: int, name: str, column: str) -> RowCheck:
    """A row whose score of the positive class cannot be compared with a threshold."""
    return RowCheck(
        pl.col(f"{i}|label").is_null(),
        lambda rows: (
            f"{name} has no score in column '{column}' for {rows}, or one that is NaN, infinite or "
            "no number; give every row a finite number with a decimal point, or leave the row out."
        ),
    )


def no_grade(i: int, name: str, column: str, *, found: bool) -> RowCheck:
    """A row whose grade is missing, or is no grade; `found`: the column was not named."""
    way_out = ", or rename the column if it holds no grades" if found else ""
    return RowCheck(
        ~pl.col(f"{i}|grade").is_in(GRADES).fill_null(False),
        lambda rows: (
            f"{name} has no grade in column '{column}' for {rows}; write 0 or 1, true or false, "
            f"pass or fail, C or I, or one of error, refused and unparsed{way_out}."
        ),
        (f"{i}|grade",),
    )


def no_cluster(i: int, place: int, cluster: str, name: str) -> RowCheck:
    """A row of no cluster, where rows are clustered."""
    return RowCheck(
        pl.col(f"{i}|cut|{place}").is_null(),
        lambda ids: (
            f"{name} has no value in column '{cluster}', by which rows are clustered, for "
            f"{ids}; give every row a cluster, or leave the row out."
        ),
    )


def two_targets(i: int, j: int, first: str, second: str, *, by_position: bool) -> RowCheck:
    """A sample with two true classes."""
    way_out = "correct the wrong file, or leave the target out of it"
    if by_position:
        way_out = (
            "rows are matched by their position, so the files must have one order: name a column "
            "of ids with `id=` if there is one, or correct the wrong target"
        )
    return RowCheck(
        (pl.col(f"{i}|target") != pl.col(f"{j}|target")).fill_null(False),
        lambda rows: (
            f"{first} and {second} disagree on the target of {rows}; a sample has one true class: "
            f"{way_out}."
        ),
        (f"{i}|target", f"{j}|target"),
    )


def two_cuts(place: int, cut: str, old: str, new: str) -> RowCheck:
    """A sample in two groups of one column."""
    return RowCheck(
        pl.col(f"0|cut|{place}").ne_missing(pl.col(f"1|cut|{place}")),
        lambda rows: (
            f"{old} and {new} disagree on column '{cut}' of {rows}, so it cannot group "
            "their rows; leave the column out of one of them."
        ),
    )


# -- sums over rows ----------------------------------------------------------------------------


def label_sums(plan: CountingPlan) -> list[pl.Expr]:
    """All sums that need no class scores."""
    kind = row_kind(plan)
    return [*kind.cell_sums(), *kind.own_sums(), *_control_sums(kind, len(plan.controls))]


def _control_sums(rows: RowKind, controls: int) -> list[pl.Expr]:
    """New and the controls: the joint counts of their flips, and each control's own cells."""
    if not controls:
        return []
    columns = [control_column(i) for i in range(controls)]
    sums: list[pl.Expr] = []
    for kind in ("churn", "negative_flip"):
        known = pl.lit(True) if kind == "churn" else rows.is_known()
        new_flips, *flips = [
            rows.differs(label)
            if kind == "churn"
            else rows.is_negative_flip(label).fill_null(False)
            for label in (NEW, *columns)
        ]
        how_many = pl.sum_horizontal([flip.cast(pl.Int32) for flip in flips])
        for new in (0, 1):
            for flagged in range(controls + 1):
                hit = known & (new_flips if new else ~new_flips) & (how_many == flagged)
                sums.append(total(hit).alias(joint_name(kind, new, flagged)))
    for i, column in enumerate(columns):
        names = tuple(control_name(i, cell) for cell in SUMMED)
        sums += rows.cell_sums(column, names)
        sums += rows.answer_sums(column, tuple(control_name(i, answer) for answer in ANSWERS))
    return sums


# -- the flipped rows themselves ---------------------------------------------------------------


def flip_rows(rows: pl.LazyFrame, plan: CountingPlan) -> pl.LazyFrame:
    """The flipped rows of a paired table, under names that users read.

    Files without ids are in one order, so the number in column `ROW` stands for the id.
    """
    names = rows.collect_schema().names()
    order = SUMMED
    kinds = {order.index(cell): kind for kind, cell in FLIP_KINDS.items()}
    kind = row_kind(plan)
    return rows.filter(kind.is_listed()).select(
        (pl.col(ID) if ID in names else pl.col(ROW).cast(pl.Int64)).alias("id"),
        kind.cell_index().replace_strict(kinds, return_dtype=pl.String).alias("kind"),
        pl.col(TARGET).alias("target"),
        kind.answer(OLD).alias("old"),
        kind.answer(NEW).alias("new"),
        *[pl.col(c) for c in FLIP_CONFIDENCES if c in names],
        *[
            pl.col(score_column(label)).alias(name)
            for label, name in zip(LABELS, FLIP_SCORES, strict=True)
            if score_column(label) in names
        ],
        *[
            pl.col(group_column(place)).alias(cut)
            for place, cut in enumerate(plan.cuts)
            if cut not in RESERVED
        ],
    )


def worst_first(flips: pl.DataFrame, plan: CountingPlan) -> pl.DataFrame:
    """Sort negative flips first; within a kind, by the confidence of the better answer.

    Of a negative flip that is old's confidence in the right class; of a positive flip new's; of a
    change from wrong to wrong, new's confidence in its wrong answer. With one score per row: by how
    far new's score is from its threshold.
    """
    rank = pl.col("kind").replace_strict({kind: i for i, kind in enumerate(FLIP_KINDS)})
    keys: list[pl.Expr] = [rank]
    if "old_target_confidence" in flips.columns:
        nothing = pl.lit(None, dtype=pl.Float64)
        keys.append(
            -pl.when(pl.col("kind") == "negative")
            .then(pl.col("old_target_confidence"))
            .when(pl.col("kind") == "positive")
            .then(pl.col("new_target_confidence") if "new_target_confidence" in flips else nothing)
            .otherwise(pl.col("new_confidence") if "new_confidence" in flips else nothing)
        )
    if plan.new.binary is not None:
        keys.append(-(pl.col("new_score") - plan.new.binary.threshold).abs())
    return flips.sort([*keys, pl.col("id")], nulls_last=True)
