"""`FlipCounts`: the sufficient statistics of a comparison, which add.

Every statistic is an integer. Counts are integers anyway; sums of real numbers (confidences,
distances) are kept in fixed point, rounded once a row. Integer sums do not depend on the order
of their terms, so the counts of any sharding, row order or engine are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
BINS = 15
BIN_PARTS = ("n", "right", "confidence", "gap_squared")

# What one unit of a stored integer is worth. Quantities in [0, 1] are kept to 2^-32, so two
# thousand million rows fit in 64 bits; distances have no upper bound and get fewer places.
UNIT = 2.0**-32
DISTANCE_UNIT = 2.0**-24
DISTANCE_SQUARED_UNIT = 2.0**-16
# What has no upper bound is kept in two integers: how many times this many units, and the rest.
HIGH = 2.0**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which statistics a comparison can have, and so which metrics."""

    has_target: bool
    scored: frozenset[Side] = frozenset()
    has_logits: bool = False
    controls: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The statistics in the order of the last axis of `FlipCounts.values`."""
        return tuple(self.places)

    @property
    def places(self) -> Mapping[str, int]:
        """Where each statistic is on that axis."""
        return _places(self)

    @property
    def available(self) -> frozenset[str]:
        """What the metrics may ask for, in the words of `Metric.needs`."""
        has = {f"{side} scores" for side in self.scored}
        if self.has_target:
            has.add("target")
        if self.has_logits:
            has.add("logits")
        if self.controls:
            has.add("control")
        return frozenset(has)


@lru_cache(maxsize=64)
def _places(layout: Layout) -> Mapping[str, int]:
    names = [*CELLS, *UNLABELLED]
    for side in SIDES:
        if side in layout.scored:
            names += [f"{side}_margin", f"{side}_margin_squared"]
            names += [bin_name(side, b, part) for part in BIN_PARTS for b in range(BINS)]
    if len(layout.scored) == 2:
        # The number of classes, summed over rows like all statistics: 3 rows of 2 classes give 6.
        names += [*_in_two_parts("surrogate", "surrogate_squared"), "classes"]
    if layout.has_logits:
        names += _in_two_parts("distance", "distance_squared")
    if layout.controls:
        names += [
            joint_name(kind, new, flagged)
            for kind in ("churn", "negative_flip")
            for new in (0, 1)
            for flagged in range(layout.controls + 1)
        ]
        names += [
            control_name(control, cell)
            for control in range(layout.controls)
            for cell in (*CELLS, *UNLABELLED)
        ]
    return MappingProxyType({name: place for place, name in enumerate(names)})


def _in_two_parts(*names: str) -> list[str]:
    return [part for name in names for part in (name, high_name(name))]


def high_name(name: str) -> str:
    """The upper part of a statistic without an upper bound, whose sum could outgrow 64 bits."""
    return f"{name}_high"


def bin_name(side: Side, index: int, part: str) -> str:
    """The statistic of one confidence bin of one side."""
    return f"{side}_bin{index:02d}_{part}"


def joint_name(kind: str, new: int, flagged: int) -> str:
    """How often `new` flipped (0 or 1) while `flagged` of the controls did."""
    return f"joint_{kind}_{new}_{flagged}"


def control_name(control: int, cell: str) -> str:
    """A cell of old against one control."""
    return f"control{control}_{cell}"


def unit(name: str) -> float:
    """What one unit of the stored integer is worth."""
    if name.endswith("_high"):
        return HIGH * unit(name.removesuffix("_high"))
    if name.startswith("distance"):
        return DISTANCE_SQUARED_UNIT if name.endswith("squared") else DISTANCE_UNIT
    if name.startswith("surrogate") or "_margin" in name:
        return UNIT
    if name.endswith(("_confidence", "_gap_squared")):
        return UNIT
    return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class FlipCounts:
    """Sufficient statistics of one comparison, or, with leading axes, of many (groups, shards).

    >>> layout = Layout(has_target=True)
    >>> shard = FlipCounts.of(layout, both_right=90, negative_flip=2, positive_flip=5, wrong_same=3)
    >>> whole = shard + shard
    >>> whole["negative_flip"].item(), whole.rows.item()
    (4.0, 200.0)
    """

    layout: Layout
    values: npt.NDArray[Any]

    def __post_init__(self) -> None:
        if self.values.shape[-1:] != (len(self.layout.names),):
            raise ValueError(
                f"Expected a last axis of {len(self.layout.names)} statistics, "
                f"but got shape {self.values.shape}."
            )

    @classmethod
    def of(cls, layout: Layout, **counts: int) -> FlipCounts:
        """Counts by name; what is not named is 0."""
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
        return FlipCounts(self.layout, self.values + other.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlipCounts):
            return NotImplemented
        return self.layout == other.layout and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    def columns(self, names: Sequence[str]) -> FloatArray:
        """Several statistics in natural units, shape (..., len(names))."""
        places = self.layout.places
        index = [places[name] for name in names]
        units = np.array([unit(name) for name in names])
        found = np.asarray(self.values[..., index] * units, dtype=np.float64)
        for i, name in enumerate(names):
            if high_name(name) in places:
                found[..., i] += self.values[..., places[high_name(name)]] * (HIGH * units[i])
        return found

    def scaled(self, factor: float) -> FlipCounts:
        """The counts of a sample `factor` times as large, all else equal."""
        return FlipCounts(self.layout, self.values * float(factor))

    def total(self) -> FlipCounts:
        """All groups together."""
        return FlipCounts(self.layout, self.values.reshape(-1, self.values.shape[-1]).sum(axis=0))

    def __len__(self) -> int:
        return int(np.prod(self.values.shape[:-1], dtype=np.int64))

    @property
    def rows(self) -> FloatArray:
        """All samples, with or without a target."""
        return np.asarray(self.columns([*CELLS, *UNLABELLED]).sum(axis=-1))

    @property
    def labelled(self) -> FloatArray:
        """Samples whose target is known."""
        return np.asarray(self.columns(CELLS).sum(axis=-1))

    @property
    def old_right(self) -> FloatArray:
        """Samples that old gets right."""
        return self["both_right"] + self["negative_flip"]

    @property
    def new_right(self) -> FloatArray:
        """Samples that new gets right."""
        return self["both_right"] + self["positive_flip"]

    @property
    def different(self) -> FloatArray:
        """Samples on which the two labels differ."""
        names = ["negative_flip", "positive_flip", "wrong_different", "unlabelled_different"]
        return np.asarray(self.columns(names).sum(axis=-1))

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
        """Old against one control, as a comparison of its own."""
        layout = Layout(has_target=self.layout.has_target)
        names = [control_name(index, cell) for cell in (*CELLS, *UNLABELLED)]
        columns = [self.layout.places[name] for name in names]
        return FlipCounts(layout, self.values[..., columns])
