"""Pinned samples: those that may never flip from right to wrong, whatever the averages are."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from flipguard.archives import array_names, read_arrays
from flipguard.comparison import Comparison
from flipguard.engines.classes import spelled
from flipguard.engines.plan import Details
from flipguard.engines.readings import readings_of
from flipguard.errors import InputError, PolicyError, listed
from flipguard.predictions.read import name_any_file_on_error, name_file_on_error, scan_table
from flipguard.predictions.table import Predictions

ID_ARRAYS = ("ids", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedVerdict:
    """The samples that may never flip, and which of them did."""

    verdict: Literal["pass", "fail"]
    n: int
    flipped: tuple[str, ...]
    file: str

    def as_json(self) -> dict[str, Any]:
        """Return a row of the verdict's JSON, with the keys of the other rows."""
        return {
            "metric": "pinned",
            "by": None,
            "group": None,
            "limit": {"max": 0},
            "value": len(self.flipped),
            "low": None,
            "high": None,
            "n": self.n,
            "verdict": self.verdict,
            "judge": "point",
            "flipped": list(self.flipped),
        }


def judge_pinned(result: Comparison, path: Path) -> tuple[int, list[str]]:
    """Return how many samples are pinned, and the ids of those that flipped from right to wrong."""
    if not result.layout.has_target:
        raise PolicyError(
            f"{path} pins samples, which needs a target column; add one to the predictions."
        )
    result, pinned = _read_together(result, path)
    known = result.compared_ids(pl.concat([pinned["as_written"], pinned["as_read"]]).unique())
    if known is None:
        raise PolicyError(
            f"{path} pins samples by id, but {result.old} has no ids; add an id column."
        )
    # The few ids of the file may all be numbers although those of the test set are not.
    as_written = pl.col("as_written")
    chosen = pl.when(as_written.is_in(known.implode())).then(as_written).otherwise("as_read")
    wanted = pinned.select(chosen).to_series().unique(maintain_order=True)
    absent = wanted.filter(~wanted.is_in(known.implode()))
    if len(absent):
        raise PolicyError(
            f"{path} pins id {listed(absent.to_list())}, which the comparison of {result.old} and "
            f"{result.new} does not contain; remove it, or add the sample to the test set."
        )
    flips = result.flips().select(pl.col("id").cast(pl.String), "kind")
    flips = flips.filter(pl.col("id").is_in(wanted.implode()))
    unknown = flips.filter(pl.col("kind") == "changed")["id"].to_list()
    if unknown:
        # The label changed, and without a target it is unknown whether it was right: not a pass.
        raise PolicyError(
            f"{path} pins id {listed(unknown)}, whose label changed but which has no target; give "
            "pinned samples their true class."
        )
    return len(wanted), flips.filter(pl.col("kind") == "negative")["id"].to_list()


def _read_together(result: Comparison, path: Path) -> tuple[Comparison, pl.DataFrame]:
    """Return the comparison with ids read as the pinned ids are, and the pinned ids."""
    try:
        if not os.path.exists(path):
            raise PolicyError(f"Pinned samples: the file {path} does not exist; check its path.")
        is_list = path.suffix.lower() == ".txt" and os.path.isfile(path)
        frame = _id_lines(path) if is_list else _id_column(path)
        side = Predictions(
            name=str(path), frame=frame, id="id", target=None, label=None, scores=None
        )
        plan = result.plan
        sides = plan.sides if plan is not None else ()
        ids = [replace(table, target=None, label=None, scores=None) for table in sides]
        with name_any_file_on_error([side, *ids]):
            joint = readings_of([*ids, side], ())
            reading = joint.of(len(ids), "id")
            pinned = frame.select(
                spelled("id", side, pl.String(), replace(reading, numbers=False)).alias(
                    "as_written"
                ),
                spelled("id", side, pl.String(), reading).alias("as_read"),
            ).collect()
    except InputError as problem:
        raise PolicyError(str(problem)) from problem
    _check_ids(pinned["as_read"], path)
    if plan is not None and plan.readings is not None:
        columns = {i: r for i, r in joint.columns.items() if i[1] == "id" and i[0] < len(ids)}
        readings = replace(plan.readings, columns=plan.readings.columns | columns)
        if readings != plan.readings:
            # Discard flips that were listed under ids read in another way.
            result = replace(result, plan=replace(plan, readings=readings), details=Details())
    return result, pinned


def _check_ids(ids: pl.Series, path: Path) -> None:
    if ids.null_count():
        row = ids.is_null().arg_max() or 0
        raise PolicyError(
            f"{path} has no id in row {row + 1:,}; give every row the id of a pinned sample."
        )
    twice = ids.filter(ids.is_duplicated()).unique(maintain_order=True)
    if len(twice):
        raise PolicyError(f"{path} pins id {listed(twice)} more than once; list each sample once.")
    if not len(ids):
        raise PolicyError(f"{path} pins no sample; list at least one id.")


def _id_lines(path: Path) -> pl.LazyFrame:
    """Return one id per line, without blank lines and blanks around an id."""
    with name_file_on_error(str(path)):
        text = path.read_text(encoding="utf-8-sig")
    ids = [line.strip() for line in re.split(r"\r\n|\r|\n", text)]
    return pl.LazyFrame({"id": [line for line in ids if line]}, schema={"id": pl.String})


def _id_column(path: Path) -> pl.LazyFrame:
    """Return a table with a column `id`, read with the checks of a prediction table."""
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path, always=ID_ARRAYS)
        name = next((name for name in ID_ARRAYS if name in arrays), None)
        if name is None:
            raise PolicyError(
                f"{path} has no array 'ids' of pinned samples; rename one of its arrays "
                f"({listed(array_names(path), most=8)})."
            )
        table = Predictions.from_arrays(ids=arrays[name], labels=arrays[name], name=str(path))
        frame = table.frame
    else:
        frame, _ = scan_table(path, frozenset({"id"}))
    names = frame.collect_schema().names()
    if "id" not in names:
        raise PolicyError(
            f"{path} has no column 'id' of pinned samples; rename one of its columns "
            f"({listed(names, most=8)})."
        )
    return frame
