"""Columns told to be the same from their stored bytes: True must be proof."""

from __future__ import annotations

import polars as pl
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, compare, read_predictions
from flipguard.predictions.same_bytes import identical_parquet_column

IDS = [1, 2, 3]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (pl.Series(IDS), True),
        (pl.Series([1, 2, 4]), False),
        (pl.Series([1, 2]), False),
        (pl.Series([1, 2, None]), False),
        (pl.Series(IDS, dtype=pl.UInt64), False),
        (pl.Series(IDS).cast(pl.Datetime("us")), False),
        (pl.Series(["1", "2", "3"]), False),
    ],
)
def test_only_the_same_values_of_the_same_type_are_the_same(other, same, tmp_path):
    pl.DataFrame({"id": IDS}).write_parquet(tmp_path / "old.parquet")
    pl.DataFrame({"a": [0] * len(other), "key": other}).write_parquet(tmp_path / "new.parquet")
    found = identical_parquet_column(
        tmp_path / "old.parquet", "id", tmp_path / "new.parquet", "key"
    )
    assert found is same


def test_other_row_groups_prove_nothing(tmp_path):
    table = pl.DataFrame({"id": range(100)}).to_arrow()
    pq.write_table(table, tmp_path / "old.parquet", row_group_size=100)
    pq.write_table(table, tmp_path / "new.parquet", row_group_size=50)
    paths = tmp_path / "old.parquet", "id", tmp_path / "new.parquet", "id"
    assert not identical_parquet_column(*paths)


def test_a_column_that_is_not_there_is_not_the_same(tmp_path):
    pl.DataFrame({"id": IDS}).write_parquet(tmp_path / "old.parquet")
    paths = tmp_path / "old.parquet", "id", tmp_path / "old.parquet", "key"
    assert not identical_parquet_column(*paths)


def test_a_difference_far_down_is_seen(tmp_path):
    """Targets that differ in the last of many rows, where a look at the first would miss it."""
    n = 50_000
    rows = {"id": range(n), "target": [0] * n, "label": [0] * n}
    pl.DataFrame(rows).write_parquet(tmp_path / "old.parquet")
    rows["target"] = [0] * (n - 1) + [1]
    pl.DataFrame(rows).write_parquet(tmp_path / "new.parquet")
    old, new = (read_predictions(tmp_path / f"{name}.parquet") for name in ("old", "new"))
    with pytest.raises(InputError, match=f"disagree on the target of id {n - 1}"):
        compare(old=old, new=new)
