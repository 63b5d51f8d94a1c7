"""The plan of a count, its result, and the column names of a paired table.

This is the one interface of every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.counts import FloatArray, Side, StatisticsLayout
from flipguard.engines.classes import is_scalar
from flipguard.engines.confusion import with_class_gain, with_false_labels
from flipguard.engines.count_table import CountTable, Groups
from flipguard.engines.readings import Readings
from flipguard.errors import InputError, listed, nearest
from flipguard.predictions.table import Predictions, Scores

if TYPE_CHECKING:
    from flipguard.engines.thresholds import Thresholds

Progress = Callable[[int, int], None]
# Details that an output may need beyond the counts: groups by target, the flipped samples, the
# distance between old and new logits of each sample, and the flips of other thresholds.
Want = Literal["target_groups", "flips", "distances", "thresholds"]
NOTHING_MORE: frozenset[Want] = frozenset()

# The table of counts by target and both labels, among those of the groups.
CONFUSION = "__confusion"
# Columns of a paired table.
ID, OLD, NEW, TARGET = "__id", "__old", "__new", "__target"
LABELS = (OLD, NEW)

COLUMNS = frozenset({"id", "label", "target", "grade", "score", "cuts"})


def control_column(index: int) -> str:
    """The labels of one control in a paired table."""
    return f"__control{index}"


def grade_column(label: str) -> str:
    """The grades in a paired table of the model whose labels are in this column."""
    return f"{label}_grade"


def score_column(label: str) -> str:
    """The scores in a paired table of the model whose labels are in this column."""
    return f"{label}_score"


def group_column(index: int) -> str:
    """A grouping column in a paired table, by its place among them: no user's name can clash."""
    return f"__cut{index}"


def checked_wants(names: Iterable[str]) -> frozenset[Want]:
    """Wants by name, checked."""
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name not in get_args(Want):
            raise InputError(f"Expected `wants` among {', '.join(get_args(Want))}, not {name!r}.")
    return frozenset(given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingPlan:
    """Two models, optional controls, and the columns to group the samples by."""

    old: Predictions
    new: Predictions
    controls: tuple[Predictions, ...] = ()
    by: tuple[str, ...] = ()
    cluster: str | None = None
    on_missing: Literal["error", "drop"] = "error"
    exponent: float = 1.0
    # How columns are read, once it is decided over all rows; parts of the rows then agree on it.
    readings: Readings | None = field(default=None, compare=False, repr=False)
    progress: Progress | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self._refuse_half("correct", "grades")
        self._refuse_half("binary", "scores of the positive class")
        for column in self.cuts:
            argument = "`cluster=`" if column == self.cluster else "`by=`"
            found = [(side, side.column(column)) for side in (self.old, self.new)]
            if all(name is None for _, name in found):
                known = [c for side, _ in found for c in side.columns]
                raise InputError(
                    f"Neither {self.old.name} nor {self.new.name} has a column '{column}', which "
                    f"{argument} asks for; {_columns(column, known)}"
                )
            for side, name in found:
                dtype = None if name is None else side.frame.collect_schema()[name]
                if dtype is not None and not is_scalar(dtype):
                    raise InputError(
                        f"{side.name} has a column '{column}' of type {dtype}, which {argument} "
                        "cannot group by; use a column of text, numbers or times."
                    )

    def _refuse_half(self, role: Literal["correct", "binary"], what: str) -> None:
        """Raise if rows of some sides are of this kind and those of others are not."""
        given = [side for side in self.sides if getattr(side, role) is not None]
        if given and len(given) < len(self.sides):
            bare = next(side for side in self.sides if getattr(side, role) is None)
            binary = given[0].binary
            column = given[0].correct if binary is None else binary.column
            argument = "correct" if binary is None else "positive_score"
            raise InputError(
                f"{given[0].name} has {what} in column '{column}', but {bare.name} has none; name "
                f"the column of {what} in every file with `{argument}=`, or in no file."
            )

    @property
    def sides(self) -> tuple[Predictions, ...]:
        """Old, new and the controls, which must all have the same samples."""
        return (self.old, self.new, *self.controls)

    @property
    def cuts(self) -> tuple[str, ...]:
        """The columns that the counting needs, except targets and labels."""
        extra = [self.cluster] if self.cluster is not None and self.cluster not in self.by else []
        return (*self.by, *extra)

    @property
    def layout(self) -> StatisticsLayout:
        """The statistics that these inputs allow."""
        old, new = self.old.scores, self.new.scores
        graded = self.old.correct is not None
        scored: set[Side] = set()
        if old is not None:
            scored.add("old")
        if new is not None:
            scored.add("new")
        return StatisticsLayout(
            has_target=graded or any(side.target is not None for side in self.sides),
            graded=graded,
            has_labels=not graded
            or all(side.label is not None or side.scores is not None for side in self.sides),
            scored=frozenset(scored),
            has_logits=_share_a_class(old, new)
            and all(s is not None and s.kind == "logits" for s in (old, new)),
            controls=len(self.controls),
        )

    @property
    def target_cuts(self) -> tuple[str, ...]:
        """The group-by columns that are the target, if the counts of classes are known from it."""
        targets = {"target", self.old.target, self.new.target} - {None}
        known = self.layout.has_target and not self.layout.graded and self.cluster not in targets
        return tuple(by for by in self.by if known and by in targets)

    def tables(self) -> dict[str | None, CountTable]:
        """An empty table of counts for the whole (None) and for each column to group by."""
        place = {cut: group_column(i) for i, cut in enumerate(self.cuts)}
        cluster = (place[self.cluster],) if self.cluster else ()
        targets = {"target", self.old.target, self.new.target}
        tables: dict[str | None, CountTable] = {None: CountTable(self.layout, cluster)}
        for by in self.by:
            keys = tuple(dict.fromkeys((place[by], *cluster)))
            # A sample without a target is of no class; without a slice's value it is in the group
            # of missing values.
            tables[by] = CountTable(
                self.layout, keys, group=place[by], name=by, keep_missing=by not in targets
            )
        if self.target_cuts:
            layout = StatisticsLayout(has_target=True)
            tables[CONFUSION] = CountTable(layout, (TARGET, *LABELS, *cluster))
        return tables

    def target_table(self) -> CountTable:
        """An empty table of label counts by target."""
        cluster = (group_column(self.cuts.index(self.cluster)),) if self.cluster else ()
        return CountTable(
            StatisticsLayout(has_target=True),
            (TARGET, *cluster),
            group=TARGET,
            name="target",
            keep_missing=False,
        )


def _columns(asked: str, known: list[str]) -> str:
    """Return the columns that there are, with those whose names are like the one asked for."""
    known = list(dict.fromkeys(known))
    return nearest(asked, known, all_in=f"they have {listed(known, most=12)}")


def _share_a_class(old: Scores | None, new: Scores | None) -> bool:
    """Whether the models share a class, so that logits have a distance."""
    if old is None or new is None or old.class_names is None or new.class_names is None:
        return True
    return not set(old.class_names).isdisjoint(new.class_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The numbers of samples in both files and in only one of them, and the first ids of these."""

    matched: int
    only_old: int = 0
    only_new: int = 0
    not_in_control: int = 0
    ids_only_old: tuple[object, ...] = ()
    ids_only_new: tuple[object, ...] = ()


def summed_rows(parts: list[RowCounts]) -> RowCounts:
    """The row counts of all parts together."""
    return RowCounts(
        matched=sum(part.matched for part in parts),
        only_old=sum(part.only_old for part in parts),
        only_new=sum(part.only_new for part in parts),
        not_in_control=sum(part.not_in_control for part in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distances:
    """The distance between old and new logits of each sample, and the index of its cell."""

    values: FloatArray
    cells: npt.NDArray[np.int8]


@dataclass(slots=True, kw_only=True, eq=False)
class Details:
    """Details that outputs need beyond the counts; `counted` names those that were computed.

    None where it was not, or where the files do not have it: distances without logits, thresholds
    without a score per row, groups by target if there are more classes than make sense as groups.
    """

    counted: frozenset[Want] = NOTHING_MORE
    target_groups: Groups | None = None
    flips: pl.DataFrame | None = None
    distances: Distances | None = None
    thresholds: Thresholds | None = None

    def add(self, other: Details) -> None:
        """Add the details that another pass has counted."""
        for want in other.counted:
            setattr(self, want, getattr(other, want))
        self.counted |= other.counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The result of an engine."""

    rows: RowCounts
    whole: Groups
    by: dict[str, Groups]
    notes: tuple[str, ...] = ()
    details: Details = field(default_factory=Details, repr=False, compare=False)
    # What adds up to the above, where a comparison is counted in parts.
    tables: dict[str | None, CountTable] = field(default_factory=dict, repr=False, compare=False)
    odd_labels: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls,
        plan: CountingPlan,
        tables: dict[str | None, CountTable],
        rows: RowCounts,
        odd_labels: tuple[int, int] = (0, 0),
        details: Details | None = None,
    ) -> Counted:
        """The finished tables; `odd_labels` are rows of old and new with a label off the top."""
        found = dict(tables)
        if (confusion := found.pop(CONFUSION, None)) is not None:
            groups = found[plan.target_cuts[0]]
            found[None] = with_class_gain(found[None], groups, confusion)
            for cut in plan.target_cuts:
                found[cut] = with_false_labels(found[cut], confusion)
        by = {name: table.groups() for name, table in found.items() if name is not None}
        notes = tuple(
            f"{side.name}: the label is not the class of the largest score in {odd:,} rows; "
            "the label is what counts"
            for side, odd in zip((plan.old, plan.new), odd_labels, strict=True)
            if odd
        )
        return cls(
            rows=rows,
            whole=found[None].groups(),
            by=by,
            notes=notes,
            details=Details() if details is None else details,
            tables=tables,
            odd_labels=odd_labels,
        )
