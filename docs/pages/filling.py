"""Fill generated tables into pages that are otherwise written by hand."""

from __future__ import annotations

from pathlib import Path


def filled(page: Path, name: str, lines: list[str]) -> str:
    """Return a hand-written page, with the lines between its two marks replaced."""
    start, end = f"<!-- generated: {name} -->", "<!-- end -->"
    before, _, rest = page.read_text().partition(start)
    after = rest.partition(end)[2]
    return "\n".join([f"{before}{start}", "", *lines, "", f"{end}{after}"])
