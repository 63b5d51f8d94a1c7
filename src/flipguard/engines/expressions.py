"""The cells of the comparison as table expressions, over columns old, new, target, control0, …"""

from __future__ import annotations

import polars as pl

from flipguard.counts import CELLS, UNLABELLED, control_name, joint_name

OLD, NEW, TARGET = "__old", "__new", "__target"


def control_column(index: int) -> str:
    """The labels of one control in a paired table."""
    return f"__control{index}"


def cut_column(index: int) -> str:
    """A grouping column in a paired table, by its place among them: no user's name can clash."""
    return f"__cut{index}"


def cell_sums(new: str = NEW, names: tuple[str, ...] = (*CELLS, *UNLABELLED)) -> list[pl.Expr]:
    """The seven counts of old against one other model; rows with a null target are unlabelled."""
    old, other, target = pl.col(OLD), pl.col(new), pl.col(TARGET)
    old_right, new_right, same = old == target, other == target, old == other
    unknown = target.is_null()

    # A comparison with a null target is null, and sums pass over it. Four sums and two lengths
    # give the seven cells with fewer passes over the data than seven masks would.
    both_right = _sum(old_right & new_right)
    n_old_right, n_new_right = _sum(old_right), _sum(new_right)
    same_unlabelled = _sum(same & unknown)
    n_unlabelled = target.null_count().cast(pl.Int64)
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
    """New beside the controls: the joint counts of their flips, and each control's own cells."""
    sums: list[pl.Expr] = []
    old, target = pl.col(OLD), pl.col(TARGET)
    for kind in ("churn", "negative_flip"):

        def flagged(column: str, kind: str = kind) -> pl.Expr:
            other = pl.col(column)
            if kind == "churn":
                return old != other
            return ((old == target) & (other != target)).fill_null(False)

        known = pl.lit(True) if kind == "churn" else target.is_not_null()
        new_flag = flagged(NEW)
        how_many = pl.sum_horizontal(
            [flagged(control_column(i)).cast(pl.Int32) for i in range(controls)]
        )
        for new in (0, 1):
            for j in range(controls + 1):
                hit = known & (new_flag if new else ~new_flag) & (how_many == j)
                sums.append(_sum(hit).alias(joint_name(kind, new, j)))
    for i in range(controls):
        names = tuple(control_name(i, cell) for cell in (*CELLS, *UNLABELLED))
        sums += cell_sums(control_column(i), names)
    return sums


def _sum(condition: pl.Expr) -> pl.Expr:
    return condition.sum().cast(pl.Int64)
