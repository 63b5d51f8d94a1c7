"""Counts by key: a table that grows shard by shard, and the finished groups."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from flipguard.counts import FlipCounts, StatisticsLayout
from flipguard.errors import InputError
from flipguard.predictions.names import float_text

MISSING_GROUP = "(missing)"
MOST_GROUPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Counts of every group of one column: `keys[i]` goes with `counts.values[i]`.

    With clusters, `keys` repeat: one row per group and cluster.
    """

    keys: list[str]
    counts: FlipCounts


class CountTable:
    """Counts by key, growing shard by shard; the sum is the same for any shards."""

    def __init__(
        self,
        layout: StatisticsLayout,
        keys: tuple[str, ...],
        *,
        group: str | None = None,
        name: str | None = None,
        keep_missing: bool = True,
    ) -> None:
        self.keys = keys
        self.layout = layout
        self._group = group
        self._name = name
        self._keep_missing = keep_missing
        self._frames: list[pl.DataFrame] = []
        self._pending = 0

    def like(self, layout: StatisticsLayout) -> CountTable:
        """An empty table of the same groups with other statistics."""
        return CountTable(
            layout,
            self.keys,
            group=self._group,
            name=self._name,
            keep_missing=self._keep_missing,
        )

    def add(self, frame: pl.DataFrame) -> None:
        """Adds the counts of a shard: the key columns, then one column per statistic."""
        self._frames.append(frame)
        self._pending += frame.height
        if self._pending > 1_000_000:
            self._frames = [self.summed()]
            self._pending = self._frames[0].height

    def summed(self) -> pl.DataFrame:
        """The key columns, then one column per statistic; sorted by key."""
        table = pl.concat(self._frames, how="vertical_relaxed")
        sums = [pl.col(name).sum() for name in self.layout.names]
        if not self.keys:
            return table.select(sums)
        return table.group_by(self.keys).agg(sums).sort(self.keys, nulls_last=True)

    def groups(self) -> Groups:
        """The sums, sorted by key; a second key is the cluster."""
        table = self.summed()
        if self._group is not None and not self._keep_missing:
            table = table.filter(pl.col(self._group).is_not_null())
        counts = FlipCounts(self.layout, table.select(self.layout.names).to_numpy())
        if self._group is None:
            return Groups(keys=["all"] * table.height, counts=counts)
        names = group_names(table[self._group])
        if len(set(names)) > MOST_GROUPS:
            raise InputError(
                f"Column '{self._name}' has {len(set(names)):,} different values, more than the "
                f"{MOST_GROUPS:,} groups that make sense; group by a coarser column."
            )
        return Groups(keys=names, counts=counts)


def group_names(values: pl.Series) -> list[str]:
    """What the groups of a column are called: a whole float as the integer that it is.

    A group whose name is really "(missing)" is shown in quotation marks, unlike missing values.

    >>> group_names(pl.Series(["a", "(missing)", None])), group_names(pl.Series([1.0, 0.5]))
    (['a', '"(missing)"', '(missing)'], ['1', '0.5'])
    """
    column = pl.col("values")
    text = float_text(column) if values.dtype.is_float() else column.cast(pl.String)
    # One more pair of marks for each that is there already: no two names become one.
    quoted = text.str.replace(r'^("*\(missing\)"*)$', '"${1}"')
    named = values.to_frame("values").select(quoted.fill_null(MISSING_GROUP))
    return named.to_series().to_list()
