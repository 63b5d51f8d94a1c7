"""The document of a result: its whole shape, checked once when a file is read.

What is read here may be used without another look. A file may come from anywhere, so nothing in it
is trusted: not the kind of a value, not the length of a list, not the characters of a text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flipguard.studies.shapes import (
    Reader,
    ShapeError,
    count,
    grid,
    list_of,
    number,
    number_or_nan,
    number_or_null,
    record,
    scalar,
    table_of,
    text,
    time,
    truth,
)
from flipguard.studies.study import COUNTS, HISTOGRAMS, Study

SCHEMA = "flipguard.study/1"
CURVES = ("error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")

# Where, when and with what a study was run; each may be absent.
FACTS: Mapping[str, Reader] = {
    "device": record({}, {"kind": text, "name": text}),
    "versions": table_of(text),
    "command": text,
    "differences": list_of(text),
    "setting": record(
        {"data": text, "epochs": count, "models": table_of(text)},
        {
            "recipe": table_of(scalar),
            "samples": record({"train": count, "test": count}, {}),
        },
    ),
    "runs": count,
    "processes": count,
    "seconds": number,
    "written": time,
}


def load(path: Path) -> Any:
    """The JSON in a file; a ValueError if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as problem:
        raise ShapeError("it is nested too deeply") from problem


def study_in(document: Any) -> str:
    """The ID of the study that a document is a result of."""
    found: str = record({"study": text}, {})(document, "it")["study"]
    return found


def checked(document: Any, study: Study) -> dict[str, Any]:
    """The known part of a document, with every value of the kind that its place needs."""
    head = record({"schema": text, "study": text}, {})(document, "it")
    if head["schema"] != SCHEMA:
        raise ShapeError(f"its schema is {head['schema']}")
    if head["study"] != study.id:
        raise ShapeError(f"it is of {head['study']}")
    seeds = list_of(count)(document.get("seeds"), "seeds")
    if len(set(seeds)) != len(seeds):
        raise ShapeError("seeds has one of them twice")
    needed = {"scale": text, "set": list_of(text), "rows": list_of(_row(study, len(seeds)))}
    found: dict[str, Any] = record(needed, FACTS)(document, "it")
    if "seconds" in found and not {"runs", "command"} <= found.keys():
        raise ShapeError("it does not say of how many runs, or by which command")
    _check_rows(found["rows"], study)
    return {**found, "seeds": seeds}


def _row(study: Study, seeds: int) -> Reader:
    """The reader of one row; `label` is there so that a row of another version is not taken."""
    histogram = None if study.histogram is None else study.histogram.of
    known: dict[str, Reader] = {
        "metrics": table_of(
            lambda value, path: record({"values": list_of(number_or_nan, length=seeds)}, {})(
                value, path
            )["values"]
        ),
        "runs": table_of(list_of(text)),
        "notes": list_of(text),
        "made_before": list_of(text),
        "curves": table_of(record({name: grid(number_or_null) for name in CURVES}, {})),
    }
    if histogram is not None:
        known["histogram"] = _histogram(histogram)
    left_out = record({"place": count, "label": text, "why_not": text}, {})
    run = record(
        {"place": count, "label": text} | {n: known[n] for n in ("metrics", "runs")}, known
    )

    def read(value: Any, path: str) -> dict[str, Any]:
        shape = left_out if isinstance(value, dict) and "why_not" in value else run
        row: dict[str, Any] = shape(value, path)
        place = row["place"]
        if place >= len(study.lines) or study.lines[place].label != row["label"]:
            raise ShapeError(f"line {place} is {row['label']}")
        return row

    return read


def _histogram(of: str) -> Reader:
    """The reader of a histogram, whose counts are as many as its bins."""

    def read(value: Any, path: str) -> dict[str, Any]:
        edges = record({"edges": list_of(number, least=2)}, {})(value, path)["edges"]
        if any(low >= high for low, high in itertools.pairwise(edges)):
            raise ShapeError(f"{path}.edges should rise")
        counts = grid(_share, width=len(edges) - 1)
        names = COUNTS.get(of)
        shape = table_of(counts) if names is None else record(dict.fromkeys(names, counts), {})
        found: dict[str, Any] = record(
            {"of": text, "edges": list_of(number), "counts": shape},
            {"open": truth, "size": count},
        )(value, path)
        if found["of"] != of or not found["counts"]:
            raise ShapeError(f"{path} should count {HISTOGRAMS[of]}")
        return found

    return read


def _share(value: Any, path: str) -> float:
    """Counts are whole, or means of whole ones; none is negative."""
    found = number(value, path)
    if found < 0:
        raise ShapeError(f"{path} should be 0 or more, but is {found:g}")
    return found


def _check_rows(rows: list[dict[str, Any]], study: Study) -> None:
    """Refuses a row that is there twice, and bins that cannot stand in one picture."""
    edges: dict[str | None, list[float]] = {}
    places = set()
    for row in rows:
        if row["place"] in places:
            raise ShapeError(f"line {row['place']} is there twice")
        places.add(row["place"])
        if histogram := row.get("histogram"):
            # Only displacements have a picture for each group.
            group = study.lines[row["place"]].group if histogram["of"] == "displacement" else None
            if edges.setdefault(group, histogram["edges"]) != histogram["edges"]:
                raise ShapeError(f"line {row['place']} has other bins than the rows before it")
