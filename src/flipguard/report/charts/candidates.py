"""Several candidates: where they lie, and how they came there."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.report.charts.base import (
    FADED,
    INK,
    SERIES,
    SOFT,
    Point,
    Spec,
    amount,
    chart,
    picked_by_legend,
    tips_of,
)
from flipguard.report.content import Number
from flipguard.report.runs import RunFolder
from flipguard.report.safe import short_labels

MOST_DOTS = 30


def candidate_point(name: str, error: Number, flips: Number) -> Point | None:
    """A candidate as the scatter takes it, its name fit to be shown; None without targets."""
    if error.value is None or flips.value is None:
        return None

    def percent(value: float | None, otherwise: float) -> float:
        return 100 * (otherwise if value is None else value)

    return {
        "name": name,
        "error": 100 * error.value,
        "error_low": percent(error.low, error.value),
        "error_high": percent(error.high, error.value),
        "error_told": f"{error.text} ({error.interval})",
        "flips": 100 * flips.value,
        "flips_low": percent(flips.low, flips.value),
        "flips_high": percent(flips.high, flips.value),
        "flips_told": f"{flips.text} ({flips.interval})",
    }


def candidates_chart(points: Sequence[Point], old_error: float | None) -> Spec:
    """Error against negative flips, a dot a candidate: the lower left is where to be."""
    x = amount(
        "error",
        "error of the new model, %",
        scale={"zero": False, "nice": True},
        axis={"tickCount": 8},
    )
    y = amount(
        "flips",
        "negative flip rate, %",
        scale={"zero": True, "nice": True},
        axis={"tickCount": 6},
    )
    names = [point["name"] for point in points]
    colour = {
        "field": "name",
        "type": "nominal",
        "title": None,
        "sort": None,
        "scale": {"domain": names, "range": [SERIES[i % len(SERIES)] for i in range(len(names))]},
        "legend": None,
    }
    tips = tips_of(name="candidate", error_told="error of new", flips_told="negative flips")
    spec = chart(
        height=320,
        data={"values": list(points)},
        layer=[
            {
                "mark": {"type": "rule", "opacity": 0.5, "strokeWidth": 2},
                "encoding": {
                    "x": {**x, "field": "error_low"},
                    "x2": {"field": "error_high"},
                    "y": y,
                    "color": colour,
                },
            },
            {
                "mark": {"type": "rule", "opacity": 0.5, "strokeWidth": 2},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "flips_low"},
                    "y2": {"field": "flips_high"},
                    "color": colour,
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 130, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour, "tooltip": tips},
            },
            {
                "mark": {
                    "type": "text",
                    "align": "left",
                    "dx": 10,
                    "dy": -10,
                    "limit": 150,
                    "fontSize": 12,
                    "color": INK,
                },
                "encoding": {"x": x, "y": y, "text": {"field": "name"}},
            },
        ],
    )
    if old_error is not None:
        spec["layer"].insert(
            0,
            {
                "data": {"values": [{"old": old_error, "told": "error of the old model"}]},
                "mark": {"type": "rule", "color": SOFT, "strokeDash": [4, 4]},
                "encoding": {"x": amount("old", x["title"]), "tooltip": {"field": "told"}},
            },
        )
    return spec


def curve_chart(runs: Sequence[RunFolder], what: str) -> Spec:
    """One number over the epochs, a line a run and split; the legend picks runs."""
    labels = short_labels([run.name for run in runs])
    percent = not what.startswith("loss")
    factor, title = (100.0, "%") if percent else (1.0, "loss")
    values = [
        {
            "run": label,
            "split": point.split,
            "epoch": point.epoch,
            "value": factor * point.value,
            "told": f"{factor * point.value:.2f}" + (" %" if percent else ""),
        }
        for label, run in zip(labels, runs, strict=True)
        for point in run.points
        if point.what == what
    ]
    splits = {value["split"] for value in values}
    # Many epochs would make a string of beads; small dots are still there to be hovered.
    size = 34 if max((run.epochs for run in runs), default=0) <= MOST_DOTS else 3
    encoding: Spec = {
        "x": amount("epoch", "epoch", axis={"tickMinStep": 1, "grid": False}),
        "y": amount("value", title, scale={"zero": percent}, axis={"tickCount": 5}),
        "color": {
            "field": "run",
            "type": "nominal",
            "title": None,
            "scale": {
                "domain": labels,
                "range": [SERIES[i % len(SERIES)] for i in range(len(labels))],
            },
        },
        "opacity": FADED,
    }
    if len(splits) > 1:
        encoding["strokeDash"] = {
            "field": "split",
            "type": "nominal",
            "title": None,
            "scale": {"domain": ["test", "train"], "range": [[1, 0], [4, 3]]},
        }
    tips = tips_of(run="run", split="on", epoch="epoch", told="value")
    return chart(
        height=220,
        data={"values": values},
        layer=[
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "params": picked_by_legend("run"),
                "encoding": encoding,
            },
            {
                "mark": {"type": "point", "filled": True, "size": size, "opacity": 1},
                "encoding": {
                    **{k: v for k, v in encoding.items() if k != "strokeDash"},
                    "tooltip": tips,
                },
            },
        ],
    )
