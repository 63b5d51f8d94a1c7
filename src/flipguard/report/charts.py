"""Parts that all charts share, drawing them as SVG, and the flow diagram.

The charts themselves belong to `group_charts` and `score_charts`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flipguard.render.numbers import OutcomeTable
from flipguard.report.drawer import drawn

if TYPE_CHECKING:
    from markupsafe import Markup


Spec = dict[str, Any]
Point = dict[str, Any]

SERIES = tuple(f"var(--series-{i})" for i in range(1, 9))
SOFT, INK, LINE, PAGE = "var(--soft)", "var(--ink)", "var(--line)", "var(--page)"
HARM, GAIN = "var(--harm)", "var(--gain)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CONFIG: Spec = {
    "background": None,
    "font": FONT,
    # A chart is one picture with one name; a screen reader reads the table next to it.
    "mark": {"aria": False},
    "view": {"stroke": None, "continuousWidth": 480},
    "axis": {
        "aria": False,
        "labelColor": SOFT,
        "titleColor": SOFT,
        "gridColor": LINE,
        "domainColor": LINE,
        "tickColor": LINE,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "labelLimit": 190,
    },
    "legend": {
        "aria": False,
        "labelColor": INK,
        "titleColor": SOFT,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "orient": "top",
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
        "labelLimit": 220,
    },
}

# Vega with its expression interpreter, so that the page never evaluates text as code.
BUNDLE = "window.flipguardEmbed = vegaEmbed;"
ARIA = r' (?:role|aria-[a-z]+)="[^"]*"'
NAME = r'(\bid="|url\(#)((?:clip|gradient)[^")]*)'
NOTICE = """\
/*! Vega, Vega-Lite and Vega-Embed: Copyright (c) University of Washington Interactive Data Lab and
contributors, BSD 3-Clause License (https://github.com/vega/vega/blob/main/LICENSE). */
"""

WIDTH, HEIGHT, NODE, GAP, TOP = 540.0, 250.0, 12.0, 34.0, 8.0
LEFT, RIGHT = 96.0, WIDTH - 96.0 - 12.0
# Even a flow of one sample in a million stays visible.
THINNEST = 1.5


def chart(**parts: Any) -> Spec:
    """A Vega-Lite chart that is as wide as its container."""
    return {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        **parts,
    }


def amount(field: str, title: str, **more: Any) -> Spec:
    """The encoding of a number, along an axis or as a size."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def tips_of(**fields: str) -> list[Spec]:
    """A tooltip: each field with its title."""
    return [{"field": field, "title": title} for field, title in fields.items()]


def picked_by_legend(field: str) -> list[Spec]:
    """A parameter that lets a reader choose lines in the legend; the others fade."""
    select = {"type": "point", "fields": [field]}
    return [{"name": "chosen", "select": select, "bind": "legend"}]


FADED: Spec = {"condition": {"param": "chosen", "value": 1}, "value": 0.12}


def heat(
    values: list[Point],
    *,
    x: Spec,
    y: Spec,
    x_scale: Spec,
    y_scale: Spec,
    tips: list[Spec],
    height: Any,
    text: bool,
) -> Spec:
    """A heat map whose cells are shaded by their number of samples."""
    most = max((value["n"] for value in values), default=1)
    shade = {"domain": [0, most], "range": [0.06, 1]}
    layers: list[Spec] = [
        {
            "mark": {"type": "rect", "color": HARM, "cornerRadius": 3, "stroke": PAGE},
            "encoding": {
                "opacity": {
                    "field": "n",
                    "type": "quantitative",
                    "scale": shade,
                    "legend": None,
                },
                "tooltip": tips,
            },
        }
    ]
    if text:
        # On a dark cell only the background colour of the page is readable.
        dark = {"condition": {"test": f"datum.n > {0.72 * most}", "value": PAGE}, "value": INK}
        layers.append(
            {
                "mark": {"type": "text", "fontSize": 11, "tooltip": None},
                "encoding": {"text": {"field": "n", "type": "quantitative"}, "color": dark},
            }
        )
    return chart(
        height=height,
        data={"values": values},
        encoding={"x": {**x, "scale": x_scale}, "y": {**y, "scale": y_scale}},
        layer=layers,
    )


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with its description and specification; it is drawn on first use."""

    id: str
    title: str
    sentence: str
    spec: Spec

    @property
    def svg(self) -> Markup:
        """The chart as SVG, which needs no JavaScript."""
        with _one_chart:
            return self._svg

    @property
    def vega(self) -> dict[str, Any]:
        """The Vega specification for the browser, compiled here from Vega-Lite."""
        with _one_chart:
            return self._vega

    @cached_property
    def _svg(self) -> Markup:
        from markupsafe import Markup, escape

        svg = _named_apart(drawn("vegalite_to_svg", self.spec), self.id)
        told = escape(self.sentence)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{told}" ', 1)
        return Markup(svg)  # noqa: S704 (Vega escapes what it draws)

    @cached_property
    def _vega(self) -> dict[str, Any]:
        return {**drawn("vegalite_to_vega", self.spec), "description": self.sentence}


def _named_apart(svg: str, id: str) -> str:
    """The SVG with ids that are unique on the page, and without ARIA roles of its parts.

    Vega numbers its ids across all drawings of a process. Without new names they would clash on
    one page, and writing the same page twice would give different bytes.
    """
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return found[1] + names.setdefault(found[2], f"{id}-{len(names)}")

    def tag(found: re.Match[str]) -> str:
        return re.sub(NAME, renamed, re.sub(ARIA, "", found[0]))

    # Only within tags: a label may read like an attribute.
    return re.sub(r"<[^>]*>", tag, svg)


def runtime() -> str:
    """The script that makes the charts interactive."""
    with _one_bundle:
        return _runtime()


def prepare() -> None:
    """Have the process that draws warmed up, and the script made, while other work is done."""

    def make() -> None:
        # What goes wrong is raised once the script is asked for.
        with suppress(Exception):
            runtime()
            drawn("vegalite_to_svg", {"data": {"values": []}, "mark": "point"})

    threading.Thread(target=make, daemon=True).start()


def draw_ahead(charts: Iterable[Chart]) -> None:
    """Have charts drawn while other work is done."""

    def draw() -> None:
        # What goes wrong is raised once the chart is asked for.
        with suppress(Exception):
            for one in charts:
                _ = one.svg, one.vega

    threading.Thread(target=draw, daemon=True).start()


_one_bundle = threading.Lock()
# A chart that is being drawn is waited for, not drawn a second time.
_one_chart = threading.Lock()


@lru_cache(maxsize=1)
def _runtime() -> str:
    return NOTICE + str(drawn("javascript_bundle", BUNDLE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ribbon:
    """A ribbon from a stretch on the left to a stretch on the right."""

    kind: str
    title: str
    left: float
    right: float
    thickness: float

    @property
    def path(self) -> str:
        """The outline of the ribbon as an SVG path."""
        x0, x1, middle = LEFT + NODE, RIGHT, (LEFT + NODE + RIGHT) / 2
        a, b, t = self.left, self.right, self.thickness
        return (
            f"M{x0:.1f},{a:.1f}C{middle:.1f},{a:.1f} {middle:.1f},{b:.1f} {x1:.1f},{b:.1f}"
            f"V{b + t:.1f}C{middle:.1f},{b + t:.1f} {middle:.1f},{a + t:.1f} {x0:.1f},{a + t:.1f}Z"
        )


def ribbons_between(square: OutcomeTable) -> tuple[Ribbon, ...]:
    """The four ribbons, each with a thickness proportional to its samples."""
    scale = (HEIGHT - 2 * TOP - GAP) / square.n

    def thick(samples: int) -> float:
        return max(scale * samples, THINNEST if samples else 0.0)

    kept, broken = thick(square.both_right.samples), thick(square.negative.samples)
    fixed, wrong = thick(square.positive.samples), thick(square.both_wrong.samples)
    old_wrong = TOP + kept + broken + GAP
    new_wrong = TOP + kept + fixed + GAP
    return (
        Ribbon(
            kind="kept",
            title=f"{square.both_right.samples:,} stay right",
            left=TOP,
            right=TOP,
            thickness=kept,
        ),
        Ribbon(
            kind="kept",
            title=f"{square.both_wrong.samples:,} stay wrong",
            left=old_wrong + fixed,
            right=new_wrong + broken,
            thickness=wrong,
        ),
        Ribbon(
            kind="gain",
            title=f"{square.positive.samples:,} are fixed",
            left=old_wrong,
            right=TOP + kept,
            thickness=fixed,
        ),
        Ribbon(
            kind="harm",
            title=f"{square.negative.samples:,} break",
            left=TOP + kept,
            right=new_wrong,
            thickness=broken,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnd:
    """One node of the flow diagram: a model, and whether it is right."""

    name: str
    samples: int
    x: float
    y: float
    height: float


def flow_ends(square: OutcomeTable) -> tuple[FlowEnd, ...]:
    """The four nodes: old right and wrong on the left, new right and wrong on the right."""
    kept, wrong, fixed, broken = ribbons_between(square)
    cells = (square.both_right, square.both_wrong, square.positive, square.negative)
    stay, lost, gain, harm = (cell.samples for cell in cells)

    def node(name: str, samples: int, x: float, y: float, *parts: Ribbon) -> FlowEnd:
        height = max(sum(part.thickness for part in parts), 1.0)
        return FlowEnd(name=name, samples=samples, x=x, y=y, height=height)

    return (
        node("old right", stay + harm, LEFT, TOP, kept, broken),
        node("old wrong", gain + lost, LEFT, fixed.left, fixed, wrong),
        node("new right", stay + gain, RIGHT, TOP, kept, fixed),
        node("new wrong", harm + lost, RIGHT, broken.right, broken, wrong),
    )


def alluvial(square: OutcomeTable) -> Markup:
    """The flow diagram as SVG; the titles of its parts are tooltips."""
    from markupsafe import Markup

    ribbons = ribbons_between(square)
    parts = [
        Markup('<path class="{}" d="{}"><title>{}</title></path>').format(f.kind, f.path, f.title)
        for f in ribbons
    ]
    for node in flow_ends(square):
        anchor, at = ("end", node.x - 8) if node.x == LEFT else ("start", node.x + NODE + 8)
        # The label of a thin node is moved up so that it stays inside the drawing.
        middle = min(max(node.y + node.height / 2, TOP + 8), HEIGHT - 18)
        parts.append(
            Markup(
                '<rect class="node" x="{:.0f}" y="{:.1f}" width="{:.0f}" height="{:.1f}"/>'
                '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
            ).format(node.x, node.y, NODE, node.height, at, middle, anchor, node.name)
        )
        parts.append(
            Markup('<text class="small" x="{:.1f}" y="{:.1f}" text-anchor="{}">{:,}</text>').format(
                at, middle + 17, anchor, node.samples
            )
        )
    told = f"Flows: {', '.join(ribbon.title for ribbon in ribbons)}."
    return Markup(
        '<svg class="alluvial" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, told, Markup("").join(parts))
