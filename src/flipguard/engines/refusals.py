"""Pairs of rows that cannot be compared, and the sentence for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows that must not be, and the sentence for them."""

    where: pl.Expr
    sentence: Callable[[str], str]


def no_label(i: int, name: str, column: str | None) -> Refusal:
    """A row without a predicted class."""
    return Refusal(
        pl.col(f"{i}|label").is_null(),
        lambda rows: (
            f"{name} has no predicted class in column '{column}' for {rows}; "
            "give every row a label, or leave the row out."
        ),
    )


def no_cluster(i: int, place: int, cluster: str, name: str) -> Refusal:
    """A row of no cluster, where rows are clustered."""
    return Refusal(
        pl.col(f"{i}|cut|{place}").is_null(),
        lambda ids: (
            f"{name} has no value in column '{cluster}', by which rows are clustered, for "
            f"{ids}; give every row a cluster, or leave the row out."
        ),
    )


def two_targets(i: int, j: int, first: str, second: str) -> Refusal:
    """A sample with two true classes."""
    return Refusal(
        (pl.col(f"{i}|target") != pl.col(f"{j}|target")).fill_null(False),
        lambda rows: (
            f"{first} and {second} disagree on the target of {rows}; a sample has one true class: "
            "correct the wrong file, or leave the target out of it."
        ),
    )


def two_cuts(place: int, cut: str, old: str, new: str) -> Refusal:
    """A sample in two groups of one column."""
    return Refusal(
        pl.col(f"0|cut|{place}").ne_missing(pl.col(f"1|cut|{place}")),
        lambda rows: (
            f"{old} and {new} disagree on column '{cut}' of {rows}, so it cannot group "
            "their rows; leave the column out of one of them."
        ),
    )
