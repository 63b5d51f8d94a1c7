"""Logits of several augmented views of every sample, computed once and looked up by row."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from flipguard.references.base import Reference
from flipguard.references.tables import Array

Kept: TypeAlias = Literal["float16", "float32"]
# A table holds floats and classes side by side, so it is one of whole numbers of their width.
FLOATS: dict[Kept, torch.dtype] = {"float16": torch.float16, "float32": torch.float32}
WHOLES: dict[Kept, torch.dtype] = {"float16": torch.int16, "float32": torch.int32}
# What is taken off when a class goes back to 64 bits: the sign that it was given there.
UNSIGNED: dict[Kept, int] = {"float16": 0xFFFF, "float32": 0xFFFFFFFF}


class StoredViews(Reference):
    """A table of `views` views of every sample, called with rows: view * samples + sample.

    What a call gives is float32 [n, C], on the device of the rows. In a table on their device rows
    are looked up without making the host wait; in any other, on the host.

    >>> logits = torch.tensor([[1.0, 2.0, 6.0], [3.0, 9.0, 1.0]])  # two views of one sample
    >>> table = packed(logits, top=1, kept="float16")
    >>> StoredViews(table, views=2, classes=3, top=1)(torch.tensor([1, 0]))
    tensor([[2.0000, 9.0000, 2.0000],
            [1.5000, 1.5000, 6.0000]])
    """

    def __init__(
        self,
        table: Tensor | Array,
        *,
        views: int,
        classes: int,
        top: int | None = None,
        kept: Kept = "float16",
    ) -> None:
        self._table = table
        self.views = views
        self._classes, self._top, self._kept = classes, top, kept

    @property
    def device(self) -> torch.device | None:
        """Where the table lies; None if it is in a file that is read row by row."""
        return self._table.device if isinstance(self._table, Tensor) else None

    def __call__(self, rows: Tensor) -> Tensor:
        if isinstance(self._table, Tensor):
            found = self._table.index_select(0, rows.to(self._table.device))
        else:
            found = torch.from_numpy(self._table[rows.cpu().numpy()])
        found = found.to(rows.device)
        return unpacked(found, classes=self._classes, top=self._top, kept=self._kept)

    def to(self, device: torch.device | str) -> Self:
        """Keeps the table on a device, read whole."""
        if isinstance(self._table, Tensor):
            self._table = self._table.to(device)
            return self
        whole = torch.empty(self._table.shape, dtype=WHOLES[self._kept], device=device)
        step = max(2**24 // self._table.shape[1], 1)  # so that the host never holds all of it
        for start in range(0, len(self._table), step):
            piece = torch.from_numpy(self._table[start : start + step].copy())
            whole[start : start + step] = piece
        self._table = whole
        return self


def width_of(*, classes: int, top: int | None) -> int:
    """How many numbers a row has: all logits; or the highest, the mean of the rest, the classes.

    >>> width_of(classes=1000, top=None), width_of(classes=1000, top=20)
    (1000, 41)
    """
    return classes if top is None else 2 * top + 1


def packed(logits: Tensor, *, top: int | None, kept: Kept) -> Tensor:
    """Logits [n, C] as the rows of a table [n, width]; of equal ones the first class is higher."""
    if top is None:
        return logits.to(FLOATS[kept]).view(WHOLES[kept])
    ordered, classes = logits.sort(dim=-1, descending=True, stable=True)
    rest = ordered[:, top:].mean(-1, keepdim=True)
    values = torch.cat([ordered[:, :top], rest], -1).to(FLOATS[kept])
    return torch.cat([values.view(WHOLES[kept]), classes[:, :top].to(WHOLES[kept])], -1)


def unpacked(rows: Tensor, *, classes: int, top: int | None, kept: Kept) -> Tensor:
    """The logits that rows of a table stand for, as float32 [n, C]."""
    if top is None:
        return rows.view(FLOATS[kept]).float()
    values = rows[:, : top + 1].view(FLOATS[kept]).float()
    where = rows[:, top + 1 :].to(torch.int64) & UNSIGNED[kept]
    return values[:, top:].expand(-1, classes).scatter(1, where, values[:, :top])
