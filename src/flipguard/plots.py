"""Draw pictures of results with matplotlib, which is imported only when a picture is drawn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError, MissingExtraError
from flipguard.files import replacing
from flipguard.formatting import format_percent

if TYPE_CHECKING:
    from flipguard.matrices import Matrix


# Dates are left out, so that the same numbers give the same bytes.
UNDATED: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
DOTS_PER_INCH = 160
INK, FAINT = "#1f2430", "#6b7280"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.hashsalt": "flipguard",
}

FloatArray = npt.NDArray[np.float64]

LONGEST_NAME = 28
# A cell of many models, and a cell of few.
CELL_INCHES = (0.48, 1.15)
SMALLEST_SQUARE = 3.2
# Laying out numbers is slow: with more models the picture shows only colours.
MOST_NUMBERED = 24
LARGEST_SQUARE = MOST_NUMBERED * CELL_INCHES[0]
# With more models the names would be too small to read.
MOST_MODELS = 200
GAP_INCHES = 1.15
EM_PER_LETTER = 0.6
# The luminance at which white and dark text have equal contrast.
EQUAL_CONTRAST = 0.22
EMPTY = "#eef0f3"
GAIN_COLOURS = ("#a50f15", "#de4b3a", "#f7a58b", "#fbfaf8", "#9cc5e0", "#3a86bf", "#08457e")
FLIP_COLOURS = ("#fdf7f0", "#fdd9b0", "#fcab6b", "#ef6a3b", "#c22e22", "#7a0c18")


@contextmanager
def picture(
    path: str | os.PathLike[str], *, of: str, style: Mapping[Any, Any] | None = None
) -> Iterator[Any]:
    """A figure to draw on, which is saved as PNG, SVG or PDF by the suffix of `path`."""
    file = check_picture(path, of=of)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, **(style or {})}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure
        with replacing(file) as partial:
            figure.savefig(
                partial,
                format=file.suffix[1:].lower(),
                dpi=DOTS_PER_INCH,
                bbox_inches="tight",
                pad_inches=0.2,
                metadata=UNDATED[file.suffix.lower()],
            )


def check_picture(path: str | os.PathLike[str], *, of: str) -> Path:
    """Raise if a picture cannot be drawn, before other work is done for it."""
    file = Path(path)
    if file.suffix.lower() not in UNDATED:
        raise InputError(f"{file} does not end in the suffix of a picture; use .png, .svg or .pdf.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError(
            f"The picture of {of}", package="matplotlib", extra="report"
        ) from problem
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPanel:
    """One square of a matrix: its numbers in percent, and its colours."""

    title: str
    sentence: str
    values: FloatArray
    colours: tuple[str, ...]
    diverging: bool = False

    @property
    def limits(self) -> tuple[float, float]:
        """The numbers at the ends of the colour bar."""
        found = np.abs(self.values[np.isfinite(self.values)])
        # Differences of less than a point must not glow like large ones.
        largest = float(found.max(initial=1.0))
        return (-largest if self.diverging else 0.0), largest

    def text(self, value: float) -> str:
        """A number as a cell shows it."""
        return _signed(f"{value:+.1f}") if self.diverging else f"{value:.1f}"


def plot_matrix(matrix: Matrix, path: str | os.PathLike[str]) -> None:
    """Draw a matrix of models as a PNG, SVG or PDF file, by its suffix."""
    check_models(len(matrix.names))
    with picture(path, of="a matrix") as figure:
        _draw(figure, matrix)


def check_models(count: int) -> None:
    """Refuse more models than one picture can show."""
    if count > MOST_MODELS:
        raise InputError(
            f"Expected at most {MOST_MODELS} models in one picture, but got {count:,}; draw fewer."
        )


def _panels(matrix: Matrix, order: npt.NDArray[np.intp]) -> list[MatrixPanel]:
    def percent(values: FloatArray) -> FloatArray:
        return 100 * values[np.ix_(order, order)]

    if np.isnan(matrix.error_rate).all():
        # Without targets nothing is right or wrong; that answers changed is all there is to see.
        return [
            MatrixPanel(
                title="Churn",
                sentence="samples on which the new model answers otherwise",
                values=percent(matrix.churn),
                colours=FLIP_COLOURS,
            )
        ]
    return [
        MatrixPanel(
            title="Accuracy gain",
            sentence="accuracy of the new model minus that of the old one",
            values=percent(matrix.accuracy_gain),
            colours=GAIN_COLOURS,
            diverging=True,
        ),
        MatrixPanel(
            title="Negative flip rate",
            sentence="samples that the old model gets right and the new one wrong",
            values=percent(matrix.negative_flip_rate),
            colours=FLIP_COLOURS,
        ),
    ]


def _draw(figure: Any, matrix: Matrix) -> None:
    """Draw squares of equal size next to each other, laid out in inches."""
    order = np.argsort(-matrix.error_rate, kind="stable")
    panels, k = _panels(matrix, order), len(order)
    names = _short_names([matrix.names[i] for i in order])
    side = float(np.clip(k * np.clip(7.0 / k, *CELL_INCHES), SMALLEST_SQUARE, LARGEST_SQUARE))
    width = len(panels) * side + (len(panels) - 1) * GAP_INCHES
    figure.set_size_inches(width, side)
    # Never larger than the height of a row; an inch has 72 points.
    size = float(min(np.clip(side / k * 17, 7.5, 10.5), 0.8 * 72 * side / k))
    for i, panel in enumerate(panels):
        place = (i * (side + GAP_INCHES) / width, 0.0, side / width, 1.0)
        axes = figure.add_axes(place)
        _draw_panel(figure, axes, panel, inches=side / k)
        axes.set_xticks(range(k), names)
        axes.set_xlabel("New model", color=FAINT, fontsize=10, labelpad=6)
        rows = _with_error_rates(names, matrix.error_rate[order]) if i == 0 else [""] * k
        axes.set_yticks(range(k), rows)
        axes.set_ylabel("Old model", color=FAINT, fontsize=10, labelpad=6)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(parse_math=False, fontsize=size, color=INK)
        if max(map(len, names)) * size * EM_PER_LETTER / 72 > 0.9 * side / k:
            for label in axes.get_xticklabels():
                label.set(rotation=45, ha="right", rotation_mode="anchor")
    note = f"{matrix.n:,} {'sample' if matrix.n == 1 else 'samples'}"
    if not np.isnan(matrix.error_rate).all():
        note += "; models from worst to best, with their error rates"
    _caption(figure.axes[0], note, points_above=46, size=9, color=FAINT)


def _draw_panel(figure: Any, axes: Any, panel: MatrixPanel, *, inches: float) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    k = len(panel.values)
    low, high = panel.limits
    plain = LinearSegmentedColormap.from_list(panel.title, panel.colours)
    colours = plain.with_extremes(bad=EMPTY)
    # A model is not an update of itself, so the diagonal is empty.
    empty = np.eye(k, dtype=np.bool_) | np.isnan(panel.values)
    shown = np.where(empty, np.nan, panel.values)
    image = axes.imshow(shown, cmap=colours, vmin=low, vmax=high, aspect="auto")
    size = float(np.clip(inches * 72 / 4.6, 5.5, 12.0))
    for i in range(k if k <= MOST_NUMBERED else 0):
        for j in range(k):
            if empty[i, j]:
                text, colour = "–", FAINT
            else:
                text = panel.text(float(panel.values[i, j]))
                colour = _legible(image.cmap(image.norm(panel.values[i, j])))
            axes.text(j, i, text, ha="center", va="center", fontsize=size, color=colour)
    axes.set_xticks(np.arange(k - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(k - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    _caption(axes, f"{panel.title} (%)", points_above=24, size=12.5, color=INK, weight="bold")
    _caption(axes, panel.sentence, points_above=9, size=9, color=FAINT)
    _colour_bar(figure, axes, image, panel, side=inches * k)


def _colour_bar(figure: Any, axes: Any, image: Any, panel: MatrixPanel, *, side: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    bar_axes = axes.inset_axes((1.0 + 0.12 / side, 0.0, 0.14 / side, 1.0))
    bar = figure.colorbar(image, cax=bar_axes, ticks=MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    form = "{:+g}" if panel.diverging else "{:g}"
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _signed(form.format(v)) + "%"))
    bar.ax.tick_params(length=0, labelsize=8.5, labelcolor=FAINT, pad=3)
    bar.outline.set_visible(False)


def _caption(axes: Any, text: str, *, points_above: float, size: float, **style: Any) -> None:
    axes.annotate(
        text,
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(0.0, points_above),
        textcoords="offset points",
        fontsize=size,
        **style,
    )


def _legible(colour: tuple[float, float, float, float]) -> str:
    """A text colour that is readable on a cell: dark on light cells, white on dark ones."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if luminance > EQUAL_CONTRAST else "white"


def _signed(number: str) -> str:
    """A number with a typographic minus sign; 0 has no sign.

    >>> _signed("-1.5"), _signed("+0.0")
    ('−1.5', '0.0')
    """
    return number.lstrip("+-") if float(number) == 0 else number.replace("-", "−")


def _with_error_rates(names: list[str], rates: FloatArray) -> list[str]:
    text = zip(names, rates, strict=True)
    return [
        name if np.isnan(rate) else f"{name}  {format_percent(rate, decimals=1)}"
        for name, rate in text
    ]


def _short_names(names: list[str]) -> list[str]:
    """Shortened names, or the full names if shortening would make two of them equal."""
    short = [_short(name) for name in names]
    return short if len(set(short)) == len(set(names)) else [" ".join(n.split()) for n in names]


def _short(name: str) -> str:
    # The ends of names differ more often than their middles.
    name = " ".join(name.split())
    if len(name) <= LONGEST_NAME:
        return name
    head = LONGEST_NAME // 2 - 2
    return f"{name[:head]}…{name[-(LONGEST_NAME - head - 1) :]}"
