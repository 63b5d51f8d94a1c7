"""Statistics of class scores: one integer per row and statistic, and its sums by group.

Numpy alone, because studies count with it where no table library is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flipguard.counts import BINS, FloatArray, IntArray, Side, bin_name, fixed_point
from flipguard.engines.score_kernel import PairRows, SideScores

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowStatistic:
    """The integers of one statistic, one per row; with `bins`, of the statistic of each row's bin.

    `names` is one name, or a name per bin.
    """

    names: tuple[str, ...]
    values: IntArray
    bins: IntArray | None = None

    def sums(self, codes: IntArray, groups: int) -> dict[str, IntArray]:
        """The sums of each group; `codes` says which group each row is in."""
        if self.bins is None:
            return {self.names[0]: _sum_by(self.values, codes, groups)}
        width = len(self.names)
        by_bin = _sum_by(self.values, codes * width + self.bins, groups * width)
        return dict(zip(self.names, by_bin.reshape(groups, width).T, strict=True))


def side_statistics(
    side: Side, rows: SideScores, *, right: BoolArray, known: BoolArray
) -> Iterator[RowStatistic]:
    """Margin, entropy and calibration of one model; `known` says which rows have a target."""
    yield _constant(f"{side}_classes", rows.classes, len(rows.margin))
    yield from _with_square(f"{side}_margin", rows.margin)
    yield from _with_square(f"{side}_entropy", rows.entropy)
    confidence = np.minimum(rows.confidence, 1.0)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)

    integers = {
        "n": known.astype(np.int64),
        "right": right.astype(np.int64),
        "confidence": np.where(known, _fixed(side, "confidence", confidence), 0),
        "gap_squared": np.where(known, _fixed(side, "gap_squared", (right - confidence) ** 2), 0),
    }
    for part, values in integers.items():
        yield RowStatistic(tuple(bin_name(side, b, part) for b in range(BINS)), values, bins)


def _fixed(side: Side, part: str, values: FloatArray) -> IntArray:
    # All bins have one unit.
    (integers,) = fixed_point(bin_name(side, 0, part), values).values()
    return integers


def pair_statistics(pair: PairRows, classes: int) -> Iterator[RowStatistic]:
    """The distances of scores between two models that together know this many classes."""
    yield _constant("classes", classes, len(pair.surrogate))
    yield from _with_square("surrogate", pair.surrogate)
    defined = ~np.isnan(pair.divergence)
    yield RowStatistic(("divergence_rows",), defined.astype(np.int64))
    yield from _with_square("divergence", np.where(defined, pair.divergence, 0.0))
    if pair.distance is not None:
        yield from _with_square("distance", pair.distance)


def sums_by_group(
    statistics: Iterable[RowStatistic], codes: IntArray, groups: int
) -> dict[str, IntArray]:
    """The sums of all statistics by group."""
    found: dict[str, IntArray] = {}
    for statistic in statistics:
        found |= statistic.sums(codes, groups)
    return found


def _constant(name: str, value: int, rows: int) -> RowStatistic:
    return RowStatistic((name,), np.full(rows, value, dtype=np.int64))


def _with_square(name: str, values: FloatArray) -> Iterator[RowStatistic]:
    """A number per row, and its square."""
    for statistic, numbers in ((name, values), (f"{name}_squared", values**2)):
        for part, integers in fixed_point(statistic, numbers).items():
            yield RowStatistic((part,), integers)


def _sum_by(values: IntArray, codes: IntArray, n: int) -> IntArray:
    # Whole numbers added as whole numbers: no order of rows can change the sum.
    if n == 1:
        return np.array([values.sum()], dtype=np.int64)
    out = np.zeros(n, dtype=np.int64)
    np.add.at(out, codes, values)
    return out
