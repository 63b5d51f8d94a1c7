"""Stored logits as references: files, tables, and tables of augmented views."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flipguard.archives import (
    ARCHIVE,
    ARRAY,
    DAMAGE,
    header_of,
    pickled,
    read_archive,
    unreadable_archive,
)
from flipguard.archives import Array as archives_Array
from flipguard.errors import InputError
from flipguard.references.reference import Reference
from flipguard.references.sample_ids import Ids, index_of

KIND = "logits"
WRITE = "write it with numpy.savez(file, logits=…, ids=…)"

Array = npt.NDArray[Any]
# Widths in bytes of the float types that numpy and torch share.
WIDTHS = (2, 4, 8)
# Number of elements that are checked at once, so that a check takes little memory.
PIECE = 1 << 24

StoredDtype: TypeAlias = Literal["float16", "float32"]
# A table has floats and class indices in one row, so its type is an integer of their width.
FLOATS: dict[StoredDtype, torch.dtype] = {"float16": torch.float16, "float32": torch.float32}
WHOLES: dict[StoredDtype, torch.dtype] = {"float16": torch.int16, "float32": torch.int32}
# What is taken off when a class goes back to 64 bits: the sign that it was given there.
UNSIGNED: dict[StoredDtype, int] = {"float16": 0xFFFF, "float32": 0xFFFFFFFF}


class Stored(NamedTuple):
    """The content of a file of logits."""

    logits: archives_Array
    ids: archives_Array | None = None
    class_names: tuple[str | int, ...] | None = None


def read_stored(path: Path) -> Stored:
    """Return the logits of a file, with ids and class names if it has them."""
    if path.suffix not in (".npz", ".npy"):
        raise InputError(
            f"Expected `path` to end in .npz or .npy, but got {path}. Write the logits with "
            "numpy.savez(file, logits=…, ids=…) or numpy.save(file, logits)."
        )
    try:
        with path.open("rb") as file:
            start = file.read(len(ARRAY))
    except FileNotFoundError as problem:
        raise InputError(f"{path} does not exist; check the path of the logits.") from problem
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}).") from problem
    if not start.startswith(ARCHIVE if path.suffix == ".npz" else ARRAY):
        raise unreadable_archive(path, KIND, "its content is of another kind")
    return _archive(path) if path.suffix == ".npz" else Stored(_mapped(path))


def _archive(path: Path) -> Stored:
    found = read_archive(
        path,
        kind=KIND,
        write=WRITE,
        larger="write it with numpy.save as .npy, which is read row by row",
        wanted=lambda _: Stored._fields,
    )
    if "logits" not in found:
        raise InputError(f"{path} holds no array 'logits'; {WRITE}.")
    logits, names = found["logits"], found.get("class_names")
    if names is not None and names.shape != logits.shape[1:]:
        raise InputError(
            f"{path} holds {len(names)} 'class_names' for logits of the shape "
            f"{list(logits.shape)}; write a name for each column of the logits."
        )
    return Stored(logits, found.get("ids"), None if names is None else tuple(names.tolist()))


def _mapped(path: Path) -> archives_Array:
    try:
        with path.open("rb") as file:
            if header_of(file)[1].hasobject:
                raise pickled(path)
        array: archives_Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except InputError:
        raise
    except DAMAGE as problem:
        raise unreadable_archive(path, KIND, problem) from problem
    return array


class TensorTable:
    """Logits in a tensor."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    @property
    def device(self) -> torch.device:
        return self._logits.device

    def __len__(self) -> int:
        return len(self._logits)

    def rows(self, rows: Tensor) -> Tensor:
        """Return a copy of some rows."""
        found = self._logits.index_select(0, rows.reshape(-1).to(self.device))
        return found.reshape(*rows.shape, self._logits.shape[1])

    def to(self, device: torch.device) -> TensorTable:
        return TensorTable(self._logits.to(device))


class MappedTable:
    """Logits in a read-only array, which may be a file that is not in memory."""

    def __init__(self, logits: Array) -> None:
        self._logits = logits

    def __len__(self) -> int:
        return len(self._logits)

    def rows(self, rows: Tensor) -> Tensor:
        """Return a copy of some rows, checked here, because the whole file is never read."""
        places = rows.reshape(-1).numpy()
        found = _tensor(self._logits[places])
        if bool(found.isnan().any()):
            first = int(places[int(found.isnan().any(dim=1).nonzero()[0])])
            raise _nan(self._name, first)
        return found.reshape(*rows.shape, self._logits.shape[1])

    def to(self, device: torch.device) -> TensorTable:
        """Return all rows on a device; copied in pieces, so they need not fit in CPU memory."""
        dtype = _tensor(self._logits[:0].copy()).dtype
        whole = torch.empty(self._logits.shape, dtype=dtype, device=device)
        step = _step(self._logits.shape[1])
        for start in range(0, len(self), step):
            rows = torch.arange(start, min(start + step, len(self)))
            whole[start : start + step] = self.rows(rows)
        return TensorTable(whole)

    @property
    def _name(self) -> str:
        return str(getattr(self._logits, "filename", None) or "`logits`")


def table_of(logits: Tensor | Array) -> TensorTable | MappedTable:
    """Return a checked table of logits [n, C]; rows of a file are checked when they are read."""
    if isinstance(logits, Tensor):
        _must_be_a_table(logits.is_floating_point(), tuple(logits.shape), str(logits.dtype))
        table = TensorTable(logits.detach())
    elif isinstance(logits, np.ndarray):
        known = logits.dtype.kind == "f" and logits.dtype.itemsize in WIDTHS
        _must_be_a_table(known, logits.shape, str(logits.dtype))
        if isinstance(logits, np.memmap):
            return MappedTable(logits)
        if not logits.flags.writeable:
            # torch would treat it as writable.
            mapped = MappedTable(logits)
            for start in range(0, len(mapped), _step(logits.shape[1])):
                stop = min(start + _step(logits.shape[1]), len(mapped))
                mapped.rows(torch.arange(start, stop))
            return mapped
        table = TensorTable(_tensor(logits))
    else:
        raise InputError(
            f"Expected `logits` to be a tensor or an array, but got {type(logits).__name__}. Give "
            "logits of shape [samples, classes]."
        )
    _must_hold_no_nan(table._logits)
    return table


def _must_be_a_table(floats: bool, shape: tuple[int, ...], dtype: str) -> None:
    if not floats:
        raise InputError(
            f"Expected `logits` to be floats of 16, 32 or 64 bits, but got {dtype}. Give the "
            "scores of all classes."
        )
    if len(shape) != 2 or shape[1] == 0:
        raise InputError(
            f"Expected `logits` to be of shape [samples, classes], but got {shape}. Give one row "
            "for each sample."
        )


def _must_hold_no_nan(logits: Tensor) -> None:
    start = 0
    for piece in torch.split(logits, _step(logits.shape[1])):
        invalid = piece.isnan().any(dim=1)
        if bool(invalid.any()):
            raise _nan("`logits`", start + int(invalid.nonzero()[0]))
        start += len(piece)


def _nan(name: str, row: int) -> InputError:
    return InputError(
        f"Expected {name} to hold numbers only, but got nan in row {row}. Compute the logits again "
        "with a model that gives none."
    )


def _step(classes: int) -> int:
    return max(1, PIECE // classes)


def _tensor(array: Array) -> Tensor:
    # torch supports neither other byte orders nor negative strides.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    backwards = any(stride < 0 for stride in native.strides)
    return torch.from_numpy(np.ascontiguousarray(native) if backwards else native)


class StoredLogits(Reference):
    """A table of logits [n, C], called with the ids of a batch.

    Without `ids`, samples are identified by position, starting at 0; otherwise by whole numbers or
    text. The table is kept as given, in its float type, and is not copied. A call always returns a
    copy, on the device of the ids (of the table, if the ids are a list).

    Unknown ids raise an `InputError`. If both ids and table are on CUDA, the lookup does not make
    the CPU wait, so an unknown id then fails with an assertion of torch on the device.

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
        """Return a table from a file that numpy wrote.

        An `.npz` has `logits` and optionally `ids` and `class_names`, and is read at once. An
        `.npy` has logits by position; its rows are read on demand, so it may have any size.
        Columns are not reordered: if the class names differ from those of the new model, match them
        with `SharedClasses.by_name(old=stored.class_names, new=…)`.
        """
        held = read_stored(Path(path))
        try:
            return cls(held.logits, ids=held.ids, class_names=held.class_names)
        except InputError as problem:
            raise InputError(f"{path}: {problem}") from problem

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} samples>"

    def __call__(self, ids: Ids) -> Tensor:
        device = ids.device if isinstance(ids, Tensor) else None
        if isinstance(ids, Tensor) and device is not None and device.type != "cpu":
            if isinstance(self._table, TensorTable) and self._table.device == device:
                return self._table.rows(self._index.rows_on_device(ids))
            ids = ids.cpu()
        rows = self._table.rows(self._index.rows(ids))
        return rows if device is None else rows.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Move the whole table to a device; ids on that device are then looked up there."""
        self._table = self._table.to(torch.device(device))
        self._index.to(self._table.device)
        return self


class StoredViews(Reference):
    """A table of `views` views of every sample, called with rows: view * samples + sample.

    A call returns float32 [n, C] on the device of the rows. If the table is on the same device, the
    lookup does not make the CPU wait; otherwise rows are looked up on the CPU.

    >>> logits = torch.tensor([[1.0, 2.0, 6.0], [3.0, 9.0, 1.0]])  # two views of one sample
    >>> table = pack_logits(logits, top=1, kept="float16")
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
        kept: StoredDtype = "float16",
    ) -> None:
        self._table = table
        self.views = views
        self._classes, self._top, self._kept = classes, top, kept

    @property
    def device(self) -> torch.device | None:
        """The device of the table; None if it is a file that is read row by row."""
        return self._table.device if isinstance(self._table, Tensor) else None

    def __call__(self, rows: Tensor) -> Tensor:
        if isinstance(self._table, Tensor):
            found = self._table.index_select(0, rows.to(self._table.device))
        else:
            found = torch.from_numpy(self._table[rows.cpu().numpy()])
        found = found.to(rows.device)
        return unpack_logits(found, classes=self._classes, top=self._top, kept=self._kept)

    def to(self, device: torch.device | str) -> Self:
        """Move the whole table to a device."""
        if isinstance(self._table, Tensor):
            self._table = self._table.to(device)
            return self
        whole = torch.empty(self._table.shape, dtype=WHOLES[self._kept], device=device)
        step = max(2**24 // self._table.shape[1], 1)  # so that CPU memory never has all of it
        for start in range(0, len(self._table), step):
            piece = torch.from_numpy(self._table[start : start + step].copy())
            whole[start : start + step] = piece
        self._table = whole
        return self


def packed_width(*, classes: int, top: int | None) -> int:
    """Return the numbers per row: all logits, or the top ones, the mean of the rest, the classes.

    >>> packed_width(classes=1000, top=None), packed_width(classes=1000, top=20)
    (1000, 41)
    """
    return classes if top is None else 2 * top + 1


def pack_logits(logits: Tensor, *, top: int | None, kept: StoredDtype) -> Tensor:
    """Return logits [n, C] as rows of a table [n, width]; among ties, the first class counts."""
    if top is None:
        return logits.to(FLOATS[kept]).view(WHOLES[kept])
    ordered, classes = logits.sort(dim=-1, descending=True, stable=True)
    rest = ordered[:, top:].mean(-1, keepdim=True)
    values = torch.cat([ordered[:, :top], rest], -1).to(FLOATS[kept])
    return torch.cat([values.view(WHOLES[kept]), classes[:, :top].to(WHOLES[kept])], -1)


def unpack_logits(rows: Tensor, *, classes: int, top: int | None, kept: StoredDtype) -> Tensor:
    """Return the logits of a table's rows, as float32 [n, C]."""
    if top is None:
        return rows.view(FLOATS[kept]).float()
    values = rows[:, : top + 1].view(FLOATS[kept]).float()
    where = rows[:, top + 1 :].to(torch.int64) & UNSIGNED[kept]
    return values[:, top:].expand(-1, classes).scatter(1, where, values[:, :top])
