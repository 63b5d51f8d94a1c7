"""Counting with class scores: labels, targets and groups in memory, scores a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.counts import (
    BINS,
    HIGH,
    UNIT,
    IntArray,
    bin_name,
    high_name,
    unit,
)
from flipguard.engines.classes import class_series
from flipguard.engines.expressions import (
    NEW,
    OLD,
    TARGET,
    cell_sums,
    control_sums,
)
from flipguard.engines.kernel import (
    Matching,
    PairRows,
    SideRows,
    match_classes,
    side_and_pair_rows,
)
from flipguard.engines.labelled import COLUMNS
from flipguard.engines.listing import flip_rows, worst_first
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import Counted, CountingPlan, CountTable, RowCounts
from flipguard.engines.positions import paired_rows
from flipguard.engines.unusable import unusable
from flipguard.errors import InputError, listed
from flipguard.predictions.faults import naming
from flipguard.predictions.scores import (
    ScoreReader,
    name_of_row,
    reader,
    rows_per_read,
    spool_folder,
    width,
)
from flipguard.predictions.table import Predictions

Array = npt.NDArray[Any]

LABELS = (OLD, NEW)
GROUP = "__group"
# Beyond this a logit is a mask, not an answer.
LARGEST_DISTANCE = 1e6


@dataclass(slots=True)
class Block:
    """Some paired rows: their table, and what the kernel found in their scores."""

    table: pl.DataFrame
    start: int
    scores: tuple[Array | None, Array | None]
    sides: tuple[SideRows | None, SideRows | None]
    pair: PairRows | None


class ScoredCounting:
    """The counts of files of which at least one has class scores."""

    def __init__(self, plan: CountingPlan) -> None:
        self.plan = plan
        self.pairing = Pairing(plan)
        self.models = (plan.old, plan.new)
        self.widths = tuple(_width(side) if side.scores is not None else 0 for side in self.models)
        self.classes = tuple(
            class_series(side, n, self.pairing.classes, self.pairing.readings.names)
            if side.scores is not None
            else None
            for side, n in zip(self.models, self.widths, strict=True)
        )
        self._refuse_unmatched_names()
        old, new = self.classes
        self.matching: Matching | None = None
        if old is not None and new is not None:
            self.matching = match_classes(old.to_list(), new.to_list())

    def count(self) -> Counted:
        """All statistics of all groups."""
        tables = self.plan.tables()
        sums = cell_sums()
        if self.plan.controls:
            sums = sums + control_sums(len(self.plan.controls))
        odd_labels = [0, 0]
        rows = [RowCounts(matched=0)]
        for block in self.blocks(COLUMNS - {"id"}, rows):
            per_row = self._statistics(block)
            for i, side in enumerate(block.sides):
                if side is not None and self.models[i].label is not None:
                    odd_labels[i] += self._labels_off_the_top(block, i)
            for table in tables.values():
                table.add(_grouped(block.table, table, sums, per_row, self.plan.layout.names))
        return Counted.of(self.plan, tables, rows[0], (odd_labels[0], odd_labels[1]))

    def flips(self) -> pl.DataFrame:
        """The samples whose label changed, with the confidence that each model had in them."""
        parts = []
        for block in self.blocks(COLUMNS, [RowCounts(matched=0)]):
            table = block.table.with_row_index("__row", offset=block.start)
            changed = table.select((pl.col(OLD) != pl.col(NEW)).alias("c"))["c"].to_numpy()
            table = table.filter(pl.Series(changed))
            for i, name in enumerate(("old", "new")):
                scores, classes = block.scores[i], self.classes[i]
                if scores is not None and classes is not None:
                    found = _confidences(self.models[i].scores, scores[changed], classes, table, i)
                    table = table.with_columns(
                        pl.Series(f"{name}_confidence", found[0]).fill_nan(None),
                        pl.Series(f"{name}_target_confidence", found[1]).fill_nan(None),
                    )
            parts.append(flip_rows(table.lazy(), self.plan).collect())
        return worst_first(pl.concat(parts))

    # -- rows ----------------------------------------------------------------------------------

    def blocks(self, want: frozenset[str], rows: list[RowCounts]) -> Iterator[Block]:
        """The paired rows in blocks, checked; the row counts go to `rows[0]`."""
        table, positions, rows[0] = self._table(want)
        self._refuse_nameless(table)
        step = rows_per_read(max(self.widths))
        kinds = tuple(None if m.scores is None else m.scores.kind for m in self.models)
        with spool_folder() as spool:
            readers: list[ScoreReader | None] = [
                None if m.scores is None else _reader(m, p, spool)
                for m, p in zip(self.models, positions, strict=True)
            ]
            for start in range(0, table.height, step):
                stop = min(table.height, start + step)
                scores = tuple(
                    None if r is None else _read(r, m, start, stop)
                    for r, m in zip(readers, self.models, strict=True)
                )
                old, new, pair = side_and_pair_rows(
                    scores[0],
                    scores[1],
                    kinds=(kinds[0], kinds[1]),
                    matching=self.matching,
                    exponent=self.plan.exponent,
                )
                block = Block(
                    table=self._with_labels(table[start:stop], (old, new)),
                    start=start,
                    scores=(scores[0], scores[1]),
                    sides=(old, new),
                    pair=pair,
                )
                self._refuse_bad_scores(block, positions)
                self._refuse_masks(block, positions)
                yield block
                if self.plan.progress is not None:
                    self.plan.progress(stop, table.height)

    def _table(self, want: frozenset[str]) -> tuple[pl.DataFrame, list[IntArray | None], RowCounts]:
        """Labels, targets and groups of the paired rows, and where each side's rows are."""
        paired = paired_rows(self.pairing, want)
        return paired.table, list(paired.positions[:2]), paired.rows

    def _with_labels(
        self, table: pl.DataFrame, sides: tuple[SideRows | None, SideRows | None]
    ) -> pl.DataFrame:
        """The table with a label of each model: its own column, or the class it scores highest."""
        for i, column in enumerate(LABELS):
            side, classes = sides[i], self.classes[i]
            if self.models[i].label is None and side is not None and classes is not None:
                table = table.with_columns(classes.gather(side.top).alias(column))
        return table

    # -- statistics ----------------------------------------------------------------------------

    def _statistics(self, block: Block) -> list[tuple[str, IntArray, IntArray | None]]:
        """(name, integer a row, bin a row or None) of everything that is summed from scores."""
        found: list[tuple[str, IntArray, IntArray | None]] = []
        known = block.table[TARGET].is_not_null().to_numpy()
        for name, column, side in zip(("old", "new"), LABELS, block.sides, strict=True):
            if side is None:
                continue
            found.append((f"{name}_margin", _fixed(side.margin), None))
            found.append((f"{name}_margin_squared", _fixed(side.margin**2), None))
            same = block.table.select((pl.col(column) == pl.col(TARGET)).fill_null(False))
            right = same.to_series().to_numpy()
            confidence = np.minimum(side.confidence, 1.0)
            bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
            parts = {
                "n": known.astype(np.int64),
                "right": right.astype(np.int64),
                "confidence": np.where(known, _fixed(confidence), 0),
                "gap_squared": np.where(known, _fixed((right - confidence) ** 2), 0),
            }
            found += [(f"{name}_bin|{part}", values, bins) for part, values in parts.items()]
        if block.pair is not None:
            classes = np.full(len(block.pair.surrogate), self._classes_of_both(), dtype=np.int64)
            found.append(("classes", classes, None))
            found += _in_two_parts("surrogate", block.pair.surrogate)
            found += _in_two_parts("surrogate_squared", block.pair.surrogate**2)
            if block.pair.distance is not None:
                found += _in_two_parts("distance", block.pair.distance)
                found += _in_two_parts("distance_squared", block.pair.distance**2)
        return found

    def _classes_of_both(self) -> int:
        """The number of classes that at least one of the two models knows."""
        return self.widths[0] + (0 if self.matching is None else len(self.matching.only_new))

    def _labels_off_the_top(self, block: Block, i: int) -> int:
        """Rows whose label has a lower score than another class: often a mixed-up file."""
        side, scores, classes = block.sides[i], block.scores[i], self.classes[i]
        if side is None or scores is None or classes is None or self.models[i].class_names is None:
            return 0
        tops = classes.gather(side.top)
        return int((tops != block.table[LABELS[i]]).sum())

    # -- refusals ------------------------------------------------------------------------------

    def _refuse_unmatched_names(self) -> None:
        """Scores of named classes beside scores of numbered ones can only meet by a guess."""
        old, new = (model.scores for model in self.models)
        if old is None or new is None or (old.class_names is None) == (new.class_names is None):
            return
        named, bare = (0, 1) if old.class_names is not None else (1, 0)
        known = {str(i) for i in range(max(self.widths))}
        names = self.models[named].class_names or ()
        if not set(names) <= known:
            raise InputError(
                f"{self.models[named].name} names the classes of its scores and "
                f"{self.models[bare].name} does not, so they cannot be matched; name them there "
                "too: columns logit_<class> or probability_<class>, or class_names in an NPZ."
            )

    def _refuse_nameless(self, table: pl.DataFrame) -> None:
        """Numbered classes beside targets and labels by name can only meet by a guess."""
        if self.pairing.classes != pl.String:
            return
        for i, model in enumerate(self.models):
            if model.scores is None or model.class_names is not None or model.label is not None:
                continue
            others = [c for c in (TARGET, LABELS[1 - i]) if c in table.columns]
            refuse_nameless(model, pl.concat([table[c].unique() for c in others]))

    def _refuse_bad_scores(self, block: Block, positions: list[IntArray | None]) -> None:
        for i, side in enumerate(block.sides):
            scores, model = block.scores[i], self.models[i]
            if side is None or scores is None or not side.bad.any() or model.scores is None:
                continue
            for row in np.flatnonzero(side.bad):
                place, order = block.start + int(row), positions[i]
                # The distance of a pair is off for both, though only one of them may be to blame.
                if model.scores.kind == "probabilities" or not np.isfinite(scores[row]).all():
                    place = place if order is None else int(order[place])
                    raise unusable(model, scores[row], place)

    def _refuse_masks(self, block: Block, positions: list[IntArray | None]) -> None:
        if block.pair is None or block.pair.distance is None or not len(block.pair.distance):
            return
        worst = int(block.pair.distance.argmax())
        if block.pair.distance[worst] > LARGEST_DISTANCE:
            place, order = block.start + worst, positions[0]
            row = name_of_row(self.plan.old, place if order is None else int(order[place]))
            raise InputError(
                f"The logits of {self.plan.old.name} and {self.plan.new.name} are "
                f"{block.pair.distance[worst]:.3g} apart for {row}, as masked classes are; leave "
                "masked classes out, or give probabilities."
            )


def refuse_nameless(model: Predictions, names: pl.Series) -> None:
    """Refuses scores of numbered classes if all the names that they should match are no numbers."""
    names = names.unique().drop_nulls().sort()
    if len(names) and not names.str.contains(r"^-?[0-9]+$").any():
        raise InputError(
            f"{model.name} does not name the classes of its scores, so they cannot be "
            f"matched with {listed(names)}; name them: columns logit_<class> or "
            "probability_<class>, or class_names in an NPZ."
        )


def _width(model: Predictions) -> int:
    with naming(model):
        return width(model)


def _reader(model: Predictions, positions: IntArray | None, spool: Path) -> ScoreReader:
    with naming(model):
        return reader(model, positions, spool)


def _read(source: ScoreReader, model: Predictions, start: int, stop: int) -> Array:
    with naming(model):
        return source.read(start, stop)


def _fixed(values: npt.NDArray[np.float64], step: float = UNIT) -> IntArray:
    return np.rint(values / step).astype(np.int64)


def _in_two_parts(
    name: str, values: npt.NDArray[np.float64]
) -> list[tuple[str, IntArray, IntArray | None]]:
    step = unit(name)
    high = np.floor(values / (HIGH * step))
    low = _fixed(values - high * (HIGH * step), step)
    return [(name, low, None), (high_name(name), high.astype(np.int64), None)]


def _grouped(
    block: pl.DataFrame,
    table: CountTable,
    sums: list[pl.Expr],
    per_row: list[tuple[str, IntArray, IntArray | None]],
    names: tuple[str, ...],
) -> pl.DataFrame:
    """The counts of one block by the keys of one table."""
    if table.keys:
        groups = block.select(table.keys).unique(maintain_order=True).with_row_index(GROUP)
        found = block.select(table.keys).join(
            groups, on=table.keys, how="left", nulls_equal=True, maintain_order="left"
        )
        codes = found[GROUP].cast(pl.Int64).to_numpy()
        cells = block.with_columns(found[GROUP]).group_by(GROUP).agg(sums).sort(GROUP).drop(GROUP)
        n = groups.height
        keys = groups.drop(GROUP)
    else:
        codes, n, keys = np.zeros(block.height, dtype=np.int64), 1, pl.DataFrame()
        cells = block.select(sums)
    columns = {name: cells[name].to_numpy() for name in cells.columns}
    for name, values, bins in per_row:
        if bins is None:
            columns[name] = _sum_by(values, codes, n)
        else:
            side, part = name.split("_bin|")
            by_bin = _sum_by(values, codes * BINS + bins, n * BINS).reshape(n, BINS)
            for b in range(BINS):
                columns[bin_name("old" if side == "old" else "new", b, part)] = by_bin[:, b]
    counted = pl.DataFrame({name: columns[name] for name in names})
    return pl.concat([keys, counted], how="horizontal") if table.keys else counted


def _sum_by(values: IntArray, codes: IntArray, n: int) -> IntArray:
    # Whole numbers added as whole numbers: no order of rows can change the sum.
    if n == 1:
        return np.array([values.sum()], dtype=np.int64)
    out = np.zeros(n, dtype=np.int64)
    np.add.at(out, codes, values)
    return out


def _confidences(
    scores: Any, rows: Array, classes: pl.Series, table: pl.DataFrame, i: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A model's probability of its own label, and of the target; nan for a class it lacks."""
    values = rows.astype(np.float64)
    if scores.kind == "logits":
        values = np.exp(values - values.max(axis=1, keepdims=True, initial=-np.inf))
        values /= values.sum(axis=1, keepdims=True)
    place = pl.DataFrame({"class": classes, "place": np.arange(len(classes))})
    found = []
    for column in (LABELS[i], TARGET):
        at = (
            table.select(pl.col(column).alias("class"))
            .join(place, on="class", how="left", maintain_order="left")["place"]
            .fill_null(-1)
            .to_numpy()
        )
        picked = np.full(len(values), np.nan)
        known = at >= 0
        picked[known] = values[np.flatnonzero(known), at[known]]
        found.append(picked)
    return found[0], found[1]
