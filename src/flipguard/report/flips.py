"""The flipped samples that the page holds, column by column and up to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from flipguard.comparison import Comparison
from flipguard.counts import FLIP_CONFIDENCES
from flipguard.render.numbers import LONGEST_NAME, visible
from flipguard.report.samples import Sampled, Samples

MOST_FLIPS = 10_000
MOST_FLOWS = 60
SEED = 20210619
KIND_WORDS = {
    "negative": "negative flip",
    "positive": "positive flip",
    "wrong_to_wrong": "wrong to other wrong",
    "changed": "changed (no target)",
}
FIXED = ("id", "kind", "target", "old", "new", *FLIP_CONFIDENCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of repeated values: the distinct values, and one index into them per row."""

    values: tuple[str, ...]
    codes: tuple[int, ...]

    @classmethod
    def of(cls, series: pl.Series) -> Column:
        """Encode a series; values are made safe to show, and a missing value is a dash."""
        texts = series.cast(pl.String).fill_null("–")
        names = texts.unique(maintain_order=True)
        places = {name: i for i, name in enumerate(names)}
        return cls(
            values=tuple(visible(name) for name in names),
            codes=tuple(places[text] for text in texts),
        )

    def __getitem__(self, row: int) -> str:
        return self.values[self.codes[row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipTable:
    """The flips that the page holds, worst first, and how many there are of each kind."""

    totals: dict[str, int]
    kept: dict[str, int]
    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    target: Column
    old: Column
    new: Column
    confidences: dict[str, tuple[float | None, ...]]
    groups: dict[str, Column]
    sampled: Sampled | None = field(default=None)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def total(self) -> int:
        """The number of all flips, including those that the page leaves out."""
        return sum(self.totals.values())

    def as_json(self) -> dict[str, Any]:
        """The table as the page's script reads it."""
        names = list(KIND_WORDS)
        document: dict[str, Any] = {
            "kinds": [KIND_WORDS[name] for name in names],
            "id": self.ids,
            "kind": [names.index(kind) for kind in self.kinds],
            "target": _coded(self.target),
            "old": _coded(self.old),
            "new": _coded(self.new),
            "confidences": self.confidences,
            "groups": [{"name": visible(name), **_coded(c)} for name, c in self.groups.items()],
        }
        if self.sampled is not None:
            document["samples"] = self.sampled.as_json()
        return document


def _coded(column: Column) -> dict[str, Any]:
    return {"values": column.values, "codes": column.codes}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChange:
    """The number of samples of one class that changed from one answer to another."""

    kind: str
    target: str
    old: str
    new: str
    samples: int
    share: str


def flips_of(result: Comparison) -> pl.DataFrame | None:
    """The flipped samples of a comparison; None if its rows are no longer available."""
    return None if result.plan is None else result.flips()


def flip_table(
    flips: pl.DataFrame, *, samples: Samples | None, budget: int, most: int = MOST_FLIPS
) -> FlipTable:
    """The worst flips of each kind, with samples up to a budget in bytes."""
    totals = dict(flips.group_by("kind").len().iter_rows())
    totals = {kind: totals[kind] for kind in KIND_WORDS if kind in totals}
    kept = fair_shares(totals, most)
    # Flips are sorted worst first within a kind, so the head of each kind is kept.
    heads = [flips.filter(pl.col("kind") == kind).head(n) for kind, n in kept.items()]
    part = pl.concat([flips.head(0), *heads])
    sampled = None
    if samples is not None:
        order = fair_order(part, seed=SEED)
        sampled = samples.of(part["id"].cast(pl.String).to_list(), order=order, budget=budget)
    confidences = {
        name: tuple(None if v is None else round(v, 4) for v in part[name])
        for name in FLIP_CONFIDENCES
        if name in part.columns
    }
    return FlipTable(
        totals=totals,
        kept=kept,
        ids=tuple(visible(i, longest=LONGEST_NAME) for i in part["id"].cast(pl.String)),
        kinds=tuple(part["kind"]),
        target=Column.of(part["target"]),
        old=Column.of(part["old"]),
        new=Column.of(part["new"]),
        confidences=confidences,
        groups={name: Column.of(part[name]) for name in part.columns if name not in FIXED},
        sampled=sampled,
    )


def fair_shares(totals: dict[str, int], most: int) -> dict[str, int]:
    """How many of each kind to keep: equal shares; what one kind leaves over goes to the others.

    >>> fair_shares({"negative": 900, "positive": 50, "wrong_to_wrong": 500}, 450)
    {'negative': 200, 'positive': 50, 'wrong_to_wrong': 200}
    """
    shares: dict[str, int] = {}
    left = most
    smallest_first = sorted(totals, key=lambda kind: totals[kind])
    for place, kind in enumerate(smallest_first):
        shares[kind] = min(totals[kind], left // (len(smallest_first) - place))
        left -= shares[kind]
    return {kind: shares[kind] for kind in totals}


def fair_order(flips: pl.DataFrame, *, seed: int) -> list[int]:
    """Rows in an order in which every prefix is balanced over kinds and classes.

    It takes one row of each kind and class in turn, at random within them.
    """
    rows = flips.select("kind", "target").with_row_index("row")
    shuffled = rows[np.random.default_rng(seed).permutation(rows.height)]
    turns = shuffled.with_columns(
        pl.int_range(pl.len()).over("kind", "target").alias("turn"),
    )
    return turns.sort("turn", maintain_order=True)["row"].to_list()


def answer_changes(
    flips: pl.DataFrame, *, most: int = MOST_FLOWS
) -> tuple[tuple[AnswerChange, ...], int]:
    """The most frequent changes from one answer to another, and the number of all of them."""
    counted = (
        flips.group_by("kind", "target", "old", "new")
        .len("samples")
        .sort(["samples", "kind", "target", "old", "new"], descending=[True] + [False] * 4)
    )
    flows = tuple(
        AnswerChange(
            kind=row["kind"],
            target=_name(row["target"]),
            old=_name(row["old"]),
            new=_name(row["new"]),
            samples=row["samples"],
            share=f"{100 * row['samples'] / flips.height:.1f} %",
        )
        for row in counted.head(most).iter_rows(named=True)
    )
    return flows, counted.height


def _name(value: object) -> str:
    return "–" if value is None else visible(value)


def broken_pairs(flips: pl.DataFrame, *, most: int) -> list[tuple[str, str, int]]:
    """(target, new answer, samples) for the classes with the most negative flips."""
    broken = flips.filter(pl.col("kind") == "negative").select(
        pl.col("target").cast(pl.String), pl.col("new").cast(pl.String)
    )
    targets = _commonest(broken["target"], most)
    answers = _commonest(broken["new"], most)
    pairs = (
        broken.filter(pl.col("target").is_in(targets) & pl.col("new").is_in(answers))
        .group_by("target", "new")
        .len()
    )
    found = {(t, n): samples for t, n, samples in pairs.iter_rows()}
    return [(t, n, found[t, n]) for t in targets for n in answers if (t, n) in found]


def _commonest(names: pl.Series, most: int) -> Sequence[str]:
    counted = names.value_counts(name="n").sort(["n", names.name], descending=[True, False])
    found: list[str] = counted[names.name].head(most).to_list()
    return found


def confidence_pairs(flips: pl.DataFrame, kind: str, *, bins: int = 10) -> list[list[int]]:
    """Counts of one kind of flip by the confidence of old (rows) and of new (columns)."""
    if not {"old_confidence", "new_confidence"} <= set(flips.columns):
        return []
    both = flips.filter(pl.col("kind") == kind).select("old_confidence", "new_confidence")
    both = both.drop_nulls()
    if both.height == 0:
        return []
    places = [
        np.clip((both[name].to_numpy() * bins).astype(int), 0, bins - 1) for name in both.columns
    ]
    table = np.zeros((bins, bins), dtype=np.int64)
    np.add.at(table, (places[0], places[1]), 1)
    return [[int(n) for n in row] for row in table]
