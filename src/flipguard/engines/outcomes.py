"""The definition of a flip as Polars expressions, sums of them, and checks of paired rows.

Column names belong to `plan`; counting belongs to `local`, `scored` and `spark`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from flipguard.counts import (
    CELLS,
    FLIP_CONFIDENCES,
    FLIP_KINDS,
    UNLABELLED,
    control_name,
    joint_name,
)
from flipguard.engines.plan import ID, NEW, OLD, TARGET, CountingPlan, control_column, group_column

RESERVED = ("id", "kind", "target", "old", "new", *FLIP_CONFIDENCES)
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


def no_cluster(i: int, place: int, cluster: str, name: str) -> RowCheck:
    """A row of no cluster, where rows are clustered."""
    return RowCheck(
        pl.col(f"{i}|cut|{place}").is_null(),
        lambda ids: (
            f"{name} has no value in column '{cluster}', by which rows are clustered, for "
            f"{ids}; give every row a cluster, or leave the row out."
        ),
    )


def two_targets(i: int, j: int, first: str, second: str) -> RowCheck:
    """A sample with two true classes."""
    return RowCheck(
        (pl.col(f"{i}|target") != pl.col(f"{j}|target")).fill_null(False),
        lambda rows: (
            f"{first} and {second} disagree on the target of {rows}; a sample has one true class: "
            "correct the wrong file, or leave the target out of it."
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


# -- one row -----------------------------------------------------------------------------------


def is_right(label: str) -> pl.Expr:
    """Whether a label is the target; null where the target is unknown."""
    return pl.col(label) == pl.col(TARGET)


def differs(label: str = NEW) -> pl.Expr:
    """Whether a label is not that of old."""
    return pl.col(OLD) != pl.col(label)


def is_negative_flip(label: str = NEW) -> pl.Expr:
    """Whether old is right and a label is not; null where the target is unknown."""
    return is_right(OLD) & ~is_right(label)


def cell_index() -> pl.Expr:
    """The index of a row's cell among `CELLS` and `UNLABELLED`."""
    return (
        pl.when(pl.col(TARGET).is_null())
        .then(pl.when(differs()).then(6).otherwise(5))
        .when(is_negative_flip())
        .then(1)
        .when(is_right(OLD))
        .then(0)
        .when(is_right(NEW))
        .then(2)
        .when(differs())
        .then(4)
        .otherwise(3)
        .cast(pl.Int8)
    )


# -- sums over rows ----------------------------------------------------------------------------


def cell_sums(label: str = NEW, names: tuple[str, ...] = (*CELLS, *UNLABELLED)) -> list[pl.Expr]:
    """The seven counts of old against one other label; rows with a null target are unlabelled."""
    same, unknown = ~differs(label), pl.col(TARGET).is_null()

    # A comparison with a null target is null, and sums pass over it. Four sums and two lengths
    # give the seven cells with fewer passes over the data than seven masks would.
    both_right = _sum(is_right(OLD) & is_right(label))
    n_old_right, n_new_right = _sum(is_right(OLD)), _sum(is_right(label))
    same_unlabelled = _sum(same & unknown)
    n_unlabelled = pl.col(TARGET).null_count().cast(pl.Int64)
    n_labelled = pl.len().cast(pl.Int64) - n_unlabelled
    negative, positive = n_old_right - both_right, n_new_right - both_right
    wrong_same = _sum(same) - same_unlabelled - both_right
    cells = {
        "both_right": both_right,
        "negative_flip": negative,
        "positive_flip": positive,
        "wrong_same": wrong_same,
        "wrong_different": n_labelled - both_right - negative - positive - wrong_same,
        "unlabelled_same": same_unlabelled,
        "unlabelled_different": n_unlabelled - same_unlabelled,
    }
    plain = (*CELLS, *UNLABELLED)
    return [cells[cell].alias(name) for cell, name in zip(plain, names, strict=True)]


def control_sums(controls: int) -> list[pl.Expr]:
    """New and the controls: the joint counts of their flips, and each control's own cells."""
    if not controls:
        return []
    columns = [control_column(i) for i in range(controls)]
    sums: list[pl.Expr] = []
    for kind in ("churn", "negative_flip"):
        known = pl.lit(True) if kind == "churn" else pl.col(TARGET).is_not_null()
        new_flips, *flips = [
            differs(label) if kind == "churn" else is_negative_flip(label).fill_null(False)
            for label in (NEW, *columns)
        ]
        how_many = pl.sum_horizontal([flip.cast(pl.Int32) for flip in flips])
        for new in (0, 1):
            for flagged in range(controls + 1):
                hit = known & (new_flips if new else ~new_flips) & (how_many == flagged)
                sums.append(_sum(hit).alias(joint_name(kind, new, flagged)))
    for i, column in enumerate(columns):
        names = tuple(control_name(i, cell) for cell in (*CELLS, *UNLABELLED))
        sums += cell_sums(column, names)
    return sums


def _sum(condition: pl.Expr) -> pl.Expr:
    return condition.sum().cast(pl.Int64)


# -- the flipped rows themselves ---------------------------------------------------------------


def flip_rows(rows: pl.LazyFrame, plan: CountingPlan) -> pl.LazyFrame:
    """The rows of a paired table whose labels differ, under names that users read.

    Files without ids are in one order, so the number in column `ROW` stands for the id.
    """
    names = rows.collect_schema().names()
    order = (*CELLS, *UNLABELLED)
    kinds = {order.index(cell): kind for kind, cell in FLIP_KINDS.items()}
    return rows.filter(differs()).select(
        (pl.col(ID) if ID in names else pl.col(ROW).cast(pl.Int64)).alias("id"),
        cell_index().replace_strict(kinds, return_dtype=pl.String).alias("kind"),
        pl.col(TARGET).alias("target"),
        pl.col(OLD).alias("old"),
        pl.col(NEW).alias("new"),
        *[pl.col(c) for c in FLIP_CONFIDENCES if c in names],
        *[
            pl.col(group_column(place)).alias(cut)
            for place, cut in enumerate(plan.cuts)
            if cut not in RESERVED
        ],
    )


def worst_first(flips: pl.DataFrame) -> pl.DataFrame:
    """Sort negative flips first; within a kind, by the confidence of the better answer.

    Of a negative flip that is old's confidence in the right class; of a positive flip new's; of a
    change from wrong to wrong, new's confidence in its wrong answer.
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
    return flips.sort([*keys, pl.col("id")], nulls_last=True)
