"""Charts of measured rows, as SVG without scripts, readable on light and dark backgrounds.

Drawn without a plotting library, so that the same rows give the same bytes whatever fonts a machine has.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pages.figures import percent
from pages.labels import NEAR, Box, placed

WIDTH, HEIGHT = 760, 500
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 64, 58
LETTER, BOLD = 0.59, 1.1  # width of a letter over its size; of a bold letter over that
NAME_SIZE, NOTE_SIZE, LINE = 12.5, 11.5, 14.5
LOW, MIDDLE, HIGH = (38, 137, 204), (138, 104, 208), (224, 80, 110)

# The chart has its own background: a page may be dark although the reader's system is light.
STYLE = """\
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2430; }
.ground { fill: #ffffff; stroke: #d9dde5; }
.faint, .tick { fill: #596275; }
.grid { stroke: #e6e9ef; }
.control { stroke: #596275; stroke-dasharray: 6 4; stroke-width: 1.6; }
.band { fill: #596275; opacity: 0.12; }
.rim { stroke: #ffffff; }
.lead { stroke: #9aa3b5; stroke-width: 1; }
.apart { fill: #1f2430; stroke: #1f2430; }
@media (prefers-color-scheme: dark) {
  text { fill: #e9ecf2; }
  .ground { fill: #1a1e26; stroke: #353c4a; }
  .faint, .tick { fill: #a7b0c0; }
  .grid { stroke: #2b313d; }
  .control { stroke: #a7b0c0; }
  .band { fill: #a7b0c0; opacity: 0.14; }
  .rim { stroke: #1a1e26; }
  .lead { stroke: #6b7589; }
  .apart { fill: #e9ecf2; stroke: #e9ecf2; }
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A mean over seeds, and one standard deviation to either side."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        mean = statistics.fmean(values)
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(mean=mean, low=mean - deviation, high=mean + deviation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One way: its cost, its negative flips, its error."""

    name: str
    cost: Spread
    breaks: Spread
    error: float
    apart: bool = False  # the reference of the others, not one of them


def costs_and_flips(
    points: Sequence[Point],
    control: Point,
    *,
    title: str,
    note: str,
    across: str,
    upwards: str,
) -> str:
    """Return the chart: negative flips against cost; the colour is the error, the control a line."""
    x, x_ticks = _costs_axis([control, *points])
    y, y_ticks = _flips_axis([control, *points])
    shown = sorted(points, key=lambda point: point.cost.mean)
    errors = [point.error for point in [control, *points] if not point.apart]
    low, high = min(errors), max(errors)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="9"/>',
        _text(LEFT - 40, 27, title, size=15, weight=650),
        _text(LEFT - 40, 46, note, size=NOTE_SIZE, kind="faint"),
        *_scale_of_errors(low, high),
        *_axes(x, x_ticks, y, y_ticks, across, upwards),
        *_control(control, y),
    ]
    parts += _labels(shown, control, x, y)
    for point in [control, *shown]:
        parts += _marked(point, x, y, _colour(point.error, low, high))
    return "\n".join([*parts, "</svg>"]) + "\n"


Scale = Callable[[float], float]


def _costs_axis(points: Sequence[Point]) -> tuple[Scale, list[float]]:
    """A linear scale from 0."""
    high = 1.08 * max(point.cost.high for point in points)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if high / step <= 10)
    room = WIDTH - LEFT - RIGHT
    ticks = [float(number * step) for number in range(int(high / step) + 1)]
    return (lambda value: LEFT + room * value / high), ticks


def _flips_axis(points: Sequence[Point]) -> tuple[Scale, list[float]]:
    """A scale around the points, so that their differences are visible."""
    least = min(point.breaks.low for point in points)
    most = max(point.breaks.high for point in points)
    room = most - least
    low, high = max(least - 0.12 * room, 0.0), most + 0.12 * room
    steps = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
    step = next(step for step in steps if (high - low) / step <= 8)
    ticks = [number * step for number in range(math.ceil(low / step), int(high / step) + 1)]
    height = HEIGHT - TOP - BOTTOM
    return (lambda value: TOP + height * (high - value) / (high - low)), ticks


def _colour(error: float, low: float, high: float) -> str:
    share = (error - low) / (high - low) if high > low else 0.5
    start, end = (LOW, MIDDLE) if share < 0.5 else (MIDDLE, HIGH)
    part = 2 * share - (share >= 0.5)
    return "#" + "".join(
        f"{round(a + (b - a) * part):02x}" for a, b in zip(start, end, strict=True)
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: float,
    weight: int = 400,
    kind: str = "",
    anchor: str = "start",
) -> str:
    named = f' class="{kind}"' if kind else ""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    bold = "" if weight == 400 else f' font-weight="{weight}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{bold}{at}{named}>{escape(text)}</text>'
    )


def _scale_of_errors(low: float, high: float) -> Iterator[str]:
    """The legend of the colours, above the chart."""
    right, width = WIDTH - RIGHT, 120
    yield (
        '<defs><linearGradient id="errors">'
        + "".join(
            f'<stop offset="{share:g}" stop-color="{_colour(low + share * (high - low), low, high)}"/>'
            for share in (0, 0.5, 1)
        )
        + "</linearGradient></defs>"
    )
    yield f'<rect x="{right - width}" y="19" width="{width}" height="8" rx="4" fill="url(#errors)"/>'
    yield _text(right - width - 8, 27, "error", size=NOTE_SIZE, kind="faint", anchor="end")
    yield _text(right - width, 42, percent(low), size=NOTE_SIZE, kind="faint")
    yield _text(right, 42, percent(high), size=NOTE_SIZE, kind="faint", anchor="end")


def _axes(
    x: Scale,
    x_ticks: Sequence[float],
    y: Scale,
    y_ticks: Sequence[float],
    across: str,
    upwards: str,
) -> Iterator[str]:
    foot, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    decimals = 0 if all(abs(100 * tick - round(100 * tick)) < 1e-9 for tick in y_ticks) else 1
    for tick in y_ticks:
        yield f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        told = f"{100 * tick:.{decimals}f} %"
        yield _text(LEFT - 8, y(tick) + 4, told, size=NOTE_SIZE, kind="tick", anchor="end")
    for tick in x_ticks:
        yield f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{foot}"/>'
        yield _text(x(tick), foot + 18, f"{tick:g}", size=NOTE_SIZE, kind="tick", anchor="middle")
    yield _text((LEFT + end) / 2, HEIGHT - 16, across, size=NAME_SIZE, anchor="middle")
    middle = (TOP + foot) / 2
    turned = _text(0, 0, upwards, size=NAME_SIZE, anchor="middle")
    yield f'<g transform="translate(17 {middle:.1f}) rotate(-90)">{turned}</g>'


def _control(control: Point, y: Scale) -> Iterator[str]:
    top, foot, at = (y(v) for v in (control.breaks.high, control.breaks.low, control.breaks.mean))
    end = WIDTH - RIGHT
    yield (
        f'<rect class="band" x="{LEFT}" y="{top:.1f}" width="{end - LEFT}" '
        f'height="{foot - top:.1f}"/>'
    )
    yield f'<line class="control" x1="{LEFT}" x2="{end}" y1="{at:.1f}" y2="{at:.1f}"/>'


def _marked(point: Point, x: Scale, y: Scale, colour: str) -> Iterator[str]:
    """Draw a point with its spread in both directions."""
    across, up = x(point.cost.mean), y(point.breaks.mean)
    paint = 'class="apart"' if point.apart else f'stroke="{colour}" fill="{colour}"'
    for x1, x2, y1, y2 in (
        (across, across, y(point.breaks.high), y(point.breaks.low)),
        (x(point.cost.low), x(point.cost.high), up, up),
    ):
        yield (
            f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" {paint} '
            'stroke-width="1.6" stroke-linecap="round" opacity="0.75"/>'
        )
    if point.apart:
        yield (
            f'<rect x="-5.5" y="-5.5" width="11" height="11" {paint} '
            f'transform="translate({across:.1f} {up:.1f}) rotate(45)"/>'
        )
    else:
        yield (
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="7" fill="{colour}" class="rim" '
            'stroke-width="1.5"/>'
        )


def _labels(points: Sequence[Point], control: Point, x: Scale, y: Scale) -> Iterator[str]:
    """Place the names next to the points so that they cover nothing, and the name of the control's line."""
    line, end = y(control.breaks.mean), WIDTH - RIGHT - 6
    told = f"{control.name}: {percent(control.breaks.mean)} broken, {percent(control.error)} error"
    yield _text(end, line - 7, told, size=NAME_SIZE, weight=600, anchor="end")
    places = [(x(point.cost.mean), y(point.breaks.mean)) for point in points]
    marks = [_marks(point, x, y) for point in points]
    frame = Box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    named = Box(LEFT, line - 18, WIDTH - RIGHT, line + 2)
    boxes = placed(places, [_size(point) for point in points], [*marks, [named]], frame)
    for point, place, box in zip(points, places, boxes, strict=True):
        yield from _label(point, place, box)


def _marks(point: Point, x: Scale, y: Scale) -> list[Box]:
    """The boxes in which a point is drawn."""
    across, up = x(point.cost.mean), y(point.breaks.mean)
    return [
        Box(across - 8, up - 8, across + 8, up + 8),
        Box(across - 2, y(point.breaks.high), across + 2, y(point.breaks.low)),
        Box(x(point.cost.low), up - 2, x(point.cost.high), up + 2),
    ]


def _note(point: Point) -> str:
    return f"{percent(point.error)} error"


def _size(point: Point) -> tuple[float, float]:
    letters = max(BOLD * NAME_SIZE * len(point.name), NOTE_SIZE * len(_note(point)))
    return LETTER * letters + 2, 2 * LINE


def _label(point: Point, place: tuple[float, float], box: Box) -> Iterator[str]:
    middle = (box.left + box.right) / 2
    if box.distance(place) > NEAR:
        to = box.nearest(place)
        yield (
            f'<line class="lead" x1="{place[0]:.1f}" y1="{place[1]:.1f}" '
            f'x2="{to[0]:.1f}" y2="{to[1]:.1f}"/>'
        )
    yield _text(middle, box.top + 12, point.name, size=NAME_SIZE, weight=600, anchor="middle")
    yield _text(
        middle, box.top + 11 + LINE, _note(point), size=NOTE_SIZE, kind="faint", anchor="middle"
    )
