"""The flipped samples themselves, worst first."""

from __future__ import annotations

import polars as pl

from flipguard.engines.expressions import NEW, OLD, TARGET, cut_column
from flipguard.engines.pairing import ID
from flipguard.engines.plan import CountingPlan

KINDS = ("negative", "positive", "wrong_to_wrong", "changed")
CONFIDENCES = ("old_confidence", "new_confidence", "old_target_confidence", "new_target_confidence")


def flip_rows(canonical: pl.LazyFrame, plan: CountingPlan) -> pl.LazyFrame:
    """The rows of a paired table whose labels differ, under names that users read."""
    old, new, target = pl.col(OLD), pl.col(NEW), pl.col(TARGET)
    names = canonical.collect_schema().names()
    kind = (
        pl.when(target.is_null())
        .then(pl.lit("changed"))
        .when(old == target)
        .then(pl.lit("negative"))
        .when(new == target)
        .then(pl.lit("positive"))
        .otherwise(pl.lit("wrong_to_wrong"))
    )
    # Files without ids are in one order, so the row number is what they have in common.
    row = pl.col(ID) if ID in names else pl.col("__row").cast(pl.Int64)
    frame = canonical if ID in names or "__row" in names else canonical.with_row_index("__row")
    return frame.filter(old != new).select(
        row.alias("id"),
        kind.alias("kind"),
        target.alias("target"),
        old.alias("old"),
        new.alias("new"),
        *[pl.col(c) for c in CONFIDENCES if c in names],
        *[
            pl.col(cut_column(place)).alias(cut)
            for place, cut in enumerate(plan.cuts)
            if cut not in RESERVED
        ],
    )


RESERVED = ("id", "kind", "target", "old", "new", *CONFIDENCES)


def worst_first(flips: pl.DataFrame) -> pl.DataFrame:
    """Negative flips before others; within a kind, by how sure the better answer was.

    Of a negative flip that is old's confidence in the right class; of a positive flip new's; of a
    change from wrong to wrong, new's confidence in its wrong answer.
    """
    rank = pl.col("kind").replace_strict({kind: i for i, kind in enumerate(KINDS)})
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
