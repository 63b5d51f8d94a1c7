"""The chart of ELODI's cost and negative flips."""

from __future__ import annotations

from pages import charts
from pages.cheaper_ways import AFTER_ELODI, CHEAPER, by_way, cheaper_documents, flips_after
from pages.figures import mean


def cheaper_chart(name: str) -> str:
    """Return the chart: negative flips after ELODI against cost, one point per way."""
    document = cheaper_documents()[name]
    ways = by_way(document["rows"])
    points = {way: _point(rows) for way, rows in ways.items()}
    control = points.pop("none")
    seeds = len(ways["none"])
    return charts.costs_and_flips(
        list(points.values()),
        control,
        title=f"Cost and negative flips of ELODI: {CHEAPER[name]}",
        note=f"Means of {seeds} seeds, ± one standard deviation; dashed: the untreated update",
        across="cost, in plain training runs of the same network",
        upwards="negative flips (share of all samples)",
    )


def _point(rows: list[dict]) -> charts.Point:
    first = rows[0]
    options = first["options"]
    told = {
        "none": "untreated update",
        "ensemble": "ensemble of 8 itself",
        "one by one": "8 members, one by one",
        "reuse=4": "8 members, 4 reused",
    }.get(first["way"])
    if told is None:
        views = f", {options['views']} views" if "views" in options else ""
        told = f"{options['members']} members{views}"
    return charts.Point(
        name=told,
        cost=charts.Spread.of([row["trainings"] for row in rows]),
        breaks=charts.Spread.of(flips_after(rows, AFTER_ELODI)),
        error=mean([row["error_rate_new"] for row in rows]),
        apart=first["method"] == "ensemble",
    )
