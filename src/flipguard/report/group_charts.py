"""Charts of groups, of changed answers, and of several candidates."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.render.numbers import Number, short_labels
from flipguard.report.charts import (
    FADED,
    GAIN,
    HARM,
    INK,
    SERIES,
    SOFT,
    Point,
    Spec,
    amount,
    chart,
    heat,
    picked_by_legend,
    tips_of,
)
from flipguard.report.verdict import GroupTable
from flipguard.runs.history import RunFolder

GROUPS_DRAWN = 24
CHANGE_COLOURS = {
    "domain": ["regressed", "improved", "no clear change"],
    "range": [HARM, GAIN, SOFT],
}

MOST_DOTS = 30
# The lines of each split, in the order of the legend.
DASHES = {"test": [1, 0], "validation": [8, 2], "train": [4, 3]}


def groups_chart(table: GroupTable, whole: Number) -> Spec:
    """A chart of the worst groups with intervals; a dashed line marks the rate of all samples."""
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
    """A chart of the mean distance of logits in each group, with intervals."""
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


def broken_chart(pairs: Sequence[tuple[str, str, int]]) -> Spec:
    """A heat map of the new model's wrong answers in the negative flips of each class."""
    targets = list(dict.fromkeys(target for target, _, _ in pairs))
    answers = sorted({new for _, new, _ in pairs}, key=lambda name: (name not in targets, name))
    rows = dict(zip(targets, short_labels(targets), strict=True))
    columns = dict(zip(answers, short_labels(answers, longest=16), strict=True))
    values = [{"target": rows[target], "new": columns[new], "n": n} for target, new, n in pairs]
    axis = {"ticks": False, "domain": False, "labelColor": INK}
    angle = -40 if max(len(label) for label in columns.values()) > 5 else 0
    return heat(
        values,
        x={
            "field": "new",
            "type": "nominal",
            "title": "new's answer",
            "axis": {**axis, "labelAngle": angle},
        },
        y={"field": "target", "type": "nominal", "title": "target", "axis": axis},
        x_scale={"domain": list(columns.values())},
        y_scale={"domain": list(rows.values())},
        tips=tips_of(target="target", new="new's answer", n="samples"),
        height={"step": 26},
        text=len(answers) <= 12,
    )


def candidate_point(name: str, error: Number, flips: Number) -> Point | None:
    """One point of the candidates chart; None without targets."""
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


def _candidate_marks(x: Spec, y: Spec, colour: Spec, tips: list[Spec]) -> list[Spec]:
    """Return the bars of both intervals, the point, and the name of each candidate."""
    return [
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
    ]


def candidates_chart(points: Sequence[Point], old_error: float | None) -> Spec:
    """A chart of error against negative flips, one dot per candidate; the lower left is best."""
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
        layer=_candidate_marks(x, y, colour, tips),
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
    """A chart of one number over the epochs, one line per run and split; the legend picks runs."""
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
    dashes = {split: DASHES[split] for split in DASHES if split in {v["split"] for v in values}}
    # With many epochs large dots would hide the line; small ones can still be hovered.
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
    if len(dashes) > 1:
        encoding["strokeDash"] = {
            "field": "split",
            "type": "nominal",
            "title": None,
            "scale": {"domain": [*dashes], "range": [*dashes.values()]},
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
