"""Charts of confidence, calibration, and the distance between old and new scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flipguard.counts import BINS
from flipguard.report.charts import (
    FADED,
    GAIN,
    HARM,
    INK,
    SOFT,
    Spec,
    amount,
    chart,
    heat,
    picked_by_legend,
    tips_of,
)
from flipguard.report.scores import OUTCOMES, Displacement, Reliability

if TYPE_CHECKING:
    from flipguard.engines.thresholds import Thresholds

SIDE_COLOURS = {"domain": ["old", "new"], "range": ["var(--old)", "var(--new)"]}


def reliability_chart(sides: Sequence[Reliability]) -> Spec:
    """A chart of accuracy over confidence; a calibrated model lies on the diagonal."""
    values = [
        {
            "side": side.side,
            "confidence": b.confidence,
            "accuracy": b.accuracy,
            "n": b.n,
            "told": f"{100 * b.accuracy:.1f} % right",
            "sure": f"{100 * b.confidence:.1f} %",
        }
        for side in sides
        for b in side.bins
    ]
    percent = {"format": ".0%", "tickCount": 5}
    scale = {"domain": [0, 1]}
    colour = {"field": "side", "type": "nominal", "scale": SIDE_COLOURS, "title": None}
    encoding = {
        "x": amount("confidence", "mean confidence", axis=percent, scale=scale),
        "y": amount("accuracy", "accuracy", axis=percent, scale=scale),
        "color": colour,
    }
    tips = tips_of(side="model", sure="confidence", told="accuracy", n="samples")
    return chart(
        height=300,
        layer=[
            {
                "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
                "mark": {"type": "line", "color": SOFT, "strokeDash": [4, 4], "strokeWidth": 1},
                "encoding": {"x": amount("x", "mean confidence"), "y": amount("y", "accuracy")},
            },
            {
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": encoding,
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {**encoding, "tooltip": tips},
            },
        ],
    )


def confidence_chart(sides: Sequence[Reliability]) -> Spec:
    """A histogram of confidence for the old and the new model."""
    values = [
        {
            "side": side.side,
            "bin": round(100 * b.low),
            "range": f"{100 * b.low:.0f}–{100 * b.high:.0f} %",
            "share": 100 * b.share,
            "told": f"{100 * b.share:.1f} %",
            "n": f"{b.n:,}",
        }
        for side in sides
        for b in side.bins
    ]
    return chart(
        height=220,
        data={"values": values},
        mark={"type": "bar"},
        encoding={
            "x": {
                "field": "bin",
                "type": "ordinal",
                "title": "confidence from, %",
                "scale": {"domain": [round(100 * b / BINS) for b in range(BINS)]},
                "axis": {"labelAngle": 0, "labelOverlap": "greedy"},
            },
            "xOffset": {"field": "side", "sort": ["old", "new"]},
            "y": amount("share", "% of samples", axis={"tickCount": 5}),
            "color": {"field": "side", "type": "nominal", "scale": SIDE_COLOURS, "title": None},
            "tooltip": tips_of(side="model", range="confidence", told="share", n="samples"),
        },
    )


THRESHOLD_LINES = {"negative flips": HARM, "positive flips": GAIN, "error of new": SOFT}


def highest_drawn(found: Thresholds) -> float | None:
    """The percentage at which the lines of thresholds are cut off; None if all of them fit.

    Far from the threshold in use nearly all samples flip. Three times its highest line leaves the
    lines near it legible.
    """
    used = max(found.in_use.negative_flips, found.in_use.positive_flips, found.in_use.wrong)
    drawn = max(max(p.negative_flips, p.positive_flips, p.wrong) for p in found.points)
    return 300 * used / found.n if 0 < 3 * used < drawn else None


def threshold_chart(found: Thresholds) -> Spec:
    """Lines of flips and error over the new model's threshold; a rule marks the one in use.

    Each point is true. Between two of them, where the picture of many scores leaves some out, the
    line is straight.
    """
    values = [
        {
            "what": what,
            "threshold": point.threshold,
            "share": 100 * count / found.n,
            "told": f"{100 * count / found.n:.2f} %",
            "count": f"{count:,}",
        }
        for point in found.points
        for what, count in zip(
            THRESHOLD_LINES,
            (point.negative_flips, point.positive_flips, point.wrong),
            strict=True,
        )
    ]
    marked = [{"threshold": found.in_use.threshold, "mark": "in use", "dash": [1, 0]}]
    if found.best is not None:
        marked.append({"threshold": found.best.threshold, "mark": "fewest flips", "dash": [4, 4]})
    x = amount("threshold", "threshold of the new model", scale={"zero": False})
    scale = {"domain": [*THRESHOLD_LINES], "range": [*THRESHOLD_LINES.values()]}
    top = highest_drawn(found)
    height = {} if top is None else {"scale": {"domain": [0, top], "nice": False}}
    tips = tips_of(what="line", threshold="threshold", told="share", count="samples")
    return chart(
        height=260,
        layer=[
            {
                "data": {"values": [mark]},
                "mark": {"type": "rule", "color": INK, "strokeDash": mark["dash"]},
                "encoding": {"x": x, "tooltip": tips_of(mark="threshold", threshold="value")},
            }
            for mark in marked
        ]
        + [
            {
                "data": {"values": values},
                "mark": {"type": "line", "clip": True, "strokeWidth": 2},
                "encoding": {
                    "x": x,
                    "y": amount("share", "% of samples", axis={"tickCount": 5}, **height),
                    "color": {"field": "what", "type": "nominal", "scale": scale, "title": None},
                    "tooltip": tips,
                },
            }
        ],
    )


def shift_chart(table: Sequence[Sequence[int]]) -> Spec:
    """A heat map of negative flips by the old and the new model's confidence."""
    bins = len(table)
    values = [
        {
            "old": i,
            "new": j,
            "n": n,
            "sure_old": f"{100 * i // bins}–{100 * (i + 1) // bins} %",
            "sure_new": f"{100 * j // bins}–{100 * (j + 1) // bins} %",
        }
        for i, row in enumerate(table)
        for j, n in enumerate(row)
        if n
    ]
    axis = {
        "labelExpr": "datum.value * 10 + ' %'",
        "values": [0, 2, 4, 6, 8],
        "labelAngle": 0,
        "ticks": False,
        "domain": False,
    }
    scale = {"domain": list(range(bins))}
    return heat(
        values,
        x={"field": "new", "type": "ordinal", "title": "new's confidence", "axis": axis},
        y={"field": "old", "type": "ordinal", "title": "old's confidence", "axis": axis},
        x_scale=scale,
        y_scale={"domain": list(range(bins))[::-1]},
        tips=tips_of(sure_old="old's confidence", sure_new="new's confidence", n="samples"),
        height=260,
        text=False,
    )


def moved_chart(found: Displacement) -> Spec:
    """A chart of the distribution of logit distances, one line per outcome."""
    values = [
        {
            "outcome": moved.outcome,
            "distance": (found.edges[i] + found.edges[i + 1]) / 2,
            "share": 100 * share,
            "told": f"{100 * share:.1f} %",
            "range": f"{found.edges[i]:.2f} to {found.edges[i + 1]:.2f}",
        }
        for moved in found.moved
        for i, share in enumerate(moved.shares)
    ]
    colours = ["var(--old)", HARM, GAIN, "var(--series-5)", "var(--series-4)"]
    present = [moved.outcome for moved in found.moved]
    encoding = {
        "x": amount("distance", "distance of logits", axis={"tickCount": 8, "grid": False}),
        "y": amount("share", "% of samples with this outcome", axis={"tickCount": 5}),
        "color": {
            "field": "outcome",
            "type": "nominal",
            "title": None,
            "scale": {
                "domain": present,
                "range": [colours[OUTCOMES.index(outcome)] for outcome in present],
            },
        },
        "opacity": FADED,
    }
    tips = tips_of(outcome="samples that", range="distance", told="share")
    return chart(
        height=240,
        data={"values": values},
        layer=[
            {
                "mark": {"type": "line", "strokeWidth": 2, "interpolate": "monotone"},
                "params": picked_by_legend("outcome"),
                "encoding": encoding,
            },
            {
                "mark": {"type": "point", "filled": True, "size": 22},
                "encoding": {**encoding, "tooltip": tips},
            },
        ],
    )
