"""Pinned samples: those that may never flip, whatever the averages say."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

from flipguard.comparison import Comparison
from flipguard.errors import InputError, PolicyError, listed
from flipguard.predictions.read import TEXT_FORMATS, format_of, unreadable


def judge_pinned(result: Comparison, path: Path) -> tuple[int, list[str]]:
    """How many samples are pinned, and the ids of those that flipped from right to wrong."""
    if not result.layout.has_target:
        raise PolicyError(f"{path} pins samples to stay right, which needs targets; add them.")
    wanted = read_ids(path)
    known = result.compared_ids(wanted)
    if known is None:
        raise PolicyError(f"{path} pins samples by id, but {result.old} has no ids; add them.")
    absent = wanted.filter(~wanted.is_in(known.implode()))
    if len(absent):
        raise PolicyError(
            f"{path} pins id {listed(absent.to_list())}, which the comparison of {result.old} and "
            f"{result.new} does not have; pinned samples must be in the test set."
        )
    flips = result.flips().select(pl.col("id").cast(pl.String), "kind")
    flips = flips.filter(pl.col("id").is_in(wanted.implode()))
    unknown = flips.filter(pl.col("kind") == "changed")["id"].to_list()
    if unknown:
        # Its label changed and nobody knows from what: that must not read as a pass.
        raise PolicyError(
            f"{path} pins id {listed(unknown)}, which has another answer now but no target; give "
            "pinned samples their true class."
        )
    return len(wanted), flips.filter(pl.col("kind") == "negative")["id"].to_list()


def read_ids(path: Path) -> pl.Series:
    """The ids of a table with a column `id`, or of a text file with one id a line."""
    if not os.path.isfile(path):
        raise PolicyError(f"{path}, which the policy pins, does not exist; check the path.")
    try:
        if path.suffix == ".txt":
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
            ids = pl.Series("id", [line for line in lines if line], dtype=pl.String)
        else:
            ids = _id_column(path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as problem:
        raise PolicyError(str(unreadable(str(path), problem))) from problem
    ids = ids.drop_nulls().unique(maintain_order=True)
    if not len(ids):
        raise PolicyError(f"{path} pins no sample; list at least one id.")
    return ids


def _id_column(path: Path) -> pl.Series:
    try:
        kind, _ = format_of(path)
    except InputError as problem:
        raise PolicyError(str(problem)) from problem
    if kind not in (*TEXT_FORMATS, "parquet"):
        raise PolicyError(f"{path} cannot hold pinned ids; use .csv, .jsonl, .parquet or .txt.")
    if kind == "parquet":
        frame = pl.scan_parquet(path, glob=False)
    elif kind == "jsonl":
        frame = pl.read_ndjson(path).lazy()
    else:
        separator = "," if kind == "csv" else "\t"
        frame = pl.scan_csv(path, separator=separator, infer_schema=False, glob=False)
    names = frame.collect_schema().names()
    if "id" not in names:
        raise PolicyError(
            f"{path} has no column 'id' of pinned samples; its columns are {listed(names, most=8)}."
        )
    ids = pl.col("id")
    if frame.collect_schema()["id"].is_float():
        # A whole number that once shared its column with a missing one, as in the tables.
        ids = ids.cast(pl.Int64)
    return frame.select(ids.cast(pl.String)).collect().to_series()
