"""Logits that were computed once, looked up by sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.references.base import Reference
from flipguard.references.ids import Ids, index_of
from flipguard.references.reading import read_stored
from flipguard.references.tables import Array, TensorTable, table_of


class StoredLogits(Reference):
    """A table of logits [n, C], called with the ids of a batch.

    Without `ids` the samples are known by position, from 0 on; else by whole numbers or text. The
    table is kept as it is given, in its own float type, and is not copied; what a call gives is
    always a copy, on the device of the ids (of the table, if the ids are a list).

    Unknown ids are an `InputError`. Ids on CUDA are looked up in a table on CUDA without making
    the host wait, so there it is torch's assertion on the device that stops at an unknown id.

    >>> stored = StoredLogits(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), ids=["a", "b"])
    >>> stored(["b", "a", "b"])
    tensor([[3., 4.],
            [1., 2.],
            [3., 4.]])
    """

    def __init__(
        self,
        logits: Tensor | Array,
        *,
        ids: Ids | None = None,
        class_names: Sequence[str | int] | None = None,
    ) -> None:
        self.class_names = None if class_names is None else tuple(class_names)
        self._table = table_of(logits)
        self._index = index_of(ids, len(self._table))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """A table from a file that numpy wrote.

        An `.npz` holds `logits` and perhaps `ids` and `class_names`, and is read whole. An `.npy`
        holds logits by position; its rows are read when they are asked for, so that it may be of
        any size. Columns are not put into another order: if the names are not those of the new
        model, match them with `SharedClasses.by_name(old=stored.class_names, new=…)`.
        """
        held = read_stored(Path(path))
        try:
            return cls(held.logits, ids=held.ids, class_names=held.class_names)
        except InputError as problem:
            raise InputError(f"{path}: {problem}") from problem

    def __len__(self) -> int:
        return len(self._table)

    def __call__(self, ids: Ids) -> Tensor:
        device = ids.device if isinstance(ids, Tensor) else None
        if isinstance(ids, Tensor) and device is not None and device.type != "cpu":
            if isinstance(self._table, TensorTable) and self._table.device == device:
                return self._table.rows(self._index.rows_on_device(ids))
            ids = ids.cpu()
        rows = self._table.rows(self._index.rows(ids))
        return rows if device is None else rows.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Keeps the table on a device, read whole; ids on that device are looked up there."""
        self._table = self._table.to(torch.device(device))
        self._index.to(self._table.device)
        return self
