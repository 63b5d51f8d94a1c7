"""The table of precision, recall and F1 of each class, for the terminal."""

from __future__ import annotations

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flipguard.errors import printable
from flipguard.groups import Grouping
from flipguard.render.class_rows import CLASS_HEADER, class_rows


def class_table(grouping: Grouping, most: int) -> Padding:
    """Return the table of the first classes, worst first."""
    table = Table("class", *CLASS_HEADER, box=None, pad_edge=False)
    table.title, table.title_justify = "Each class: old → new", "left"
    for name, texts in class_rows(grouping.groups[:most]):
        table.add_row(Text(printable(name, longest=24)), *texts)
    return Padding(table, (0, 0, 1, 2), expand=False)
