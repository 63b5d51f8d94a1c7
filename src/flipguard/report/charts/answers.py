"""Which answers became which."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.report.charts.base import INK, Spec, heat, tips_of
from flipguard.report.safe import short_labels


def broken_chart(pairs: Sequence[tuple[str, str, int]]) -> Spec:
    """What new says instead, of the negative flips of each class."""
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
