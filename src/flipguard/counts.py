"""`FlipCounts`: the additive statistics of a comparison; and the definition of a flip in numpy.

Every statistic is an integer. Counts are integers anyway; sums of real numbers (confidences,
distances) are kept in fixed point, rounded once per row. Integer sums do not depend on the order
of their terms, so the counts of any sharding, row order or engine are the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Side = Literal["old", "new"]
SIDES: tuple[Side, ...] = ("old", "new")

CELLS = ("both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different")
UNLABELLED = ("unlabelled_same", "unlabelled_different")
# Graded rows: why a model has no answer, and how often its answer is that of old.
NO_ANSWER = ("error", "refused", "unparsed")
ANSWERS = ("right_same_answer", "right_other_answer", "wrong_same_answer", "wrong_other_answer")
# A class of the targets: how often it is predicted by both models, or by one of them alone, for
# rows of other classes.
FALSE_LABELS = ("false_both", "false_old", "false_new")
# The kinds of flips, worst first, and the cell of the rows that are of each kind.
FLIP_KINDS = {
    "negative": "negative_flip",
    "positive": "positive_flip",
    "wrong_to_wrong": "wrong_different",
    "changed": "unlabelled_different",
}
# Columns of a flip if there are scores: a model's probability of its answer, and of the
# target.
FLIP_CONFIDENCES = (
    "old_confidence",
    "new_confidence",
    "old_target_confidence",
    "new_target_confidence",
)
BINS = 15
BIN_PARTS = ("n", "right", "confidence", "gap_squared")
# In a divergence new gives each class at least this probability, so one row cannot have more.
LEAST_PROBABILITY = 1e-12
MOST_DIVERGENCE = -math.log(LEAST_PROBABILITY)

# The value of one unit of a stored integer. Quantities in [0, 1] are kept to 2^-32, so two
# thousand million rows fit in 64 bits; distances have no upper bound and get fewer places.
UNIT = 2.0**-32
DISTANCE_UNIT = 2.0**-24
DISTANCE_SQUARED_UNIT = 2.0**-16
# A sum without an upper bound is kept in two integers: multiples of this many units, and the rest.
HIGH = 2.0**32


def high_name(name: str) -> str:
    """The upper part of a statistic without an upper bound, whose sum could outgrow 64 bits."""
    return f"{name}_high"


def bin_name(side: Side, index: int, part: str) -> str:
    """The statistic of one confidence bin of one side."""
    return f"{side}_bin{index:02d}_{part}"


def joint_name(kind: str, new: int, flagged: int) -> str:
    """How often `new` flipped (0 or 1) while `flagged` of the controls did."""
    return f"joint_{kind}_{new}_{flagged}"


def grade_name(side: Side, reason: str) -> str:
    """The rows in which a model has no answer for one of the reasons `NO_ANSWER`."""
    return f"{side}_{reason}"


def control_name(control: int, cell: str) -> str:
    """A cell of old against one control."""
    return f"control{control}_{cell}"


@dataclass(frozen=True, slots=True)
class Statistic:
    """One sum over rows: the value of one unit of its integer, and the data that fills it.

    `filled_by` uses the names of `StatisticsLayout.available`; if it is empty, labels are enough.
    """

    name: str
    unit: float = 1.0
    filled_by: frozenset[str] = frozenset()

    def in_two_parts(self) -> tuple[Statistic, Statistic]:
        """The names of the lower and the upper part of a statistic without an upper bound."""
        return self, Statistic(high_name(self.name), HIGH * self.unit, self.filled_by)


def _of_scores(side: Side) -> Iterator[Statistic]:
    filled_by = frozenset({f"{side} scores"})
    for name in (f"{side}_margin", f"{side}_margin_squared"):
        yield Statistic(name, UNIT, filled_by)
    for name in (f"{side}_entropy", f"{side}_entropy_squared"):
        yield from Statistic(name, UNIT, filled_by).in_two_parts()
    # The number of classes, summed over rows like all statistics: 3 rows of 2 classes give 6.
    yield Statistic(f"{side}_classes", 1.0, filled_by)
    for part in BIN_PARTS:
        unit = UNIT if part in ("confidence", "gap_squared") else 1.0
        for index in range(BINS):
            yield Statistic(bin_name(side, index, part), unit, filled_by)


def _of_both_scores() -> Iterator[Statistic]:
    both = frozenset({"old scores", "new scores"})
    for name in ("surrogate", "surrogate_squared", "divergence", "divergence_squared"):
        yield from Statistic(name, UNIT, both).in_two_parts()
    # Rows in which both models give the shared classes some probability.
    yield Statistic("divergence_rows", 1.0, both)
    # The number of classes that at least one of them knows, summed over rows.
    yield Statistic("classes", 1.0, both)
    logits = frozenset({"logits"})
    yield from Statistic("distance", DISTANCE_UNIT, logits).in_two_parts()
    yield from Statistic("distance_squared", DISTANCE_SQUARED_UNIT, logits).in_two_parts()


def _of_grades() -> Iterator[Statistic]:
    for side in SIDES:
        for reason in NO_ANSWER:
            yield Statistic(grade_name(side, reason), 1.0, frozenset({"grades"}))
    for name in ANSWERS:
        yield Statistic(name, 1.0, frozenset({"grades", "label"}))


def _of_classes() -> Iterator[Statistic]:
    for name in FALSE_LABELS:
        yield Statistic(name, 1.0, frozenset({"class"}))
    # The gain of the mean F1 as a mean over rows: each row's share in it, linearised, and the share
    # of one flip in a class, as a mean over classes.
    classes = frozenset({"classes"})
    yield Statistic("class_gain", UNIT, classes)
    for name in ("class_gain_squared", "class_gain_of_flip_squared"):
        yield from Statistic(name, UNIT, classes).in_two_parts()


def _of_controls(controls: int) -> Iterator[Statistic]:
    filled_by = frozenset({"control"})
    for kind in ("churn", "negative_flip"):
        for new in (0, 1):
            for flagged in range(controls + 1):
                yield Statistic(joint_name(kind, new, flagged), 1.0, filled_by)
    for control in range(controls):
        for cell in (*CELLS, *UNLABELLED):
            yield Statistic(control_name(control, cell), 1.0, filled_by)
        for name in ANSWERS:
            needed = filled_by | {"grades", "label"}
            yield Statistic(control_name(control, name), 1.0, needed)


# Every statistic that does not depend on the number of controls.
STATISTICS: Mapping[str, Statistic] = MappingProxyType(
    {
        statistic.name: statistic
        for statistic in (
            *(Statistic(cell) for cell in (*CELLS, *UNLABELLED)),
            *_of_scores("old"),
            *_of_scores("new"),
            *_of_both_scores(),
            *_of_grades(),
            *_of_classes(),
        )
    }
)


def unit(name: str) -> float:
    """The value of one unit of the stored integer."""
    return STATISTICS[name].unit if name in STATISTICS else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsLayout:
    """Which statistics a comparison can have, and so which metrics.

    `has_target` says that it is known which rows are right: by a target, or by grades (`graded`).
    `is_class`: each group is one class of the targets. `has_classes`: all classes were counted.
    """

    has_target: bool
    graded: bool = False
    has_labels: bool = True
    scored: frozenset[Side] = frozenset()
    has_logits: bool = False
    controls: int = 0
    is_class: bool = False
    has_classes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The statistics in the order of the last axis of `FlipCounts.values`."""
        return tuple(self.columns)

    @property
    def columns(self) -> Mapping[str, int]:
        """Where each statistic is on that axis."""
        return _columns(self)

    @property
    def available(self) -> frozenset[str]:
        """The inputs available to metrics, named as in `Metric.needs`."""
        has = {f"{side} scores" for side in self.scored}
        if self.has_target:
            has.add("target")
        if self.has_labels:
            has.add("label")
        if self.graded:
            has.add("grades")
        if self.has_logits:
            has.add("logits")
        if self.is_class:
            has.add("class")
        if self.has_classes:
            has.add("classes")
        if self.controls:
            has.add("control")
        return frozenset(has)


@lru_cache(maxsize=64)
def _columns(layout: StatisticsLayout) -> Mapping[str, int]:
    declared = (*STATISTICS.values(), *_of_controls(layout.controls))
    filled = [each.name for each in declared if each.filled_by <= layout.available]
    return MappingProxyType({name: place for place, name in enumerate(filled)})


def fixed_point(name: str, values: FloatArray) -> dict[str, IntArray]:
    """The integers of a statistic, one per row: in one part, or in two if it has an upper part."""
    step = unit(name)
    if high_name(name) not in STATISTICS:
        return {name: _rounded(values / step)}
    high = np.floor(values / (HIGH * step))
    low = _rounded((values - high * (HIGH * step)) / step)
    return {name: low, high_name(name): high.astype(np.int64)}


def _rounded(values: FloatArray) -> IntArray:
    return np.rint(values).astype(np.int64)


def flip_cells(
    old: npt.NDArray[Any], new: npt.NDArray[Any], target: npt.NDArray[Any]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows are in each of the `CELLS`, from classes whose targets are all known.

    >>> cells = flip_cells(np.array([1, 1, 0]), np.array([1, 0, 2]), np.array([1, 1, 1]))
    >>> {name: int(rows.sum()) for name, rows in cells.items() if rows.any()}
    {'both_right': 1, 'negative_flip': 1, 'wrong_different': 1}
    """
    was, now, same = old == target, new == target, old == new
    return {
        "both_right": was & now,
        "negative_flip": was & ~now,
        "positive_flip": ~was & now,
        "wrong_same": ~was & ~now & same,
        "wrong_different": ~was & ~now & ~same,
    }


@dataclass(frozen=True, slots=True, eq=False)
class FlipCounts:
    """Sufficient statistics of one comparison, or, with leading axes, of many (groups, shards).

    >>> layout = StatisticsLayout(has_target=True)
    >>> shard = FlipCounts.of(layout, both_right=90, negative_flip=2, positive_flip=5, wrong_same=3)
    >>> whole = shard + shard
    >>> whole["negative_flip"].item(), whole.rows.item()
    (4.0, 200.0)
    """

    layout: StatisticsLayout
    values: npt.NDArray[Any]

    def __post_init__(self) -> None:
        if self.values.shape[-1:] != (len(self.layout.names),):
            raise ValueError(
                f"Expected a last axis of {len(self.layout.names)} statistics, "
                f"but got shape {self.values.shape}."
            )

    @classmethod
    def of(cls, layout: StatisticsLayout, **counts: int) -> FlipCounts:
        """Counts given by name; all others are 0."""
        unknown = set(counts) - set(layout.names)
        if unknown:
            raise ValueError(f"Unknown statistics {sorted(unknown)}; known are {layout.names}.")
        return cls(layout, np.array([counts.get(n, 0) for n in layout.names], dtype=np.int64))

    def __getitem__(self, name: str) -> FloatArray:
        """One statistic in natural units, for every group."""
        return self.columns([name])[..., 0]

    def __add__(self, other: FlipCounts) -> FlipCounts:
        if not isinstance(other, FlipCounts):
            return NotImplemented
        if other.layout != self.layout:
            raise ValueError("Only counts of the same layout add: these measure different things.")
        if self.layout.has_classes:
            raise ValueError("Sums over classes hold for their own comparison alone.")
        return FlipCounts(self.layout, self.values + other.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlipCounts):
            return NotImplemented
        return self.layout == other.layout and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    def columns(self, names: Sequence[str]) -> FloatArray:
        """Several statistics in natural units, shape (..., len(names))."""
        places = self.layout.columns
        index = [places[name] for name in names]
        units = np.array([unit(name) for name in names])
        found = np.asarray(self.values[..., index] * units, dtype=np.float64)
        for i, name in enumerate(names):
            if high_name(name) in places:
                found[..., i] += self.values[..., places[high_name(name)]] * (HIGH * units[i])
        return found

    def scaled(self, factor: float) -> FlipCounts:
        """The counts of a sample that is `factor` times as large."""
        return FlipCounts(self.layout, self.values * float(factor))

    def total(self) -> FlipCounts:
        """All groups together."""
        return FlipCounts(self.layout, self.values.reshape(-1, self.values.shape[-1]).sum(axis=0))

    def __len__(self) -> int:
        return int(np.prod(self.values.shape[:-1], dtype=np.int64))

    @property
    def rows(self) -> FloatArray:
        """The number of samples, with or without a target."""
        return np.asarray(self.columns([*CELLS, *UNLABELLED]).sum(axis=-1))

    @property
    def labelled(self) -> FloatArray:
        """The number of samples whose target is known."""
        return np.asarray(self.columns(CELLS).sum(axis=-1))

    @property
    def old_right(self) -> FloatArray:
        """The number of samples that the old model gets right."""
        return self["both_right"] + self["negative_flip"]

    @property
    def new_right(self) -> FloatArray:
        """The number of samples that the new model gets right."""
        return self["both_right"] + self["positive_flip"]

    @property
    def answers(self) -> FloatArray:
        """The `ANSWERS` over the samples of which it is known who is right, shape (..., 4)."""
        if ANSWERS[0] in self.layout.columns:
            return self.columns(ANSWERS)
        changed = self["positive_flip"] + self["wrong_different"]
        cells = [self["both_right"], self["negative_flip"], self["wrong_same"], changed]
        return np.stack(cells, axis=-1)

    @property
    def different(self) -> FloatArray:
        """The number of samples on which the two labels differ."""
        answers = self.answers
        return np.asarray(answers[..., 1] + answers[..., 3] + self["unlabelled_different"])

    def bins(self, side: Side, part: str) -> FloatArray:
        """One part of every confidence bin, shape (..., 15)."""
        return self.columns([bin_name(side, b, part) for b in range(BINS)])

    def joint(self, kind: str) -> FloatArray:
        """New's flips by how many controls flipped too, shape (..., 2, controls + 1)."""
        width = self.layout.controls + 1
        names = [joint_name(kind, new, j) for new in (0, 1) for j in range(width)]
        values = self.columns(names)
        return values.reshape(*values.shape[:-1], 2, width)

    def of_controls(self, kind: str) -> FloatArray:
        """The flips of each control against old, shape (..., controls)."""
        each = [self.control(i) for i in range(self.layout.controls)]
        found = [c.different if kind == "churn" else c[kind] for c in each]
        return np.stack(found, axis=-1)

    def control(self, index: int) -> FlipCounts:
        """The counts of old against one control, as a separate comparison."""
        plain = {"scored": frozenset[Side](), "has_logits": False, "controls": 0}
        layout = replace(self.layout, **plain, is_class=False, has_classes=False)  # type: ignore[arg-type]
        values = np.zeros((*self.values.shape[:-1], len(layout.names)), dtype=self.values.dtype)
        for place, name in enumerate(layout.names):
            # Why a control has no answer is not counted.
            if control_name(index, name) in self.layout.columns:
                column = self.layout.columns[control_name(index, name)]
                values[..., place] = self.values[..., column]
        return FlipCounts(layout, values)
