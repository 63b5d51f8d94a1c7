"""Histograms and matrices as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flipguard.plots.picture import INK
from flipguard.studies.panels import Matrix, Panel

COLOURS = ("#08457e", "#c22e22", "#3f7d20", "#8a4f9e", "#b7791f", "#0f766e", "#6b7280", "#db2777")
# From which share of the colours on a number is white, to be read.
DARK = 0.6


def size_of_panels(panels: Sequence[Panel]) -> tuple[float, float]:
    """Width and height of histograms side by side, in inches."""
    return 4.8 * len(panels) if len(panels) > 1 else 6.4, 3.4


def draw_panels(figure: Any, panels: Sequence[Panel]) -> None:
    """Histograms side by side."""
    for number, panel in enumerate(panels, start=1):
        draw_panel(figure.add_subplot(1, len(panels), number), panel)


def draw_panel(axes: Any, panel: Panel) -> None:
    """One histogram: bars, or an outline a curve, dashed where a law says what is expected."""
    if panel.whole:
        _draw_bars(axes, panel)
    else:
        _draw_outlines(axes, panel)
    if panel.logarithmic:
        axes.set_yscale("log")
    beyond = "; last bin: all beyond, too" if panel.open_end and not panel.whole else ""
    axes.set_xlabel(f"{panel.axis}{beyond}", fontsize=8)
    axes.set_ylabel(panel.unit, fontsize=8)
    axes.set_title(panel.title, fontsize=9)
    axes.legend(frameon=False, fontsize=7)
    plain(axes)


def _draw_bars(axes: Any, panel: Panel) -> None:
    places, count = panel.edges[:-1] + 0.5, len(panel.curves)
    width = 0.8 / count
    for number, curve in enumerate(panel.curves):
        beside = places + (number - (count - 1) / 2) * width
        axes.bar(beside, curve.values, width, color=_colour(number), label=curve.label)
    names = [f"{place:.0f}" for place in places]
    if panel.open_end:
        names[-1] += "+"
    axes.set_xticks(places, names)


def _draw_outlines(axes: Any, panel: Panel) -> None:
    middle = (panel.edges[:-1] + panel.edges[1:]) / 2
    number = -1
    for curve in panel.curves:
        if curve.expected:  # in the colour of what was found, which comes before it
            axes.plot(middle, curve.values, color=_colour(number), linestyle="--", linewidth=1.0)
            continue
        number += 1
        colour = _colour(number)
        axes.stairs(curve.values, panel.edges, color=colour, label=curve.label, linewidth=1.4)
        axes.stairs(curve.values, panel.edges, color=colour, fill=True, alpha=0.08)
    if any(curve.expected for curve in panel.curves):
        axes.plot([], [], color=INK, linestyle="--", linewidth=1.0, label="by the normal law")
    axes.set_xlim(panel.edges[0], panel.edges[-1])


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def draw_matrices(figure: Any, matrices: Sequence[Matrix]) -> None:
    """A number and a colour a cell, old models down and new ones across."""
    figure.set_size_inches(5.2 * len(matrices), 4.4)
    figure.subplots_adjust(wspace=0.35)
    for number, matrix in enumerate(matrices, start=1):
        axes = figure.add_subplot(1, len(matrices), number)
        least = np.nanmin(matrix.values)
        most = np.nanmax(np.abs(matrix.values))
        # Gains are of both signs, and white is none; flips begin at white.
        signed = least < 0
        axes.imshow(
            matrix.values,
            cmap="RdBu" if signed else "Reds",
            vmin=-most if signed else 0.0,
            vmax=most,
        )
        for (row, column), value in np.ndenumerate(matrix.values):
            if math.isnan(value):
                continue
            ink = "white" if abs(value) > DARK * most else INK
            text = f"{value:+.1f}" if signed else f"{value:.1f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=ink)
        axes.set_xticks(range(len(matrix.roles)), matrix.roles, rotation=30, ha="right")
        axes.set_yticks(range(len(matrix.roles)), matrix.roles)
        axes.set_xlabel("new", fontsize=8)
        axes.set_ylabel("old", fontsize=8)
        axes.set_title(f"{matrix.title.partition(',')[0]}, %", fontsize=9)
        axes.tick_params(labelsize=8, colors=INK, length=0)
        for side in axes.spines.values():
            side.set_visible(False)


def plain(axes: Any) -> None:
    """Only the axes that are read."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
