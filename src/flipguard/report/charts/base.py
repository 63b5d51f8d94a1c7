"""What all charts share: colours, type, and the words of the grammar."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]
Point = dict[str, Any]

SERIES = tuple(f"var(--series-{i})" for i in range(1, 9))
SOFT, INK, LINE, PAGE = "var(--soft)", "var(--ink)", "var(--line)", "var(--page)"
HARM, GAIN = "var(--harm)", "var(--gain)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CONFIG: Spec = {
    "background": None,
    "font": FONT,
    # A drawing is one picture with one name; the table beside it is what a screen reader walks.
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


def chart(**parts: Any) -> Spec:
    """A chart as wide as its place."""
    return {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        **parts,
    }


def amount(field: str, title: str, **more: Any) -> Spec:
    """A number along an axis or as a size."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def tips_of(**fields: str) -> list[Spec]:
    """What a pointer is told: fields, each with its words."""
    return [{"field": field, "title": title} for field, title in fields.items()]


def picked_by_legend(field: str) -> list[Spec]:
    """Lets a reader choose lines in the legend; the others fade."""
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
    """Cells shaded by how many samples they hold."""
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
        # On a cell that is more than half filled only the page's own colour stands out.
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
