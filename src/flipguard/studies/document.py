"""The document of a result, and readers that check its shape once."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from flipguard.errors import printable
from flipguard.studies.study import COUNTS, HISTOGRAMS, Study

Reader: TypeAlias = Callable[[Any, str], Any]
# Means, squares and sums of numbers up to this one are finite.
LARGEST = 1e100
LONGEST = 20_000
KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
    type(None): "null",
}

SCHEMA = "flipguard.study/1"
CURVES = ("error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")


class ShapeError(ValueError):
    """Raised if a value of a document has a wrong type or form."""


def _wrong(value: Any, path: str, expected: str) -> ShapeError:
    got = repr(value) if isinstance(value, int | float) else KINDS.get(type(value), "something")
    return ShapeError(f"{path} should be {expected}, but is {printable(got, longest=30)}")


def text(value: Any, path: str) -> str:
    """A text, without control and direction characters."""
    if not isinstance(value, str):
        raise _wrong(value, path, "a text")
    return printable(value, longest=LONGEST)


def time(value: Any, path: str) -> str:
    """A date and time as ISO 8601 writes them."""
    try:
        datetime.fromisoformat(text(value, path))
    except ValueError as problem:
        raise ShapeError(f"{path} should be a date and time") from problem
    return str(value)


def finite_number(value: Any, path: str) -> float:
    """A finite number, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, path, "a number")
    if not abs(value) <= LARGEST:
        raise _wrong(value, path, "a finite number")
    return value


def number_or_nan(value: Any, path: str) -> float:
    """A number, or nan for null."""
    return math.nan if value is None else finite_number(value, path)


def number_or_null(value: Any, path: str) -> float | None:
    """A number, or None for null."""
    return None if value is None else finite_number(value, path)


def whole_number(value: Any, path: str) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise _wrong(value, path, "a whole number from 0 on")
    return value


def truth(value: Any, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(value, path, "true or false")
    return value


def scalar(value: Any, path: str) -> Any:
    """A text, a number, a truth value or null."""
    if value is None or isinstance(value, bool):
        return value
    return text(value, path) if isinstance(value, str) else finite_number(value, path)


def list_of(item: Reader, *, length: int | None = None, least: int = 0) -> Reader:
    """A list, with a given length or a minimum length."""

    def read(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(value, path, "a list")
        if length is not None and len(value) != length:
            raise ShapeError(f"{path} should have {length} values, but has {len(value)}")
        if len(value) < least:
            raise ShapeError(f"{path} should have at least {least} values, but has {len(value)}")
        return [item(one, f"{path}[{index}]") for index, one in enumerate(value)]

    return read


def named_values(item: Reader) -> Reader:
    """A table whose keys are names."""

    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, path, "a table")
        return {
            text(key, path): item(one, f"{path}.{text(key, path)}") for key, one in value.items()
        }

    return read


def record(needed: Mapping[str, Reader], optional: Mapping[str, Reader]) -> Reader:
    """A table with known keys; others are left out."""

    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, path, "a table")
        if absent := [name for name in needed if name not in value]:
            raise ShapeError(f"{path} has no {absent[0]}")
        known = {**needed, **optional}
        return {
            name: known[name](one, f"{path}.{name}") for name, one in value.items() if name in known
        }

    return read


def grid(item: Reader, *, length: int | None = None, width: int | None = None) -> Reader:
    """A list of lists that are all equally long, and not empty."""

    def read(value: Any, path: str) -> list[list[Any]]:
        rows: list[list[Any]] = list_of(list_of(item, least=1), length=length, least=1)(value, path)
        wanted = len(rows[0]) if width is None else width
        for index, row in enumerate(rows):
            if len(row) != wanted:
                raise ShapeError(f"{path}[{index}] should have {wanted} values, but has {len(row)}")
        return rows

    return read


# Where, when and with what a study was run; each may be absent.
FACTS: Mapping[str, Reader] = {
    "device": record({}, {"kind": text, "name": text}),
    "versions": named_values(text),
    "command": text,
    "differences": list_of(text),
    "setting": record(
        {"data": text, "epochs": whole_number, "models": named_values(text)},
        {
            "recipe": named_values(scalar),
            "samples": record(
                {"train": whole_number, "test": whole_number}, {"validation": whole_number}
            ),
        },
    ),
    "runs": whole_number,
    "processes": whole_number,
    "seconds": finite_number,
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
    seeds = list_of(whole_number)(document.get("seeds"), "seeds")
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
        "metrics": named_values(
            lambda value, path: record({"values": list_of(number_or_nan, length=seeds)}, {})(
                value, path
            )["values"]
        ),
        "runs": named_values(list_of(text)),
        "notes": list_of(text),
        "made_before": list_of(text),
        "curves": named_values(record({name: grid(number_or_null) for name in CURVES}, {})),
    }
    if histogram is not None:
        known["histogram"] = _histogram(histogram)
    left_out = record({"place": whole_number, "label": text, "why_not": text}, {})
    run = record(
        {"place": whole_number, "label": text} | {n: known[n] for n in ("metrics", "runs")}, known
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
        edges = record({"edges": list_of(finite_number, least=2)}, {})(value, path)["edges"]
        if any(low >= high for low, high in itertools.pairwise(edges)):
            raise ShapeError(f"{path}.edges should rise")
        counts = grid(_share, width=len(edges) - 1)
        names = COUNTS.get(of)
        shape = named_values(counts) if names is None else record(dict.fromkeys(names, counts), {})
        found: dict[str, Any] = record(
            {"of": text, "edges": list_of(finite_number), "counts": shape},
            {"open": truth, "size": whole_number},
        )(value, path)
        if found["of"] != of or not found["counts"]:
            raise ShapeError(f"{path} should count {HISTOGRAMS[of]}")
        return found

    return read


def _share(value: Any, path: str) -> float:
    """Counts are whole, or means of whole ones; none is negative."""
    found = finite_number(value, path)
    if found < 0:
        raise ShapeError(f"{path} should be 0 or more, but is {found:g}")
    return found


def _check_rows(rows: list[dict[str, Any]], study: Study) -> None:
    """Raise on a row that appears twice, and on bins that cannot share one picture."""
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
