"""Sources of samples: the base class, texts and links. Images belong to `sample_images`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from flipguard.errors import InputError, listed, printable
from flipguard.predictions.names import exactly
from flipguard.predictions.read import name_file_on_error, scan_table
from flipguard.predictions.table import Predictions
from flipguard.render.numbers import visible, web_address

Kind = Literal["image", "text", "link"]
DEFAULT_BUDGET = "4MB"
UNITS = {"": 1, "B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000,
         "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}  # fmt: skip

LONGEST_TEXT = 600
TEXT_COLUMNS = ("text", "sentence", "content", "prompt", "question", "url", "link", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The samples shown for flips: for each row a data URL, a text or a link."""

    kind: Kind
    source: str
    items: dict[int, str]
    wanted: int
    found: int
    missing: int
    budget: int
    used: int

    @property
    def left_out(self) -> int:
        """The number of samples that were found but did not fit into the budget."""
        return self.wanted - self.missing - len(self.items)

    def as_json(self) -> dict[str, Any]:
        """The samples as the page's script reads them."""
        return {"kind": self.kind, "items": {str(row): item for row, item in self.items.items()}}


class Samples(ABC):
    """A source of samples, found by id."""

    kind: Kind
    source: str

    @abstractmethod
    def find(self, ids: list[str]) -> dict[int, Any]:
        """Where to read the sample of each row; rows without a sample are left out."""

    @abstractmethod
    def embedded(self, found: Any) -> str | None:
        """One sample as text for the page; None if it cannot be shown."""

    def of(self, ids: list[str], *, order: list[int], budget: int) -> Sampled:
        """As many samples as fit into the budget, taken in the given order of rows."""
        found = self.find(ids)
        items: dict[int, str] = {}
        used = broken = 0
        for row in order:
            if row not in found:
                continue
            item = self.embedded(found[row])
            if item is None:
                broken += 1
                continue
            size = len(item.encode("utf-8", "replace"))
            if used + size > budget:
                break
            used += size
            items[row] = item
        return Sampled(
            kind=self.kind,
            source=self.source,
            items=dict(sorted(items.items())),
            wanted=len(ids),
            found=len(found),
            missing=len(ids) - len(found) + broken,
            budget=budget,
            used=used,
        )


def bytes_of(budget: int | str) -> int:
    """The number of bytes of a size such as "5MB".

    >>> bytes_of("5MB"), bytes_of("512 kB"), bytes_of(100)
    (5000000, 512000, 100)
    """
    text = str(budget) if isinstance(budget, int | str) else ""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?I?B)?\s*", text.upper())
    size = float(found[1]) * UNITS[found[2] or ""] if found else -1.0
    if not 0 <= size <= 1e9:
        raise InputError(
            "Expected the budget of samples to be a size up to 1GB such as 5MB or 800KB, but got "
            f"{printable(str(budget), longest=40)!r}; give a number and a unit."
        )
    return int(size)


class TextSamples(Samples):
    """One text per id; links if the first texts are all web addresses."""

    def __init__(self, texts: pl.LazyFrame, *, source: str) -> None:
        """`texts` has the columns `id` and `text`."""
        self.source = source
        self._texts = texts
        with name_file_on_error(source):
            beginning = texts.select(pl.col("text").cast(pl.String)).drop_nulls().head(50)
            first = beginning.collect(engine="streaming")["text"]
        links = len(first) > 0 and all(web_address(text) is not None for text in first)
        self.kind = "link" if links else "text"

    def find(self, ids: list[str]) -> dict[int, tuple[str, int]]:
        wanted = pl.LazyFrame(
            {"id": ids, "row": range(len(ids))}, schema={"id": pl.String, "row": pl.Int64}
        )
        # Only the beginning of a long text is kept, and its full length.
        text = pl.col("text").cast(pl.String)
        columns = (text.str.head(LONGEST_TEXT), text.str.len_chars().alias("length"))
        with name_file_on_error(self.source):
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
            # Stays a link, because the page itself never fetches anything.
            return web_address(text) if length == len(text) else None
        told = f"… ({length:,} characters)" if length > LONGEST_TEXT else ""
        return visible(text, longest=LONGEST_TEXT, lines=True) + told


def text_file(path: Path) -> TextSamples:
    """The texts of a table that has a column `id` and a column of texts."""
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
    return TextSamples(frame.select("id", exactly(column).alias("text")), source=str(path))


def text_column(predictions: tuple[Predictions, ...], column: str) -> TextSamples | None:
    """The texts in a column of the prediction files; None if no file has the column."""
    for side in predictions:
        if column in side.columns:
            # Rows without ids are named by their number.
            frame = side.frame if side.id is not None else side.frame.with_row_index("__row")
            ids = exactly(side.id if side.id is not None else "__row").alias("id")
            frame = frame.select(ids, exactly(column).alias("text"))
            return TextSamples(frame, source=f"column {visible(column, longest=40)} of {side.name}")
    return None
