"""Texts and links: from a table of ids and texts, or from a column of the prediction files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from flipguard.errors import InputError, listed
from flipguard.predictions.faults import naming
from flipguard.predictions.names import exactly
from flipguard.predictions.read import scan_table
from flipguard.predictions.table import Predictions
from flipguard.report.safe import visible, web_address
from flipguard.report.samples.base import Samples

LONGEST_TEXT = 600
TEXT_COLUMNS = ("text", "sentence", "content", "prompt", "question", "url", "link", "image")


class Texts(Samples):
    """A text an id; where every text is an address of the web, links."""

    def __init__(self, texts: pl.LazyFrame, *, source: str) -> None:
        """`texts` has the columns `id` and `text`."""
        self.source = source
        self._texts = texts
        with naming(source):
            beginning = texts.select(pl.col("text").cast(pl.String)).drop_nulls().head(50)
            first = beginning.collect(engine="streaming")["text"]
        links = len(first) > 0 and all(web_address(text) is not None for text in first)
        self.kind = "link" if links else "text"

    def find(self, ids: list[str]) -> dict[int, tuple[str, int]]:
        wanted = pl.LazyFrame(
            {"id": ids, "row": range(len(ids))}, schema={"id": pl.String, "row": pl.Int64}
        )
        # Of an endless text a beginning is kept, and how long it was.
        text = pl.col("text").cast(pl.String)
        columns = (text.str.head(LONGEST_TEXT), text.str.len_chars().alias("length"))
        with naming(self.source):
            rows = (
                self._texts.select(pl.col("id").cast(pl.String), *columns)
                .join(wanted, on="id", how="inner")
                .drop_nulls("text")
                .collect(engine="streaming")
            )
        return {row["row"]: (row["text"], row["length"]) for row in rows.iter_rows(named=True)}

    def embedded(self, found: tuple[str, int]) -> str | None:
        text, length = found
        if self.kind == "link":
            # Left as a link: the page itself never fetches anything.
            return web_address(text) if length == len(text) else None
        told = f"… ({length:,} characters)" if length > LONGEST_TEXT else ""
        return visible(text, longest=LONGEST_TEXT, lines=True) + told


def text_file(path: Path) -> Texts:
    """The texts of a table with a column `id` and one of texts."""
    frame, _ = scan_table(path, frozenset({"id"}))
    names = frame.collect_schema().names()
    others = [name for name in names if name != "id"]
    column = next((name for name in TEXT_COLUMNS if name in others), None)
    if column is None and len(others) == 1:
        column = others[0]
    if "id" not in names or column is None:
        raise InputError(
            f"Expected {path} to have a column 'id' and a column 'text', but its columns are "
            f"{listed(names, most=8)}; rename them."
        )
    return Texts(frame.select("id", exactly(column).alias("text")), source=str(path))


def text_column(predictions: tuple[Predictions, ...], column: str) -> Texts | None:
    """The texts of a column of the prediction files; None if none of them has it."""
    for side in predictions:
        if column in side.columns:
            # Where rows have no ids, they are called by their number.
            frame = side.frame if side.id is not None else side.frame.with_row_index("__row")
            ids = exactly(side.id if side.id is not None else "__row").alias("id")
            frame = frame.select(ids, exactly(column).alias("text"))
            return Texts(frame, source=f"column {visible(column, longest=40)} of {side.name}")
    return None
