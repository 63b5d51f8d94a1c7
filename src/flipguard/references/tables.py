"""Tables of logits: in memory, on a device, or in a file that is read row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flipguard.errors import InputError

Array = npt.NDArray[Any]
# The widths in bytes of the floats that numpy and torch share.
WIDTHS = (2, 4, 8)
# Elements that are worked on at a time, so that a check takes little memory.
PIECE = 1 << 24


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
        """A copy of some rows."""
        found = self._logits.index_select(0, rows.reshape(-1).to(self.device))
        return found.reshape(*rows.shape, self._logits.shape[1])

    def to(self, device: torch.device) -> TensorTable:
        return TensorTable(self._logits.to(device))


class MappedTable:
    """Logits in an array that may not be written, perhaps of a file that is not in memory."""

    def __init__(self, logits: Array) -> None:
        self._logits = logits

    def __len__(self) -> int:
        return len(self._logits)

    def rows(self, rows: Tensor) -> Tensor:
        """A copy of some rows, which are checked here: the whole file is never read."""
        places = rows.reshape(-1).numpy()
        found = _tensor(self._logits[places])
        if bool(found.isnan().any()):
            first = int(places[int(found.isnan().any(dim=1).nonzero()[0])])
            raise _nan(self._name, first)
        return found.reshape(*rows.shape, self._logits.shape[1])

    def to(self, device: torch.device) -> TensorTable:
        """All rows, a piece at a time: device memory must hold them, the host's need not."""
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
    """A table of logits [n, C], checked; only a file's rows are checked later."""
    if isinstance(logits, Tensor):
        _must_be_a_table(logits.is_floating_point(), tuple(logits.shape), str(logits.dtype))
        table = TensorTable(logits.detach())
    elif isinstance(logits, np.ndarray):
        known = logits.dtype.kind == "f" and logits.dtype.itemsize in WIDTHS
        _must_be_a_table(known, logits.shape, str(logits.dtype))
        if isinstance(logits, np.memmap):
            return MappedTable(logits)
        if not logits.flags.writeable:
            # torch would hold it as if it could be written.
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
        strange = piece.isnan().any(dim=1)
        if bool(strange.any()):
            raise _nan("`logits`", start + int(strange.nonzero()[0]))
        start += len(piece)


def _nan(name: str, row: int) -> InputError:
    return InputError(
        f"Expected {name} to hold numbers only, but got nan in row {row}. Compute the logits anew "
        "with a model that gives none."
    )


def _step(classes: int) -> int:
    return max(1, PIECE // classes)


def _tensor(array: Array) -> Tensor:
    # torch knows neither foreign byte orders nor arrays that run backwards.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    backwards = any(stride < 0 for stride in native.strides)
    return torch.from_numpy(np.ascontiguousarray(native) if backwards else native)
