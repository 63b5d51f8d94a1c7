"""Counts of each class, from how often each pair of labels meets each target.

A class has its own row in the groups by target, but a wrong label counts against the class that it
names, whose rows are elsewhere. So rows with a wrong label are counted by target and both labels.
What that says of each class, and of the mean over all classes, is added to the finished tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from flipguard.counts import CELLS, FALSE_LABELS, FloatArray, IntArray, fixed_point
from flipguard.engines.count_table import CountTable

COUNT = "__count"


def with_false_labels(groups: CountTable, confusion: CountTable) -> CountTable:
    """The groups by target with how often their class was predicted for rows of other classes."""
    pairs, (group, *cluster) = _pairs(groups, confusion), groups.keys
    target, old, new = confusion.keys[:3]
    wrong_old, wrong_new = pl.col(old) != pl.col(target), pl.col(new) != pl.col(target)
    same, nothing = pl.col(old) == pl.col(new), pl.lit(0, dtype=pl.Int64)
    counts = {
        old: (pl.col(COUNT) * same, pl.col(COUNT) * ~same, nothing),
        new: (nothing, nothing, pl.col(COUNT)),
    }
    parts = [
        pairs.filter(where).select(
            pl.col(label).alias(group),
            *cluster,
            *[n.alias(name) for n, name in zip(counts[label], FALSE_LABELS, strict=True)],
        )
        for label, where in ((old, wrong_old), (new, wrong_new & ~same))
    ]
    sums = [pl.col(name).cast(pl.Int64).sum() for name in FALSE_LABELS]
    false = pl.concat(parts).group_by(groups.keys).agg(sums)
    # A class that is no target has no rows that a group could be made of.
    false = false.join(pairs.select(pl.col(target).alias(group)).unique(), on=group, how="semi")
    found = groups.summed().join(false, on=groups.keys, how="full", coalesce=True, nulls_equal=True)
    table = groups.like(replace(groups.layout, is_class=True))
    table.add(found.with_columns(pl.col(table.layout.names).fill_null(0)))
    return table


def with_class_gain(whole: CountTable, groups: CountTable, confusion: CountTable) -> CountTable:
    """The counts of all samples with the sums that the gain of the mean F1 follows from."""
    pairs = _pairs(groups, confusion)
    columns = _gain_statistics(pairs, confusion.keys)
    per_row = pairs.select(*whole.keys, COUNT).with_columns(
        pl.Series(name, units) * pl.col(COUNT) for name, units in columns.items()
    )
    sums = [pl.col(name).sum() for name in columns]
    table = whole.like(replace(whole.layout, has_classes=True))
    if whole.keys:
        found = per_row.group_by(whole.keys).agg(sums)
        joined = whole.summed().join(found, on=whole.keys, how="left", nulls_equal=True)
    else:
        joined = pl.concat([whole.summed(), per_row.select(sums)], how="horizontal")
    table.add(joined.with_columns(pl.col(list(columns)).fill_null(0)))
    return table


def _pairs(groups: CountTable, confusion: CountTable) -> pl.DataFrame:
    """The labels and targets that meet, with how often; in one order, whatever the shards."""
    (target, old, new, *cluster), group = confusion.keys, groups.keys[0]
    wrong = confusion.summed().select(*confusion.keys, pl.sum_horizontal(CELLS).alias(COUNT))
    right = groups.summed().select(
        *[pl.col(group).alias(name) for name in (target, old, new)],
        *cluster,
        pl.col("both_right").alias(COUNT),
    )
    return pl.concat([right.filter(pl.col(target).is_not_null()), wrong])


def _gain_statistics(pairs: pl.DataFrame, keys: Sequence[str]) -> dict[str, IntArray]:
    """Per row of each pair: the integers of its share in the gain of the mean F1."""
    labels = [pairs[column] for column in keys[:3]]
    names = pl.concat(labels).unique().sort()
    target, old, new = (_codes(values, names) for values in labels)
    count = pairs[COUNT].to_numpy().astype(np.float64)
    actual = np.asarray(np.bincount(target, count, len(names)), dtype=np.float64)
    (f1_old, share_old, _), (f1_new, share_new, pull) = (
        _f1(target, label, count, actual) for label in (old, new)
    )
    here = actual > 0
    classes, n = max(int(here.sum()), 1), count.sum()
    gain = float((f1_new - f1_old)[here].sum() / classes)
    weight = n / classes
    values = gain + weight * (share_new - share_old)
    padding = float((weight * pull[here]) @ (weight * pull[here]) / classes)
    return {
        **fixed_point("class_gain", values),
        **fixed_point("class_gain_squared", values**2),
        **fixed_point("class_gain_of_flip_squared", np.full(len(values), padding)),
    }


def _f1(
    target: IntArray, label: IntArray, count: FloatArray, actual: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """F1 of each class; the linear change of all with each row, and with a flip of each class."""
    right = label == target
    hits = np.bincount(target, count * right, len(actual))
    both = actual + np.bincount(label, count, len(actual))
    here = actual > 0
    whole = np.where(here, both, 1.0)
    f1 = np.where(here, 2.0 * hits / whole, 0.0)
    fall = f1 / whole
    change = np.where(right, 2.0 / whole[target], 0.0) - fall[target] - fall[label]
    # One more wrong row lowers the F1 of its class, and that of the class which it is taken for.
    others = (fall.sum() - fall) / max(int(here.sum()) - 1, 1)
    return f1, change, (2.0 - f1) / whole + others


def _codes(values: pl.Series, names: pl.Series) -> IntArray:
    return np.asarray(names.search_sorted(values).to_numpy(), dtype=np.int64)
