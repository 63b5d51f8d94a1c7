"""The tables and figures of the three papers, cell by cell, as data.

Each paper is a TOML file in `papers`, written to be read next to the paper::

    pct.toml      Positive-Congruent Training, CVPR 2021
    elodi.toml    ELODI, the camera-ready version
    churn.toml    On the Reproducibility of Neural Network Predictions

A row is one update by one method, and its cells are named as flipguard names its metrics. Numbers
are those that are printed, in the printed unit: percent stays percent. Two things are added:
``unsure`` marks a cell whose position or value the paper does not confirm, and ``notes`` say where
a paper contradicts itself.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeAlias

from flipguard.errors import InputError, listed
from flipguard.specs import only

Scalar: TypeAlias = bool | int | float | str

PAPERS = ("pct", "elodi", "churn")
SCENARIOS = frozenset(
    {
        "same",
        "architecture",
        "samples",
        "classes",
        "architecture+samples",
        "architecture+classes",
        "fine-tune",
        "chain",
    }
)
UNPRINTED = "-"

_PAPER_KEYS = frozenset({"paper", "name", "year", "table"})
_TABLE_NEEDS = ("id", "title", "section", "data", "scenario", "unit", "metrics")
_TABLE_MAY = ("old", "new", "numbers", "see", "setting", "says", "notes", "row")
_ROW_NEEDS = ("label", "cells")
_ROW_MAY = (
    "group",
    "method",
    "options",
    "data",
    "scenario",
    "old",
    "new",
    "where",
    "also",
    "unsure",
    "why",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCell:
    """A printed number, and its standard deviation if one is printed.

    ``value`` is None if the paper prints nothing there, or nothing that can be read.
    """

    value: float | None
    deviation: float | None = None
    unsure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """One update by one method, with the printed numbers.

    ``method`` and ``options`` are flipguard's; ``method`` is None if flipguard has no such method.
    ``where`` has other settings that were varied, and ``also`` other values that are printed.
    """

    label: str
    group: str | None
    method: str | None
    options: Mapping[str, Scalar]
    data: str
    scenario: str
    old: str | None
    new: str | None
    where: Mapping[str, Scalar]
    cells: Mapping[str, PaperCell]
    also: Mapping[str, str]
    why: str | None

    def value(self, metric: str) -> float:
        """Return the number that this row prints for a metric."""
        cell = self.cells.get(metric)
        if cell is None or cell.value is None:
            raise InputError(
                f"Expected a metric that '{self.label}' prints, but got {metric!r}; it prints "
                f"{listed([n for n, c in self.cells.items() if c.value is not None], most=9)}."
            )
        return cell.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A table or figure of a paper.

    ``numbers`` is False for a figure that is only a picture. It then has only ``says``, and
    ``see``, the table that has its numbers.
    """

    id: str
    paper: str
    title: str
    section: str
    data: str
    scenario: str
    unit: str
    metrics: tuple[str, ...]
    numbers: bool
    see: str | None
    settings: tuple[str, ...]
    says: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    def find(self, **wanted: Scalar) -> tuple[PaperRow, ...]:
        """Return the rows whose fields, options or conditions have the wanted values.

        >>> table = paper_tables()["pct.table3"]
        >>> [row.value("negative_flip_rate") for row in table.find(method="fd-lm", focus=5)]
        [2.35]
        """
        return tuple(row for row in self.rows if all(_has(row, *item) for item in wanted.items()))


def _has(row: PaperRow, name: str, value: Scalar) -> bool:
    if name in ("label", "group", "method", "data", "scenario", "old", "new"):
        return bool(getattr(row, name) == value)
    for values in (row.options, row.where):
        if name in values:
            # True equals 1 in Python, but not here.
            return values[name] == value and isinstance(values[name], bool) == isinstance(
                value, bool
            )
    return False


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """Return all tables and figures by id, such as ``elodi.table1``.

    >>> row = paper_tables()["elodi.table1"].rows[-1]
    >>> row.label, row.value("negative_flip_rate")
    ('ELODI (K = 10)', 2.11)
    """
    found: dict[str, PaperTable] = {}
    for paper in PAPERS:
        text = files(__package__).joinpath("papers", f"{paper}.toml").read_text(encoding="utf-8")
        for table in read_tables(text, paper=paper):
            found[table.id] = table
    for table in found.values():
        if table.see is not None and table.see not in found:
            raise InputError(
                f"{table.id}: expected `see` to be the id of a table, but got {table.see!r}."
            )
    return MappingProxyType(found)


def read_tables(text: str, *, paper: str) -> tuple[PaperTable, ...]:
    """Return the tables of one paper from the text of its TOML file."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InputError(f"{paper}.toml is not valid TOML: {problem}.") from problem
    only(document, _PAPER_KEYS, f"{paper}.toml")
    if document.get("paper") != paper:
        raise InputError(
            f"{paper}.toml: expected `paper` to be {paper!r}, but got {document.get('paper')!r}."
        )
    given = _dicts(document.get("table", []), f"{paper}.toml: `table`")
    tables = tuple(
        read_table(table, paper, f"{paper}.toml: table {number}")
        for number, table in enumerate(given, start=1)
    )
    ids = Counter(table.id for table in tables)
    twice = [name for name, times in ids.items() if times > 1]
    if twice:
        raise InputError(f"{paper}.toml: expected every id once, but got {listed(twice)} again.")
    return tables


def read_table(given: Mapping[str, Any], paper: str, place: str) -> PaperTable:
    """Return a table of a paper; errors name the place where it was given."""
    only(given, {*_TABLE_NEEDS, *_TABLE_MAY}, place)
    _all(given, _TABLE_NEEDS, place)
    name = _text(given, "id", place)
    kind = name.removeprefix(f"{paper}.")
    if kind == name or not kind.startswith(("table", "figure")):
        raise InputError(
            f"{place}: expected an id such as '{paper}.table1' or '{paper}.figure1', but got "
            f"{name!r}."
        )
    place = f"{place.partition(':')[0]}: {name}"
    metrics = _texts(given, "metrics", place)
    if len(set(metrics)) != len(metrics):
        raise InputError(f"{place}: expected every metric once, but got {listed(metrics, most=9)}.")
    numbers = given.get("numbers", True)
    rows = _dicts(given.get("row", []), f"{place}: `row`")
    if numbers is not bool(rows):
        raise InputError(
            f"{place}: expected rows, or `numbers = false` and none, but got {len(rows)} rows and "
            f"`numbers` {numbers!r}."
        )
    table = PaperTable(
        id=name,
        paper=paper,
        title=_text(given, "title", place),
        section=_text(given, "section", place),
        data=_text(given, "data", place),
        scenario=_scenario(given, place),
        unit=_text(given, "unit", place),
        metrics=metrics,
        numbers=numbers,
        see=_text(given, "see", place) if "see" in given else None,
        settings=_texts(given, "setting", place),
        says=_texts(given, "says", place),
        notes=_texts(given, "notes", place),
        rows=tuple(_row(row, given, metrics, f"{place}, row {i}") for i, row in enumerate(rows, 1)),
    )
    if not numbers and not table.says:
        raise InputError(f"{place}: expected `says` where there are no numbers, but got nothing.")
    return table


def _row(
    given: Mapping[str, Any], table: Mapping[str, Any], metrics: tuple[str, ...], place: str
) -> PaperRow:
    only(given, {*_ROW_NEEDS, *_ROW_MAY}, place)
    _all(given, _ROW_NEEDS, place)
    # Values that a row leaves out are those of the table.
    merged = {key: table[key] for key in ("data", "scenario", "old", "new") if key in table}
    merged.update(given)

    def text(key: str) -> str | None:
        return _text(merged, key, place) if key in merged else None

    unsure = _unsure(given, metrics, place)
    why = text("why")
    if bool(unsure) != (why is not None):
        raise InputError(f"{place}: expected `unsure` and `why` together, but got one of them.")
    also = _scalars(given, "also", place)
    if not all(isinstance(value, str) for value in also.values()):
        raise InputError(f"{place}: expected `also` to hold text only, but got {dict(also)!r}.")
    return PaperRow(
        label=_text(given, "label", place),
        group=text("group"),
        method=text("method"),
        options=_scalars(given, "options", place),
        data=_text(merged, "data", place),
        scenario=_scenario(merged, place),
        old=text("old"),
        new=text("new"),
        where=_scalars(given, "where", place),
        cells=_cells(given["cells"], metrics, unsure, place),
        also=MappingProxyType({key: str(value) for key, value in also.items()}),
        why=why,
    )


def _cells(
    given: object, metrics: tuple[str, ...], unsure: frozenset[str], place: str
) -> Mapping[str, PaperCell]:
    if not isinstance(given, list) or len(given) != len(metrics):
        raise InputError(
            f"{place}: expected a list of {len(metrics)} cells, one for each of "
            f"{', '.join(metrics)}, but got {given!r}."
        )
    return MappingProxyType(
        {
            metric: _cell(value, metric in unsure, f"{place}, {metric}")
            for metric, value in zip(metrics, given, strict=True)
        }
    )


def _cell(given: object, unsure: bool, place: str) -> PaperCell:
    if given == UNPRINTED:
        return PaperCell(value=None, unsure=unsure)
    numbers = [_number(one) for one in given] if isinstance(given, list) else [_number(given)]
    match numbers:
        case [float(value)] if not isinstance(given, list):
            return PaperCell(value=value, unsure=unsure)
        case [float(value), float(deviation)] if deviation >= 0:
            return PaperCell(value=value, deviation=deviation, unsure=unsure)
    raise InputError(
        f"{place}: expected a number, [mean, deviation] or '{UNPRINTED}', but got {given!r}."
    )


def _unsure(given: Mapping[str, Any], metrics: tuple[str, ...], place: str) -> frozenset[str]:
    found = given.get("unsure", [])
    if found is True:
        return frozenset(metrics)
    if not isinstance(found, list) or not all(metric in metrics for metric in found):
        raise InputError(
            f"{place}: expected `unsure` to be true or to list metrics of the table, but got "
            f"{found!r}."
        )
    return frozenset(found)


def _scenario(given: Mapping[str, Any], place: str) -> str:
    found = _text(given, "scenario", place)
    if found not in SCENARIOS:
        raise InputError(
            f"{place}: expected a scenario, {', '.join(sorted(SCENARIOS))}, but got {found!r}."
        )
    return found


def _text(given: Mapping[str, Any], key: str, place: str) -> str:
    found = given[key]
    if not isinstance(found, str) or not found.strip():
        raise InputError(f"{place}: expected `{key}` to be text, but got {found!r}.")
    return found


def _texts(given: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    found = given.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise InputError(f"{place}: expected `{key}` to be a list of texts, but got {found!r}.")
    return tuple(found)


def _scalars(given: Mapping[str, Any], key: str, place: str) -> Mapping[str, Scalar]:
    found = given.get(key, {})
    if not isinstance(found, dict) or not all(
        isinstance(value, bool | int | float | str) for value in found.values()
    ):
        raise InputError(f"{place}: expected `{key}` to be plain values, but got {found!r}.")
    return MappingProxyType(dict(found))


def _dicts(given: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise InputError(f"{place}: expected tables with two brackets, but got {given!r}.")
    return given


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _all(given: Mapping[str, Any], needed: Iterable[str], place: str) -> None:
    absent = [key for key in needed if key not in given]
    if absent:
        raise InputError(f"{place}: expected {listed(absent, most=9)}, but got none.")
