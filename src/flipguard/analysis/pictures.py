"""Draw analyses with matplotlib, legible at the width of a column, on a light or a dark page."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flipguard.analysis.claims import Analysis
from flipguard.analysis.law import LawData
from flipguard.analysis.rank import RankData, Ranks
from flipguard.analysis.sizes import SizeCurve, SizesData
from flipguard.analysis.uncertainty import Measure, UncertaintyData
from flipguard.plots import picture

WIDTH, LETTERS = 6.8, 112
TEXT, SMALL = 8.5, 7.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of a page, and of what is drawn on it."""

    page: str
    ink: str
    faint: str
    grid: str
    series: tuple[str, ...]

    @property
    def style(self) -> dict[str, Any]:
        """The settings of matplotlib for this theme."""
        return {
            "figure.facecolor": self.page,
            "axes.facecolor": self.page,
            "savefig.facecolor": self.page,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "axes.edgecolor": self.faint,
            "axes.titlesize": TEXT,
            "axes.titlecolor": self.ink,
            "axes.labelsize": TEXT,
            "xtick.color": self.faint,
            "ytick.color": self.faint,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "xtick.labelsize": SMALL,
            "ytick.labelsize": SMALL,
            "legend.fontsize": SMALL,
            "legend.frameon": False,
            "legend.labelcolor": self.ink,
            "grid.color": self.grid,
            "grid.linewidth": 0.6,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }


THEMES = {
    "light": Theme(
        page="#ffffff",
        ink="#1f2430",
        faint="#6b7280",
        grid="#e5e7eb",
        series=("#08457e", "#c2410c", "#2f7d32", "#8a4f9e"),
    ),
    "dark": Theme(
        page="#1a1e26",
        ink="#e9ecf2",
        faint="#98a3b6",
        grid="#343b49",
        series=("#7fc6f3", "#ff9d76", "#7fd18b", "#d3a4ec"),
    ),
}


def draw(
    result: Analysis[Any],
    path: str | os.PathLike[str],
    *,
    theme: Literal["light", "dark"],
    panels: Callable[[Any, Any, Theme], None],
    height: float,
) -> None:
    """Draw the panels of an analysis, with its sentence below them."""
    colours = THEMES[theme]
    with picture(path, of="an analysis", style=colours.style) as figure:
        figure.set_size_inches(WIDTH, height)
        panels(figure, result.data, colours)
        figure.tight_layout(w_pad=2.0, h_pad=1.5)
        # A number stays on one line with its unit.
        words = f"{result.sentence} {result.n:,} samples.".replace(" %", "\N{NO-BREAK SPACE}%")
        caption = textwrap.fill(words, LETTERS)
        figure.text(0.01, -0.02, caption, va="top", fontsize=TEXT, color=colours.ink)


def draw_sizes(figure: Any, data: SizesData, theme: Theme) -> None:
    """Draw the error, and next to it the negative flip rate, by ensemble size."""
    left, right = figure.subplots(1, 2)
    sizes = np.array(data.sizes)
    names = ("old", "new") if data.new else ("error",)
    for name, curve, colour in zip(
        names, (data.error_rate_old, data.error_rate_new), theme.series, strict=False
    ):
        _curve(left, sizes, curve, colour, name)
    _size_axis(left, "Error rate", sizes.tolist())
    if data.new:
        left.legend()
    colour = theme.series[2]
    _curve(right, sizes, data.negative_flip_rate, colour, "drawn, and 95 % of draws")
    law = 100 * np.array(data.law.negative_flip_rate)
    right.plot(data.law.sizes, law, "o", mfc="none", ms=6, color=theme.ink, label="normal law")
    shown = sizes.tolist()
    if data.extrapolated.sizes:
        *larger, _ = zip(data.extrapolated.sizes, data.extrapolated.negative_flip_rate, strict=True)
        at = [size for size, _ in larger]
        values = [100 * max(rate, 0.0) for _, rate in larger]
        right.plot(
            [sizes[-1], *at],
            [100 * data.negative_flip_rate.mean[-1], *values],
            ":",
            color=colour,
            label="extrapolated",
        )
        limit = 100 * max(0.0, data.extrapolated.negative_flip_rate[-1])
        right.axhline(limit, color=theme.faint, lw=0.9, ls="--", label="without limit of size")
        shown += at
    right.set_ylim(bottom=0)
    _size_axis(right, "Negative flip rate", shown)
    right.legend()


def _curve(axes: Any, sizes: Any, curve: SizeCurve, colour: str, name: str) -> None:
    low, high = 100 * np.array(curve.draw_low), 100 * np.array(curve.draw_high)
    axes.fill_between(sizes, low, high, color=colour, alpha=0.18, lw=0)
    axes.plot(sizes, 100 * np.array(curve.mean), "-", color=colour, label=name, lw=1.6)


def _size_axis(axes: Any, title: str, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    ticks = [size for size in sizes if size & (size - 1) == 0 or size == sizes[-1]]
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("models per ensemble (m)")
    axes.set_title(f"{title} (%)", loc="left")


def draw_law(figure: Any, data: LawData, theme: Theme) -> None:
    """Draw one sample's norms with their law, the trace by size, and the fit over all samples."""
    grid = figure.add_gridspec(2, 2)
    _draw_norms(figure.add_subplot(grid[0, :]), data, theme)
    _draw_trace(figure.add_subplot(grid[1, 0]), data, theme)
    _draw_levels(figure.add_subplot(grid[1, 1]), data, theme)


def _draw_norms(axes: Any, data: LawData, theme: Theme) -> None:
    shown = data.sample
    edges = np.array(shown.edges)
    for i, (size, counts, density) in enumerate(
        zip(shown.sizes, shown.counts, shown.density, strict=True)
    ):
        colour = theme.series[i % len(theme.series)]
        heights = np.array(counts) / (sum(counts) * np.diff(edges))
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.25, lw=0)
        axes.plot(shown.at, density, color=colour, lw=1.5, label=f"m = {size}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("norm of the displacement; area: drawn, line: normal law")
    axes.set_title(f"Logit displacement of sample {shown.id} (density)", loc="left")
    axes.legend()


def _draw_trace(axes: Any, data: LawData, theme: Theme) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    trace = data.trace
    sizes = np.array(trace.sizes)
    slope = f"{trace.slope:.2f}".replace("-", "−")
    for name, values, colour in (
        ("squared displacement", trace.squared_displacement, theme.series[1]),
        (f"covariance, slope {slope}", trace.covariance, theme.series[0]),
    ):
        axes.plot(sizes, values, "o-", ms=3.5, color=colour, label=name)
    axes.plot(sizes, trace.covariance[0] / sizes, "--", color=theme.faint, lw=1, label="1/m")
    _size_axis(axes, "", list(trace.sizes))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("Squared displacement, all samples", loc="left")
    axes.legend()


def _draw_levels(axes: Any, data: LawData, theme: Theme) -> None:
    fit = data.fit
    edges = np.linspace(0, 1, len(fit.levels) + 1)
    total = sum(fit.levels)
    found = 100 * np.array(fit.levels) / total
    axes.stairs(found, edges, fill=True, color=theme.series[0], alpha=0.35, lw=0, label="found")
    axes.stairs(
        100 * np.array(fit.expected_levels) / total,
        edges,
        color=theme.series[1],
        lw=1.5,
        label="expected by the law",
    )
    axes.set_ylim(0, 1.25 * float(max(found.max(), 100 / len(found))))
    axes.set_xlabel("law's probability of a smaller displacement")
    axes.set_title("Fit, all samples (% of pairs)", loc="left")
    axes.legend(loc="upper right")


def draw_rank(figure: Any, data: RankData, theme: Theme) -> None:
    """Draw the ranks of wrong classes, and the displacement's share by the number of classes."""
    left, right = figure.subplots(1, 2)
    every: list[tuple[str, Ranks]] = [("single models", data.models)]
    if data.ensembles is not None:
        every.append(("ensembles", data.ensembles))
    most = min(len(data.models.counts), data.classes)
    width = 0.8 / len(every)
    for i, (name, ranks) in enumerate(every):
        shares = 100 * np.array(ranks.counts[1:most]) / max(1, ranks.flips)
        at = np.arange(2, most + 1) + (i - (len(every) - 1) / 2) * width
        left.bar(at, shares, width, color=theme.series[i], label=name)
    step = 1 if most <= 10 else 3
    ticks = list(range(2, most + 1, step))
    is_open = most < data.classes
    left.set_xticks(ticks, [f"{t}+" if is_open and t == most else str(t) for t in ticks])
    left.set_xlabel("old model's rank of the flip's wrong class")
    left.set_title("Negative flips (%)", loc="left")
    left.legend()
    left.grid(axis="x", visible=False)
    moved = data.displacement
    sizes = np.array(moved.classes)
    right.plot(
        sizes, 100 * np.array(moved.all_samples), "o-", ms=3.5, color=theme.series[0],
        label="all samples",
    )  # fmt: skip
    right.plot(
        sizes, 100 * np.array(moved.flipped), "s-", ms=3.5, color=theme.series[1],
        label="negative flips",
    )  # fmt: skip
    right.plot(sizes, 100 * sizes / data.classes, "--", color=theme.faint, lw=1, label="by chance")
    right.set_xscale("log")
    right.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    right.minorticks_off()
    right.set_ylim(0, 103)
    right.set_xlabel("top classes of the old model")
    right.set_title("Share of the displacement (%)", loc="left")
    right.legend()


def draw_uncertainty(figure: Any, data: UncertaintyData, theme: Theme) -> None:
    """Draw histograms of the uncertainty of flipped and other samples, by two measures."""
    measures = [data.measures[0], data.measures[-1]]
    for i, measure in enumerate(measures):
        axes = figure.add_subplot(1, 2, i + 1)
        _draw_measure(axes, measure, theme)
        if i == 0:
            axes.legend()


def _draw_measure(axes: Any, measure: Measure, theme: Theme) -> None:
    edges = np.array(measure.edges)
    axes.stairs(measure.others, edges, fill=True, color=theme.faint, alpha=0.3, label="others")
    updates = (("flips", measure.untreated), ("flips, treated", measure.treated))
    for (name, found), colour in zip(updates, theme.series, strict=False):
        if found is not None:
            axes.stairs(found.counts, edges, color=colour, lw=1.6, label=name)
    axes.set_yscale("log")
    # With room for the legend above the bars.
    axes.set_ylim(0.7, 12 * max(1, *measure.others))
    words = {
        "entropy": "entropy of the prediction (nats)",
        "margin": "1 − margin",
        "disagreement": "disagreement of the members",
    }
    axes.set_xlabel(words[measure.name])
    axes.set_title(f"Samples; AUC of flips {measure.untreated.auc:.2f}", loc="left")
