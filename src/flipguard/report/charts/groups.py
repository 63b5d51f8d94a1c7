"""Groups as dots with their intervals."""

from __future__ import annotations

from flipguard.report.charts.base import (
    GAIN,
    HARM,
    INK,
    SOFT,
    Point,
    Spec,
    amount,
    chart,
    tips_of,
)
from flipguard.report.content import Number
from flipguard.report.groups import GroupTable
from flipguard.report.safe import short_labels

GROUPS_DRAWN = 24
CHANGE_COLOURS = {
    "domain": ["regressed", "improved", "no clear change"],
    "range": [HARM, GAIN, SOFT],
}


def groups_chart(table: GroupTable, whole: Number) -> Spec:
    """The worst groups as dots with their intervals, beside the rate of all samples."""
    rows = table.rows[:GROUPS_DRAWN]
    labels = short_labels([row.name for row in rows])
    word = "negative flips" if table.rate == "negative_flip_rate" else "churn"
    values = [
        {
            "group": label,
            "rate": 100 * row.rate.value,
            "low": 100 * (row.rate.value if row.rate.low is None else row.rate.low),
            "high": 100 * (row.rate.value if row.rate.high is None else row.rate.high),
            "change": row.change or "no clear change",
            "n": f"{row.n:,}",
            "told": f"{row.rate.text} ({row.rate.interval})",
            "gain": row.gain.text,
            "p": row.p_text,
        }
        for label, row in zip(labels, rows, strict=True)
        if row.rate.value is not None
    ]
    tips = tips_of(group="group", told=word, gain="accuracy gain", p="adjusted p", n="samples")
    title = f"{word}, % of the group"
    return _dots(values, tips, title=title, whole=100 * (whole.value or 0.0), zero=True)


def displacement_chart(table: GroupTable, whole: Number) -> Spec:
    """How far logits move, group by group."""
    rows = [row for row in table.rows[:GROUPS_DRAWN] if row.displacement is not None]
    labels = short_labels([row.name for row in rows])
    values = []
    for label, row in zip(labels, rows, strict=True):
        found = row.displacement
        if found is None or found.value is None:
            continue
        values.append(
            {
                "group": label,
                "rate": found.value,
                "low": found.low if found.low is not None else found.value,
                "high": found.high if found.high is not None else found.value,
                "change": "no clear change",
                "told": f"{found.text} ({found.interval})",
                "n": f"{row.n:,}",
            }
        )
    tips = tips_of(group="group", told="mean distance", n="samples")
    title = "mean distance of logits"
    return _dots(values, tips, title=title, whole=whole.value or 0.0, zero=False)


def _dots(values: list[Point], tips: list[Spec], *, title: str, whole: float, zero: bool) -> Spec:
    y: Spec = {"field": "group", "type": "nominal", "sort": None, "title": None}
    y["axis"] = {"ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8}
    present = [c for c in CHANGE_COLOURS["domain"] if any(v["change"] == c for v in values)]
    colours = {
        "domain": present,
        "range": [CHANGE_COLOURS["range"][CHANGE_COLOURS["domain"].index(c)] for c in present],
    }
    colour: Spec = {"field": "change", "type": "nominal", "scale": colours, "title": None}
    if len(present) < 2:
        colour["legend"] = None
    scale = {"zero": zero, "nice": True}
    axis = {"tickCount": 6}
    x = amount("rate", title, scale=scale, axis=axis)
    return chart(
        height={"step": 24},
        data={"values": values},
        encoding={"y": y, "color": colour, "tooltip": tips},
        layer=[
            {
                "mark": {"type": "rule", "color": SOFT, "strokeDash": [3, 3]},
                "data": {"values": [{"whole": whole, "told": "all samples"}]},
                "encoding": {
                    "x": amount("whole", title, scale=scale, axis=axis),
                    "y": {"value": 0},
                    "y2": {"value": {"expr": "height"}},
                    "color": {"value": SOFT},
                    "tooltip": {"field": "told"},
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.45, "strokeCap": "round"},
                "encoding": {
                    "x": amount("low", title, scale=scale, axis=axis),
                    "x2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                "encoding": {"x": x},
            },
        ],
    )
