"""Histograms of a result as curves to be drawn or printed, and its matrices as rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.studies.results import Result, Row
from flipguard.studies.study import FLIPPED, HISTOGRAMS, OTHERS

Array = npt.NDArray[Any]
MOST_BINS = 10
TITLES = {
    "rank": "Where the wrong class of a flip stood in old",
    "displacement": "How far one sample's logits move",
    "margin": "Margin of the new model on the test samples",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values of the bins of a histogram: the mean over seeds, as counts or in percent."""

    label: str
    values: Array
    expected: bool = False  # by a law, in addition to the measured curve


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramPanel:
    """One histogram, of several curves with the same bins."""

    title: str
    axis: str
    unit: str
    edges: Array
    curves: tuple[Curve, ...]
    whole: bool = False  # the bins are whole numbers
    logarithmic: bool = False
    open_end: bool = False  # the last bin has all that lies beyond it, too

    def bins(self) -> Iterator[tuple[str, list[float]]]:
        """Yield one line per bin for people to read; many bins are joined."""
        count = len(self.edges) - 1
        step = 1 if self.whole else -(-count // MOST_BINS)
        for first in range(0, count, step):
            last = min(first + step, count)
            beyond = self.open_end and last == count
            if self.whole:
                name = f"{self.edges[first] + 0.5:.0f}{' and more' * beyond}"
            elif beyond:
                name = f"from {self.edges[first]:.2f} on"
            else:
                name = f"{self.edges[first]:.2f} to {self.edges[last]:.2f}"
            yield name, [float(curve.values[first:last].sum()) for curve in self.curves]


def panels_of(result: Result) -> list[HistogramPanel]:
    """The histograms of a study; none if it has none."""
    wanted = result.study.histogram
    rows = [row for row in result.rows if row.histogram]
    if wanted is None or not rows:
        return []
    if wanted.of == "uncertainty":
        return list(_by_uncertainty(result, rows))
    groups = list(dict.fromkeys(result.line(row).group for row in rows))
    # Lines of several groups share one picture, unless each group has separate draws.
    apart = [[group] for group in groups] if wanted.of == "displacement" else [groups]
    return [
        _panel(result, [row for row in rows if result.line(row).group in some]) for some in apart
    ]


def _by_uncertainty(result: Result, rows: Sequence[Row]) -> Iterator[HistogramPanel]:
    """As the paper draws it: the samples of one update, and then the flips of all updates."""
    first = result.line(rows[0]).label
    shared: dict[str, Any] = {
        "axis": HISTOGRAMS["uncertainty"],
        "unit": "samples",
        "edges": np.asarray(rows[0].histogram["edges"]),
        "logarithmic": True,
        "open_end": _is_open(rows),
    }
    yield HistogramPanel(
        title=f"{first[:1].upper()}{first[1:]}: flipped and other samples",
        curves=tuple(Curve(label=name, values=_mean(rows[0], name)) for name in (OTHERS, FLIPPED)),
        **shared,
    )
    yield HistogramPanel(
        title="Negative flips by update",
        curves=tuple(
            Curve(label=result.line(row).label, values=_mean(row, FLIPPED)) for row in rows
        ),
        **shared,
    )


def _panel(result: Result, rows: Sequence[Row]) -> HistogramPanel:
    of = rows[0].histogram["of"]
    groups = {result.line(row).group for row in rows}
    curves = []
    for row in rows:
        line = result.line(row)
        plain = len(groups) == 1 or line.group is None or line.new.method == "none"
        name = line.label if plain else f"{line.group}, {line.label}"
        for counted in row.histogram["counts"]:
            law = counted == "normal law"
            values = _mean(row, counted)
            curves.append(
                Curve(
                    label=f"{name}, law" if law else name,
                    values=100 * values / max(values.sum(), 1),
                    expected=law,
                )
            )
    group = result.line(rows[0]).group
    title = TITLES[of]
    units = {"rank": "% of negative flips", "displacement": "% of draws"}
    return HistogramPanel(
        title=f"{title}, {group}" if of == "displacement" and group else title,
        axis=HISTOGRAMS[of],
        unit=units.get(of, "% of test samples"),
        edges=np.asarray(rows[0].histogram["edges"]),
        curves=tuple(curves),
        whole=of == "rank",
        open_end=_is_open(rows),
    )


def _is_open(rows: Sequence[Row]) -> bool:
    return any(row.histogram.get("open", False) for row in rows)


def _mean(row: Row, counted: str) -> Array:
    found: Array = np.mean(row.histogram["counts"][counted], axis=0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMatrix:
    """A value for each old and each new model, in percent; nan where there is none."""

    title: str
    roles: tuple[str, ...]
    values: Array  # [old, new]


def matrices_of(result: Result) -> list[RoleMatrix]:
    """What a matrix of models shows: accuracy that is gained, and negative flips."""
    cells = {
        line.pair: row
        for row in result.rows
        if (line := result.line(row)).pair is not None and row.values
    }
    there = {role for pair in cells for role in pair}
    roles = tuple(role for role in result.study.matrix if role in there)
    if not roles:
        return []

    def table(value: Any) -> Array:
        return np.array(
            [
                [100 * value(cells[a, b]) if (a, b) in cells else math.nan for b in roles]
                for a in roles
            ]
        )

    gained = table(lambda row: row.mean("error_rate_old") - row.mean("error_rate_new"))
    flips = table(lambda row: row.mean("negative_flip_rate"))
    return [
        RoleMatrix(
            title="Accuracy gained, from old (down) to new (across)", roles=roles, values=gained
        ),
        RoleMatrix(title="NFR, from old (down) to new (across)", roles=roles, values=flips),
    ]
