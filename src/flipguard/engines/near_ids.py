"""Find why ids of two files do not meet: they are spelled, or counted, in two ways."""

from __future__ import annotations

import polars as pl

from flipguard.errors import listed

# Ids of one file only that are looked at, and the share of them that a cause must explain.
MOST_IDS = 10_000
LEAST_SHARE = 0.5

TEXT = pl.col("text")
ZEROS = r"^(\D*)0+([0-9])"
# What may differ, and the spelling in which ids are then equal; the simplest cause comes first.
CAUSES: dict[str, pl.Expr] = {
    "blanks": TEXT.str.replace_all(r"\s+", ""),
    "upper and lower case": TEXT.str.to_lowercase(),
    "leading zeros": TEXT.str.replace(ZEROS, "${1}${2}"),
    "decimals": TEXT.str.replace(r"^(-?[0-9]+)\.0*$", "${1}"),
    "text around a number": TEXT.str.extract(r"([0-9]+)\D*$").str.replace(ZEROS, "${1}${2}"),
}


def why_ids_differ(have: pl.LazyFrame, lack: pl.LazyFrame, names: tuple[str, str]) -> str:
    """Return a sentence about ids that one file has and another lacks; empty if none is likely.

    Both tables have one column `id` of a common type.
    """
    text = pl.col("id").cast(pl.String).alias("text")
    if shift := _shift(have.select(text), lack.select(text)):
        first = have.select(text).head(1).collect()["text"].to_list()
        return (
            f" The ids of {names[1]} are those of {names[0]} {shift:+,d} ({listed(first)} is the "
            "first): count both from the same number."
        )
    only = have.join(lack, on="id", how="anti").select(text).head(MOST_IDS).collect()
    others = lack.join(have, on="id", how="anti").select(text)
    best, pairs = "", pl.DataFrame()
    for cause, spelling in CAUSES.items():
        one = only.lazy().with_columns(spelling.alias("key")).drop_nulls()
        other = others.with_columns(spelling.alias("key")).drop_nulls().unique("key")
        found = one.join(other, on="key", maintain_order="left").collect()
        if found.height > max(pairs.height, LEAST_SHARE * only.height - 1e-9):
            best, pairs = cause, found
    if not pairs.height:
        return ""
    mine, theirs = listed([pairs["text"][0]]), listed([pairs["text_right"][0]])
    return (
        f" They differ in {best}: {names[0]} has {mine} where {names[1]} has {theirs}; write ids "
        "in one way."
    )


def _shift(have: pl.LazyFrame, lack: pl.LazyFrame) -> int:
    """Return by how much the ids of one file are larger, if both count all rows; otherwise 0."""
    ends = []
    for frame in (have, lack):
        number = pl.col("text").cast(pl.Int64, strict=False)
        facts = frame.select(
            number.min().alias("low"),
            number.max().alias("high"),
            number.count().alias("n"),
            pl.len().alias("rows"),
        )
        low, high, n, rows = facts.collect(engine="streaming").row(0)
        if n < rows or n < 2 or high - low + 1 != n:
            return 0
        ends.append((low, high))
    (low, high), (other_low, other_high) = ends
    return int(other_low - low) if other_low - low == other_high - high else 0
