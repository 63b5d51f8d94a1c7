"""Indices that map the ids of samples to the rows of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flipguard.errors import InputError, listed

Ids = Tensor | Sequence[int] | Sequence[str] | npt.NDArray[Any]


class Index(ABC):
    """A mapping from ids to rows."""

    @abstractmethod
    def rows(self, ids: Ids) -> Tensor:
        """Return the rows of ids on the CPU, or raise an error for an unknown id."""

    @abstractmethod
    def rows_on_device(self, ids: Tensor) -> Tensor:
        """Return the rows of ids on a device; an unknown id gets a row outside of every table."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Prepare lookups on a device."""


class PositionIds(Index):
    """Samples identified by position.

    >>> PositionIds(3).rows([2, 0])
    tensor([2, 0])
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def rows(self, ids: Ids) -> Tensor:
        rows = _whole_numbers(ids, "positions")
        invalid = rows[(rows < 0) | (rows >= self._count)]
        if len(invalid):
            raise InputError(
                f"Expected `ids` to be positions from 0 to {self._count - 1}, but got "
                f"{listed(invalid.tolist())}. Store the logits of every sample, or pass the "
                "samples' `ids` with them."
            )
        return rows

    def rows_on_device(self, ids: Tensor) -> Tensor:
        rows = _integers(ids, "positions")
        # A negative position would count from the end.
        return torch.where(rows < 0, self._count, rows)

    def to(self, device: torch.device) -> None:
        pass  # positions are rows everywhere


class IntegerIds(Index):
    """Samples identified by whole numbers.

    >>> IntegerIds(torch.tensor([30, 10, 20])).rows([10, 30])
    tensor([1, 0])
    """

    def __init__(self, ids: Tensor) -> None:
        self._sorted, self._order = torch.sort(ids)
        again = self._sorted[1:][self._sorted[1:] == self._sorted[:-1]]
        if len(again):
            raise _twice(again.tolist())
        self._there = self._sorted, self._order

    def rows(self, ids: Ids) -> Tensor:
        wanted = _whole_numbers(ids, "whole numbers")
        rows, known = _found(wanted, self._sorted, self._order)
        if not bool(known.all()):
            raise _unknown(wanted[~known].tolist())
        return rows

    def rows_on_device(self, ids: Tensor) -> Tensor:
        wanted = _integers(ids, "whole numbers")
        rows, known = _found(wanted, *self._there)
        return torch.where(known, rows, len(self._order))

    def to(self, device: torch.device) -> None:
        self._there = self._sorted.to(device), self._order.to(device)


class TextIds(Index):
    """Samples identified by text.

    >>> TextIds(["a", "b"]).rows(["b"])
    tensor([1])
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._rows = {name: row for row, name in enumerate(ids)}
        if len(self._rows) != len(ids):
            # A name is mapped to its last row; every other row of that name is a repetition.
            raise _twice([name for row, name in enumerate(ids) if self._rows[name] != row])

    def rows(self, ids: Ids) -> Tensor:
        wanted = _plain(ids)
        if isinstance(wanted, Tensor):
            if wanted.numel():
                raise _of_another_kind("text", wanted.reshape(-1)[:1].tolist())
            return wanted
        rows = [self._rows.get(name, -1) for name in wanted]
        unknown = [name for name, row in zip(wanted, rows, strict=True) if row < 0]
        if unknown:
            raise _unknown(unknown)
        return torch.tensor(rows, dtype=torch.int64)

    def rows_on_device(self, ids: Tensor) -> Tensor:
        raise _of_another_kind("text", [f"a tensor of {ids.dtype}"])

    def to(self, device: torch.device) -> None:
        pass  # no device holds text


def index_of(ids: Ids | None, count: int) -> Index:
    """Return the index of a table with `count` rows."""
    if ids is None:
        return PositionIds(count)
    names = _plain(ids)
    shape = tuple(names.shape) if isinstance(names, Tensor) else (len(names),)
    if shape != (count,):
        raise InputError(
            f"Expected `ids` to name the {count} rows of `logits`, but got {shape}. Give one id "
            "for each row."
        )
    return IntegerIds(names.cpu()) if isinstance(names, Tensor) else TextIds(names)


def _found(wanted: Tensor, ordered: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of each id, and whether the id exists."""
    if not len(order):
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    places = torch.searchsorted(ordered, wanted).clamp(max=len(order) - 1)
    return order[places], ordered[places] == wanted


def _whole_numbers(ids: Ids, what: str) -> Tensor:
    found = _plain(ids)
    if isinstance(found, Tensor):
        return found
    raise _of_another_kind(what, found)


def _plain(ids: Ids) -> Tensor | list[str]:
    """Return ids as one int64 tensor, or as a list of text."""
    if isinstance(ids, Tensor):
        return _integers(ids, "whole numbers")
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind == "i":
            return torch.tensor(ids.astype(np.int64))
        ids = ids.tolist()
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise _of_another_kind("a tensor or a list", [ids])
    invalid = [one for one in ids if not isinstance(one, str)]
    if ids and not invalid:
        return [str(one) for one in ids]
    for one in ids:
        whole = isinstance(one, int | np.integer) and not isinstance(one, bool)
        if not whole or not -(2**63) <= int(one) < 2**63:
            known = "whole numbers of 64 bits, or all text"
            raise _of_another_kind(known, [one])
    return torch.tensor([int(one) for one in ids], dtype=torch.int64)


def _integers(ids: Tensor, what: str) -> Tensor:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise _of_another_kind(what, [f"a tensor of {ids.dtype}"])
    return ids.to(torch.int64)


def _of_another_kind(expected: str, given: Sequence[object]) -> InputError:
    return InputError(
        f"Expected `ids` to be {expected}, but got {listed(given)}. Give the ids that the logits "
        "were stored with."
    )


def _unknown(ids: Sequence[object]) -> InputError:
    return InputError(
        f"Expected `ids` to be those of stored logits, but got {listed(ids)}. Store the logits of "
        "every sample that is asked for."
    )


def _twice(ids: Sequence[object]) -> InputError:
    return InputError(
        f"Expected `ids` to differ, but got {listed(dict.fromkeys(ids))} more than once. Give "
        "every sample its own id."
    )
