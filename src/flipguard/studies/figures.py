"""Histograms and matrices of a result as tables, for a terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flipguard.studies.panels import matrices_of, panels_of
from flipguard.studies.results import Result
from flipguard.studies.words import NOTHING


def figure_parts(result: Result) -> Iterator[RenderableType]:
    """What is shown below the table of a study that counts samples, or compares every two."""
    for title, heads, rows in _tables(result):
        table = Table(box=None, pad_edge=False, padding=(0, 2 if len(heads) < 7 else 1, 0, 0))
        table.add_column(heads[0], no_wrap=True)
        for head in heads[1:]:
            table.add_column(head, justify="right")
        for row in rows:
            table.add_row(*row)
        yield Text(title, style="italic")
        yield table
        yield Text()


def figure_lines(result: Result) -> list[str]:
    """The same in Markdown."""
    lines = []
    for title, heads, rows in _tables(result):
        lines += [f"**{title}**", "", cells_of(heads)]
        lines += [cells_of(["---", *["---:"] * (len(heads) - 1)]), *map(cells_of, rows), ""]
    return lines


def cells_of(values: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def _tables(result: Result) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """A title, heads and rows of each."""
    for matrix in matrices_of(result):
        rows = [
            [role, *(NOTHING if math.isnan(value) else f"{value:.2f}" for value in values)]
            for role, values in zip(matrix.roles, matrix.values, strict=True)
        ]
        yield f"{matrix.title}, in percent", ["", *matrix.roles], rows
    for panel in panels_of(result):
        digits = 0 if panel.unit == "samples" else 1
        rows = [
            [name, *(f"{value:.{digits}f}" for value in values)] for name, values in panel.bins()
        ]
        heads = [panel.axis.partition(":")[0], *(curve.label for curve in panel.curves)]
        yield f"{panel.title}: {panel.unit}", heads, rows
