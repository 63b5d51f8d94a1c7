"""Draw studies: rows next to the paper's, curves, histograms and matrices."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flipguard.plots import FAINT, INK, picture
from flipguard.studies.panels import HistogramPanel, RoleMatrix, matrices_of, panels_of
from flipguard.studies.results import Result, Row
from flipguard.studies.sentences import HEADLINES, group_name, headline_of, is_percent, short
from flipguard.studies.show import title_of

COLOURS = ("#08457e", "#c22e22", "#3f7d20", "#8a4f9e", "#b7791f", "#0f766e", "#6b7280", "#db2777")
# From which share of the colours on a number is white, to be read.
DARK = 0.6

TITLE_LETTERS = 90
# Of a panel, with what is below it; and between the highest panel and the title of all.
TITLE_INCHES, GAP_INCHES = 0.25, 0.12
# Ratios that are so many times the paper's largest have no place on its axis.
FAR = 5.0


def size_of_panels(panels: Sequence[HistogramPanel]) -> tuple[float, float]:
    """Width and height of histograms side by side, in inches."""
    return 4.8 * len(panels) if len(panels) > 1 else 6.4, 3.4


def draw_panels(figure: Any, panels: Sequence[HistogramPanel]) -> None:
    """Histograms side by side."""
    for number, panel in enumerate(panels, start=1):
        draw_panel(figure.add_subplot(1, len(panels), number), panel)


def draw_panel(axes: Any, panel: HistogramPanel) -> None:
    """Draw a histogram: bars, or one outline per curve, dashed for an expected law."""
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
    hide_spines(axes)


def _draw_bars(axes: Any, panel: HistogramPanel) -> None:
    places, count = panel.edges[:-1] + 0.5, len(panel.curves)
    width = 0.8 / count
    for number, curve in enumerate(panel.curves):
        centres = places + (number - (count - 1) / 2) * width
        axes.bar(centres, curve.values, width, color=_colour(number), label=curve.label)
    names = [f"{place:.0f}" for place in places]
    if panel.open_end:
        names[-1] += "+"
    axes.set_xticks(places, names)


def _draw_outlines(axes: Any, panel: HistogramPanel) -> None:
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


def draw_matrices(figure: Any, matrices: Sequence[RoleMatrix]) -> None:
    """Draw one number and colour per cell, old models down and new ones across."""
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


def hide_spines(axes: Any) -> None:
    """Only the axes that are read."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def plot_result(result: Result, path: str) -> None:
    """Draws a result as a PNG, SVG or PDF file, by its suffix."""
    with picture(path, of="a study", style={"axes.edgecolor": FAINT}) as figure:
        rows = [row for row in result.rows if row.why_not is None]
        points = [row for row in rows if result.line(row).x is not None]
        panels, matrices = panels_of(result), matrices_of(result)
        if result.study.curves:
            _curves(figure, result, rows)
        elif matrices:
            draw_matrices(figure, matrices)
        elif panels and points:
            # The histograms above, and the series below.
            sizes = size_of_panels(panels), _size_of_series(result, points)
            heights = [height for _, height in sizes]
            figure.set_size_inches(max(width for width, _ in sizes), sum(heights))
            above, below = figure.subfigures(2, 1, height_ratios=heights)
            above.subplots_adjust(bottom=0.2)
            draw_panels(above, panels)
            _series(below, result, points)
        elif panels:
            figure.set_size_inches(*size_of_panels(panels))
            draw_panels(figure, panels)
        elif points:
            figure.set_size_inches(*_size_of_series(result, points))
            _series(figure, result, points)
        else:
            _bars(figure, result, rows)
        figure.suptitle(
            _evenly(title_of(result)),
            color=INK,
            fontsize=10,
            y=_above_axes(figure),
            verticalalignment="bottom",
        )


def _evenly(text: str) -> str:
    """In lines of about the same length, as few as there can be, so that no word is left alone."""
    lines = len(textwrap.wrap(text, TITLE_LETTERS))
    width = next(
        width
        for width in range(len(text) // lines, TITLE_LETTERS + 1)
        if len(textwrap.wrap(text, width)) == lines
    )
    return textwrap.fill(text, width)


def _above_axes(figure: Any) -> float:
    """Where the title stands, as a share of the height: close above the axes and their titles."""
    if figure.subfigs:
        return 1.0
    tops = [
        axes.get_position().y1 * figure.get_figheight() + (TITLE_INCHES if axes.get_title() else 0)
        for axes in figure.axes
    ]
    return float((max(tops) + GAP_INCHES) / figure.get_figheight())


def _bars(figure: Any, result: Result, rows: Sequence[Row]) -> None:
    """Draw the headline metric's ratio to control, the paper's and ours, one line per row.

    Without a control, draw the headline metric itself.
    """
    metrics = result.study.metrics
    headline = headline_of(result)
    metric = headline or next((name for name in HEADLINES if name in metrics), metrics[0])
    figure.set_size_inches(8, 1.2 + 0.32 * len(rows))
    axes = figure.add_subplot()
    names = [_named(result, row) for row in rows]
    places = np.arange(len(rows))[::-1]
    factor = 100 if is_percent(metric) else 1
    if headline is not None:
        text = f"{short(metric)} over that of the untreated update"
        paper = [result.paper_ratio(row, metric) for row in rows]
        here = [result.ratio(row, metric) for row in rows]
        axes.axvline(1.0, color=FAINT, linewidth=0.8, linestyle=":")
    else:
        text = f"{short(metric)}{' %' if factor == 100 else ''}"
        paper = [result.printed(row, metric) for row in rows]
        here = [factor * row.mean(metric) for row in rows]
    seeds = len(result.seeds)
    spread = [
        _ratio_error(result, row, metric) if headline else _known(factor * row.error(metric))
        for row in rows
    ]
    here = _without_far(axes, paper, here, places) if headline is not None else here
    for place, a, b in zip(places, paper, here, strict=True):
        if not math.isnan(a) and not math.isnan(b):
            axes.plot([a, b], [place, place], color="#d5d9e0", zorder=1)
    axes.scatter(paper, places, marker="D", s=30, color=COLOURS[1], label="the paper", zorder=2)
    axes.errorbar(
        here,
        places,
        xerr=spread,
        fmt="o",
        color=COLOURS[0],
        label=f"here, {result.scale}, {seeds} seed{'s' * (seeds != 1)}"
        + ", with other settings" * bool(result.given),
        zorder=3,
    )
    axes.set_yticks(places, names)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{text} (standard errors of our means)")
    axes.legend(frameon=False, fontsize=8)
    hide_spines(axes)


def _without_far(
    axes: Any, paper: Sequence[float], here: Sequence[float], places: Iterable[int]
) -> list[float]:
    """Ours, less what would squeeze all the rest: of that, the number at the edge."""
    near = FAR * np.nanmax([1.0, *paper])
    for value, place in zip(here, places, strict=True):
        if value > near:
            axes.annotate(
                f"→ {value:.1f}",
                (1.01, place),
                xycoords=axes.get_yaxis_transform(),
                annotation_clip=False,
                ha="left",
                fontsize=8,
                va="center",
                color=COLOURS[0],
            )
    return [math.nan if value > near else value for value in here]


def _groups(result: Result, rows: Sequence[Row]) -> tuple[list[list[str]], list[str]]:
    """The groups of each height of panels, and what their axes are called."""
    groups = list(dict.fromkeys(result.line(row).group or "" for row in rows))
    axis_names = (result.study.axis or "x").split(", ")
    if not len(axis_names) == len(groups) > 1:
        return [groups], axis_names
    named = list(zip(groups, axis_names, strict=True))
    if all(len(group) == 1 for group in groups):  # (a) is above (b), whichever is asked for first
        named.sort()
    return [[group] for group, _ in named], [axis for _, axis in named]


def _size_of_series(result: Result, rows: Sequence[Row]) -> tuple[float, float]:
    """Width and height, in inches."""
    panels, _ = _groups(result, rows)
    return 4.4 * len(result.study.metrics), 0.4 + 3.1 * len(panels)


def _series(figure: Any, result: Result, rows: Sequence[Row]) -> None:
    """Draw one curve per group, one panel per metric; groups with other axes get other panels."""
    metrics = result.study.metrics
    panels, axis_names = _groups(result, rows)
    apart = len(panels) > 1
    figure.subplots_adjust(hspace=0.45)
    for height, (shown, axis) in enumerate(zip(panels, axis_names, strict=False)):
        for number, metric in enumerate(metrics, start=1):
            axes = figure.add_subplot(len(panels), len(metrics), height * len(metrics) + number)
            factor = 100 if is_percent(metric) else 1
            for colour, group in zip(_colours(shown), shown, strict=True):
                points = sorted(
                    (x, factor * row.mean(metric), factor * row.error(metric))
                    for row in rows
                    if (result.line(row).group or "") == group
                    and (x := result.line(row).x) is not None
                )
                xs, ys, errors = zip(*points, strict=True)
                axes.errorbar(xs, ys, yerr=errors, marker="o", color=colour, label=group or None)
            axes.set_xlabel(axis, fontsize=8)
            title = f"{short(metric)}{' %' if factor == 100 else ''}"
            # A curve that has its panel alone is named above it.
            axes.set_title(f"{shown[0]}: {title}" if apart else title, fontsize=9)
            if number == 1 and not apart and any(shown):
                _add_legend(axes, len(shown))
            hide_spines(axes)


def _curves(figure: Any, result: Result, rows: Sequence[Row]) -> None:
    """Rates after every epoch, the mean over the seeds."""
    metrics = [m for m in result.study.metrics if m in ("error_rate_new", "negative_flip_rate")]
    metrics += [m for m in result.study.metrics if m == "relative_negative_flip_rate"]
    figure.set_size_inches(4.8 * len(metrics), 3.4)
    drawn = [(row, split) for row in rows for split in row.curves]
    for number, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(1, len(metrics), number)
        for colour, (row, split) in zip(_colours(drawn), drawn, strict=True):
            values = np.array(row.curves[split][metric], dtype=np.float64)
            mean = 100 * values.mean(axis=0)
            label = f"{_named(result, row)}, {split}"
            axes.plot(np.arange(1, len(mean) + 1), mean, color=colour, label=label)
        axes.set_xlabel("epoch")
        axes.set_title(f"{short(metric)} %", fontsize=9)
        if number == 1:
            _add_legend(axes, len(drawn))
        hide_spines(axes)


def _add_legend(axes: Any, lines: int) -> None:
    """Above the curves and their errors, which may be anywhere: there is made room for it."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.08 * lines * (high - low))
    axes.legend(frameon=False, fontsize=7, loc="upper right")


def _colours(values: Sequence[object]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(values))]


def _named(result: Result, row: Row) -> str:
    """A row by its label, and by its group where another has the same label."""
    name, group = result.name_of(row), result.line(row).group
    alike = [other for other in result.rows if result.name_of(other) == name]
    return f"{name} ({group_name(group)})" if group and len(alike) > 1 else name


def _ratio_error(result: Result, row: Row, metric: str) -> float:
    """The standard error of a ratio to the untreated line, by how far each seed is off it."""
    untreated, ratio = result.untreated(row), result.ratio(row, metric)
    if untreated is None or math.isnan(ratio):
        return 0.0
    own, others = (np.asarray(one.values.get(metric, ()), float) for one in (row, untreated))
    if len(own) != len(others) or len(own) < 2:
        return 0.0
    # To first order the ratio is off by this much, seed by seed; of the untreated line by nothing.
    off = (own - ratio * others) / untreated.mean(metric)
    return _known(float(off.std(ddof=1)) / math.sqrt(len(off)))


def _known(error: float) -> float:
    return 0.0 if math.isnan(error) else error
