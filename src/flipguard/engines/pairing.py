"""Pair the rows of several files: the columns to read from each, and the checks of pairs.

Files of one test set are mostly written in one order. That is noticed while their rows stream by,
and then nothing is joined and nothing is held in memory; else `joining` brings rows together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from flipguard.engines.binary import score_of
from flipguard.engines.classes import spelled
from flipguard.engines.grades import grade_of
from flipguard.engines.near_ids import why_ids_differ
from flipguard.engines.outcomes import (
    RowCheck,
    no_cluster,
    no_grade,
    no_label,
    no_score,
    two_cuts,
    two_targets,
)
from flipguard.engines.plan import (
    ID,
    NEW,
    OLD,
    TARGET,
    CountingPlan,
    control_column,
    grade_column,
    group_column,
    score_column,
)
from flipguard.engines.readings import Readings, readings_of
from flipguard.errors import InputError, listed
from flipguard.predictions.formats import TEXT_FORMATS, format_of
from flipguard.predictions.read import name_any_file_on_error, name_file_on_error
from flipguard.predictions.same_bytes import identical_parquet_column
from flipguard.predictions.scores import place_of_row

if TYPE_CHECKING:
    from flipguard.predictions.table import Predictions

SEED = 0x9E3779B9

# Rows of one side that a join holds in memory at a time.
ROWS_PER_PART = 20_000_000
IDS_TO_NAME = 3
ROWS_TO_PEEK = 1_000


class Pairing:
    """The rows of a plan side by side.

    In a paired table, column ``{i}|label`` is the label of side i: 0 is old, 1 is new, and the
    controls follow.
    """

    def __init__(self, plan: CountingPlan) -> None:
        self.sides = plan.sides
        self.by_position = all(side.id is None for side in self.sides)
        self._heights: list[int] | None = None
        without = [side.name for side in self.sides if side.id is None]
        if without and not self.by_position:
            raise InputError(
                f"{without[0]} has no ids while another file has; add its ids, or leave them out "
                "of every file if all are in the same order."
            )
        self.plan, self.readings = settled(plan)
        self.classes, self.ids = self.readings.classes, self.readings.ids

    # -- one side ------------------------------------------------------------------------------

    def side_frame(self, i: int, want: frozenset[str]) -> pl.LazyFrame:
        """The wanted columns of one side: "row" or some of `COLUMNS`."""
        side = self.sides[i]
        columns: list[pl.Expr] = []
        if "id" in want and side.id is not None:
            columns.append(self._spelled(i, "id", side.id, self.ids).alias(f"{i}|id"))
        for role, name in (("label", side.label), ("target", side.target)):
            if role in want and name is not None:
                columns.append(self._spelled(i, role, name, self.classes).alias(f"{i}|{role}"))
        if "grade" in want and side.correct is not None:
            dtype = side.frame.collect_schema()[side.correct]
            columns.append(grade_of(side.correct, dtype, side.name).alias(f"{i}|grade"))
        if side.binary is not None and self.readings.binary is not None:
            if "label" in want:
                columns.append(self.readings.binary.label(side).alias(f"{i}|label"))
            if "score" in want:
                columns.append(score_of(side).alias(f"{i}|score"))
        for place, cut in enumerate(self.plan.cuts if "cuts" in want and i < 2 else ()):
            found = None if self._cut_is_target(cut) else side.column(cut)
            if found is not None:
                values = self._spelled(i, f"by {cut}", found, self.readings.cuts[cut])
                columns.append(values.alias(f"{i}|cut|{place}"))
        if not columns:
            # A table of no columns has no height; the row number keeps it.
            columns.append(pl.int_range(pl.len(), dtype=pl.Int64).alias(f"{i}|none"))
        frame = side.frame.select(columns)
        if "row" in want:
            # Only now, when no column has a name that a user gave it.
            frame = frame.with_row_index(f"{i}|row").cast({f"{i}|row": pl.Int64})
        return frame

    def _spelled(self, i: int, role: str, column: str, common: pl.DataType) -> pl.Expr:
        return spelled(column, self.sides[i], common, self.readings.of(i, role))

    def _cut_is_target(self, cut: str) -> bool:
        return any(
            side.target is not None and cut in ("target", side.target) for side in self.sides
        )

    @property
    def heights(self) -> list[int]:
        """The number of rows of each side."""
        if self._heights is None:
            heights = []
            for side in self.sides:
                with name_file_on_error(side):
                    heights.append(side.height)
                if heights[-1] == 0:
                    raise self.empty(len(heights) - 1)
            self._heights = heights
        return self._heights

    def empty(self, i: int) -> InputError:
        """The sentence for a side that has no row."""
        return InputError(f"{self.sides[i].name} has columns but no rows; give at least one row.")

    # -- the paired table ----------------------------------------------------------------------

    def canonical(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """A paired table with the columns that the counting reads added to its own."""
        names = frame.collect_schema().names()
        targets = [f"{i}|target" for i in range(len(self.sides)) if f"{i}|target" in names]
        columns: list[pl.Expr] = [
            (pl.coalesce(targets) if targets else pl.lit(None, dtype=self.classes)).alias(TARGET)
        ]
        labels = [OLD, NEW, *(control_column(i) for i in range(len(self.plan.controls)))]
        for i, label in enumerate(labels):
            if f"{i}|label" in names:
                columns.append(pl.col(f"{i}|label").alias(label))
            if f"{i}|grade" in names:
                columns.append(pl.col(f"{i}|grade").alias(grade_column(label)))
            if f"{i}|score" in names:
                columns.append(pl.col(f"{i}|score").alias(score_column(label)))
        for place, cut in enumerate(self.plan.cuts):
            if self._cut_is_target(cut):
                columns.append(columns[0].alias(group_column(place)))
                continue
            found = [f"{i}|cut|{place}" for i in range(2) if f"{i}|cut|{place}" in names]
            if found:
                columns.append(pl.col(found[0]).alias(group_column(place)))
        if "0|id" in names:
            columns.append(pl.col("0|id").alias(ID))
        return frame.with_columns(columns)

    def refusals(self, names: list[str]) -> list[RowCheck]:
        """The checks for pairs of rows that make a comparison impossible."""
        found: list[RowCheck] = []
        for i, side in enumerate(self.sides):
            if f"{i}|label" in names and side.binary is not None:
                found.append(no_score(i, side.name, side.binary.column))
            elif f"{i}|label" in names and side.correct is None:
                found.append(no_label(i, side.name, side.label))
            if f"{i}|grade" in names:
                found.append(no_grade(i, side.name, str(side.correct), found=side.found_grades))
            for j in range(i):
                # Each pair: where one file leaves a target out, two others may still disagree.
                if f"{i}|target" in names and f"{j}|target" in names:
                    names_of_pair = (self.sides[j].name, side.name)
                    found.append(two_targets(j, i, *names_of_pair, by_position=self.by_position))
        for place, cut in enumerate(self.plan.cuts):
            if f"0|cut|{place}" in names and f"1|cut|{place}" in names:
                found.append(two_cuts(place, cut, self.sides[0].name, self.sides[1].name))
            for i, side in enumerate(self.sides[:2]):
                if cut == self.plan.cluster and f"{i}|cut|{place}" in names:
                    found.append(no_cluster(i, place, cut, side.name))
        return found

    def refuse(self, frame: pl.LazyFrame, refusal: RowCheck) -> InputError:
        """The error for a failed check, naming the first ids that it concerns."""
        names = frame.collect_schema().names()
        rows = frame.with_row_index("__row").filter(refusal.where)
        by_id = "0|id" in names
        shown = pl.col("0|id") if by_id else pl.col("__row").cast(pl.Int64) + 1
        total = rows.select(pl.len()).collect(engine="streaming").item()
        wanted = [shown.alias("id"), *refusal.values]
        first = rows.select(wanted).head(IDS_TO_NAME).collect(engine="streaming")
        values = first.select(refusal.values).rows() if refusal.values else ()
        text = _named(first["id"].to_list(), total, values)
        return InputError(refusal.sentence(f"{'id' if by_id else 'row'} {text}"))

    # -- side by side, in order ----------------------------------------------------------------

    def may_be_aligned(self) -> bool:
        """Whether the first rows allow that ids are equal row for row."""
        heights = self.heights
        if self.by_position:
            if len(set(heights)) > 1:
                text = ", ".join(
                    f"{side.name} {height:,}"
                    for side, height in zip(self.sides, heights, strict=True)
                )
                raise InputError(
                    f"Files without ids must have the same rows in the same order, but their "
                    f"numbers of rows differ ({text}); add ids to both."
                )
            return True
        if len(set(heights)) > 1:
            return False
        heads = []
        for i, side in enumerate(self.sides):
            with name_file_on_error(side):
                heads.append(self.side_frame(i, frozenset({"id"})).head(ROWS_TO_PEEK).collect())
        return all(heads[0][:, 0].equals(head[:, 0]) for head in heads[1:])

    def aligned_frame(self, want: frozenset[str]) -> pl.LazyFrame:
        """The rows of all sides next to each other, in the order of the files."""
        frames = []
        for i, side in enumerate(self.sides):
            skip = set()
            if i and side.id is not None and self._same_bytes(side.id, self.sides[0].id, side):
                skip.add("id")
            if i and side.target and self._same_bytes(side.target, self.sides[0].target, side):
                skip.add("target")
            frames.append(self.side_frame(i, want - skip))
        return pl.concat(frames, how="horizontal")

    def _same_bytes(self, column: str, old_column: str | None, side: Predictions) -> bool:
        old = self.sides[0]
        if old_column is None or old.path is None or side.path is None:
            return False
        if old.path.suffix not in (".parquet", ".pq") or side.path.suffix not in (
            ".parquet",
            ".pq",
        ):
            return False
        return identical_parquet_column(old.path, old_column, side.path, column)

    @property
    def columnar(self) -> bool:
        """Whether columns are read one by one, so that several queries cost no more than one."""
        paths = [path for side in self.sides for path in side.paths]
        return all(format_of(path)[0] not in TEXT_FORMATS for path in paths)

    def missing_id(self, i: int) -> InputError:
        """The sentence for the first row of a side that has no id."""
        side = self.sides[i]
        row = (
            self.side_frame(i, frozenset({"id", "row"}))
            .filter(pl.col(f"{i}|id").is_null())
            .head(1)
            .collect()
        )
        return InputError(
            f"{side.name} has no id in column '{side.id}' at "
            f"{place_of_row(side, int(row[f'{i}|row'][0]))}; give every row another id."
        )

    def refuse_duplicates(self, i: int) -> None:
        """Raise if unsorted ids are not unique; they are checked in parts of their hashes."""
        parts = self.parts
        for part in range(parts):
            hashes = self.side_frame(i, frozenset({"id"})).select(
                pl.col(f"{i}|id").hash(seed=SEED).alias("hash")
            )
            if parts > 1:
                hashes = hashes.filter(pl.col("hash") % parts == part)
            seen = hashes.select(n=pl.len(), different=pl.col("hash").n_unique()).collect(
                engine="streaming"
            )
            if seen["n"][0] != seen["different"][0]:
                self.raise_if_duplicates(i)

    def raise_if_duplicates(self, i: int) -> None:
        """Raise if ids occur in more than one row of a side, and name them."""
        twice = (
            self.side_frame(i, frozenset({"id"}))
            .group_by(f"{i}|id")
            .len()
            .filter(pl.col("len") > 1)
            .sort(f"{i}|id")
            .collect(engine="streaming")
        )
        if twice.height:
            raise self.duplicates(i, twice[f"{i}|id"].head(IDS_TO_NAME).to_list(), twice.height)

    def duplicates(self, i: int, ids: list[object], total: int) -> InputError:
        """The error message for ids that occur in more than one row of a side."""
        return InputError(
            f"{self.sides[i].name} has more than one row for id {_named(ids, total)} in column "
            f"'{self.sides[i].id}'; keep one row per sample, or name another column with `id=`."
        )

    # -- side by side, by a join ---------------------------------------------------------------

    @property
    def parts(self) -> int:
        """The number of parts of the hash range in which rows are joined, to bound the memory."""
        return max(1, math.ceil(max(self.heights) / ROWS_PER_PART))

    def id_list(self, i: int) -> pl.LazyFrame:
        """The ids of one side, in a column `id`."""
        return self.side_frame(i, frozenset({"id"})).rename({f"{i}|id": "id"})

    def nothing_in_common(self) -> InputError:
        """The sentence for files that share no id."""
        shown = [
            f"{side.name} has ids such as {listed(self.id_list(i).head(2).collect()['id'])}"
            for i, side in enumerate(self.sides[:2])
        ]
        return InputError(
            f"No id is in every file: {', '.join(shown)}; check that both are of the same test set "
            "and that `id=` names the right column." + self._why_ids_differ(0, 1)
        )

    def _why_ids_differ(self, have: int, lack: int) -> str:
        names = (self.sides[have].name, self.sides[lack].name)
        return why_ids_differ(self.id_list(have), self.id_list(lack), names)

    def only_in(self, have: int, lack: int) -> tuple[list[object], int]:
        """The first ids that one side has and another lacks, and their number."""
        only = self.id_list(have).join(self.id_list(lack), on="id", how="anti")
        count = int(only.select(pl.len()).collect(engine="streaming").item())
        first = only.sort("id").head(IDS_TO_NAME).collect(engine="streaming") if count else None
        return ([] if first is None else first["id"].to_list()), count

    def lacking(self, only_in: Callable[[int, int], tuple[list[object], int]]) -> InputError | None:
        """The sentence for the ids that `only_in` finds: those of one side that another lacks."""
        for i in range(1, len(self.sides)):
            found = {(0, i): only_in(0, i), (i, 0): only_in(i, 0)}
            told = [
                f"{self.sides[have].name} has {total:,} {_plural(total, 'id')} that "
                f"{self.sides[lack].name} lacks: {_named(ids, total)}"
                for (have, lack), (ids, total) in found.items()
                if total
            ]
            if told:
                first = next(pair for pair, (_, total) in found.items() if total)
                return InputError(
                    f"{', and '.join(told)}; give the same samples in every file, or leave these "
                    "out with `on_missing='drop'`." + self._why_ids_differ(*first)
                )
        return None


def settled(plan: CountingPlan) -> tuple[CountingPlan, Readings]:
    """The plan with the reading of each column decided, and these readings."""
    readings = plan.readings
    if readings is None:
        with name_any_file_on_error(plan.sides):
            readings = readings_of(plan.sides, plan.cuts)
        plan = replace(plan, readings=readings)
    return plan, readings


def _named(ids: list[object], total: int, values: Sequence[tuple[object, ...]] = ()) -> str:
    """Return the first ids, each with its values if there are any, and how many more there are."""
    named = [listed([one]) for one in ids]
    if values:
        named = [f"{one} ({listed(row)})" for one, row in zip(named, values, strict=True)]
    rest = total - len(ids)
    shown = ", ".join(named)
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def _plural(count: int, word: str) -> str:
    return word if count == 1 else word + "s"
