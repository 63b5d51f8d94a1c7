"""Count with class scores: labels, targets and groups in memory, scores in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.counts import SIDES, FloatArray, IntArray
from flipguard.engines.alignment import paired_rows
from flipguard.engines.classes import class_series
from flipguard.engines.count_table import CountTable
from flipguard.engines.outcomes import ROW, flip_rows
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import COLUMNS, LABELS, TARGET, CountingPlan, RowCounts
from flipguard.engines.row_kinds import RowKind, row_kind
from flipguard.engines.score_kernel import (
    Matching,
    PairRows,
    SideScores,
    match_classes,
    probabilities_of,
    side_and_pair_rows,
)
from flipguard.engines.score_statistics import (
    RowStatistic,
    pair_statistics,
    side_statistics,
    sums_by_group,
)
from flipguard.engines.tally import Part, Tally
from flipguard.engines.unusable import unusable
from flipguard.errors import InputError, listed
from flipguard.predictions.read import name_file_on_error
from flipguard.predictions.scores import (
    ScoreReader,
    name_of_row,
    reader,
    rows_per_read,
    spool_folder,
    width,
)
from flipguard.predictions.table import Predictions, ScoreKind

Array = npt.NDArray[Any]

GROUP = "__group"
# Beyond this a logit is a mask, not an answer.
LARGEST_DISTANCE = 1e6
# Distances are kept of at most as many rows as have this many scores together.
MOST_DISTANCE_SCORES = 400_000_000


@dataclass(slots=True, kw_only=True)
class ScoredPart(Part):
    """Some paired rows with the results of the kernel on their scores."""

    table: pl.DataFrame
    kind: RowKind
    models: tuple[Predictions, Predictions]
    classes: tuple[pl.Series | None, pl.Series | None]
    scores: tuple[Array | None, Array | None]
    sides: tuple[SideScores | None, SideScores | None]
    pair: PairRows | None
    classes_of_both: int
    keeps_distances: bool
    _statistics: list[RowStatistic] | None = None

    def counts(self, table: CountTable, sums: list[pl.Expr]) -> pl.DataFrame:
        if self._statistics is None:
            self._statistics = list(self._row_statistics())
        rows, keys = self.table, table.keys
        if keys:
            groups = rows.select(keys).unique(maintain_order=True).with_row_index(GROUP)
            found = rows.select(keys).join(
                groups, on=keys, how="left", nulls_equal=True, maintain_order="left"
            )
            codes, n = found[GROUP].cast(pl.Int64).to_numpy(), groups.height
            cells = rows.with_columns(found[GROUP]).group_by(GROUP).agg(sums)
            cells = cells.sort(GROUP).drop(GROUP)
            named = groups.drop(GROUP).get_columns()
        else:
            codes, n, named = np.zeros(rows.height, dtype=np.int64), 1, []
            cells = rows.select(sums)
        scored = sums_by_group(self._statistics, codes, n)
        columns = [
            pl.Series(name, scored[name]) if name in scored else cells[name]
            for name in table.layout.names
        ]
        return pl.DataFrame([*named, *columns])

    def flips(self, plan: CountingPlan) -> pl.DataFrame:
        changed = self.table.select(self.kind.is_listed().alias("c"))["c"]
        rows = self.table.with_row_index(ROW, offset=self.start).filter(changed)
        places = changed.arg_true().to_numpy()
        for i, name in enumerate(("old", "new")):
            scores, classes, kind = self.scores[i], self.classes[i], self.models[i].scores
            if scores is not None and classes is not None and kind is not None:
                found = _confidences(kind.kind, scores, places, classes, rows, i)
                rows = rows.with_columns(
                    pl.Series(f"{name}_confidence", found[0]).fill_nan(None),
                    pl.Series(f"{name}_target_confidence", found[1]).fill_nan(None),
                )
        return flip_rows(rows.lazy(), plan).collect()

    def distances(self) -> FloatArray | None:
        return self.pair.distance if self.pair is not None and self.keeps_distances else None

    def _row_statistics(self) -> Iterator[RowStatistic]:
        known = self.table.select(known=self.kind.is_known()).to_series().to_numpy()
        for name, column, side in zip(SIDES, LABELS, self.sides, strict=True):
            if side is not None:
                right = self.table.select(
                    self.kind.is_right(column).fill_null(False).alias("right")
                )
                yield from side_statistics(name, side, right=right["right"].to_numpy(), known=known)
        if self.pair is not None:
            yield from pair_statistics(self.pair, self.classes_of_both)

    def labels_off_the_top(self, i: int) -> int:
        """Rows whose label has a lower score than another class: often a mixed-up file."""
        side, classes, model = self.sides[i], self.classes[i], self.models[i]
        if side is None or classes is None or model.label is None or model.class_names is None:
            return 0
        return int((classes.gather(side.top) != self.table[LABELS[i]]).sum())


class ScoredCounting:
    """The counts of files of which at least one has class scores."""

    def __init__(self, plan: CountingPlan) -> None:
        self.plan = plan
        self.pairing = Pairing(plan)
        self.models = (plan.old, plan.new)
        self.widths = tuple(_width(side) if side.scores is not None else 0 for side in self.models)
        old, new = (
            class_series(side, n, self.pairing.classes, self.pairing.readings.names)
            if side.scores is not None
            else None
            for side, n in zip(self.models, self.widths, strict=True)
        )
        self.classes = (old, new)
        self._refuse_unmatched_names()
        self.matching: Matching | None = None
        if old is not None and new is not None:
            self.matching = match_classes(old.to_list(), new.to_list())

    def run(self, begin: Callable[[], Tally]) -> tuple[Tally, RowCounts, tuple[int, int]]:
        """One pass: the filled tally, the row counts, and how many labels are off the top."""
        tally, odd = begin(), [0, 0]
        # Ids are kept only if they are shown.
        want = COLUMNS if "flips" in tally.wants else COLUMNS - {"id"}
        paired = paired_rows(self.pairing, want)
        table, positions = paired.table, list(paired.positions[:2])
        self._refuse_nameless(table)
        keeps_distances = table.height * sum(self.widths) <= MOST_DISTANCE_SCORES
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
                labelled = self._with_labels(table[start:stop], (old, new))
                part = ScoredPart(
                    rows=labelled.lazy(),
                    table=labelled,
                    kind=row_kind(self.plan),
                    start=start,
                    models=self.models,
                    classes=self.classes,
                    scores=(scores[0], scores[1]),
                    sides=(old, new),
                    pair=pair,
                    classes_of_both=self._classes_of_both(),
                    keeps_distances=keeps_distances,
                )
                self._refuse_bad_scores(part, positions)
                self._refuse_masks(part, positions)
                tally.add(part)
                odd = [n + part.labels_off_the_top(i) for i, n in enumerate(odd)]
                if self.plan.progress is not None:
                    self.plan.progress(stop, table.height)
        return tally, paired.rows, (odd[0], odd[1])

    def _with_labels(
        self, table: pl.DataFrame, sides: tuple[SideScores | None, SideScores | None]
    ) -> pl.DataFrame:
        """The table with a label of each model: its own column, or the class it scores highest."""
        for i, column in enumerate(LABELS):
            side, classes = sides[i], self.classes[i]
            if self.models[i].label is None and side is not None and classes is not None:
                table = table.with_columns(classes.gather(side.top).alias(column))
        return table

    def _classes_of_both(self) -> int:
        """The number of classes that at least one of the two models knows."""
        return self.widths[0] + (0 if self.matching is None else len(self.matching.only_new))

    # -- refusals ------------------------------------------------------------------------------

    def _refuse_unmatched_names(self) -> None:
        """Raise if one model names the classes of its scores and the other numbers them."""
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
        """Raise if scores number their classes while targets and labels are names."""
        if self.pairing.classes != pl.String:
            return
        for i, model in enumerate(self.models):
            if model.scores is None or model.class_names is not None or model.label is not None:
                continue
            others = [c for c in (TARGET, LABELS[1 - i]) if c in table.columns]
            refuse_nameless(model, pl.concat([table[c].unique() for c in others]))

    def _refuse_bad_scores(self, part: ScoredPart, positions: list[IntArray | None]) -> None:
        for i, side in enumerate(part.sides):
            scores, model = part.scores[i], self.models[i]
            if side is None or scores is None or not side.bad.any() or model.scores is None:
                continue
            for row in np.flatnonzero(side.bad):
                place, order = part.start + int(row), positions[i]
                # The distance of a pair is off for both, though only one of them may be to blame.
                if model.scores.kind == "probabilities" or not np.isfinite(scores[row]).all():
                    place = place if order is None else int(order[place])
                    raise unusable(model, scores[row], place)

    def _refuse_masks(self, part: ScoredPart, positions: list[IntArray | None]) -> None:
        if part.pair is None or part.pair.distance is None or not len(part.pair.distance):
            return
        worst = int(part.pair.distance.argmax())
        if part.pair.distance[worst] > LARGEST_DISTANCE:
            place, order = part.start + worst, positions[0]
            row = name_of_row(self.plan.old, place if order is None else int(order[place]))
            raise InputError(
                f"The logits of {self.plan.old.name} and {self.plan.new.name} are "
                f"{part.pair.distance[worst]:.3g} apart for {row}, as masked classes are; leave "
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
    with name_file_on_error(model):
        return width(model)


def _reader(model: Predictions, positions: IntArray | None, spool: Path) -> ScoreReader:
    with name_file_on_error(model):
        return reader(model, positions, spool)


def _read(source: ScoreReader, model: Predictions, start: int, stop: int) -> Array:
    with name_file_on_error(model):
        return source.read(start, stop)


def _confidences(
    kind: ScoreKind,
    scores: Array,
    changed: IntArray,
    classes: pl.Series,
    table: pl.DataFrame,
    i: int,
) -> list[FloatArray]:
    """A model's probability of its label, and of the target; nan for a class it lacks."""
    place = pl.DataFrame({"class": classes, "place": np.arange(len(classes))})
    asked = [
        table.select(pl.col(column).alias("class"))
        .join(place, on="class", how="left", maintain_order="left")["place"]
        .fill_null(-1)
        .to_numpy()
        for column in (LABELS[i], TARGET)
    ]
    return probabilities_of(scores, kind, changed, asked)
