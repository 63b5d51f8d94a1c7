"""Copies of a few tensors' bytes, compared with and put back into where they came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Tensors that own bytes; of others (sharded, quantised by a subclass) torch tells no storage.
PLAIN = (Tensor, nn.Parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The bytes of one tensor: where they lie, and a copy."""

    tensor: Tensor
    alias: Tensor
    bytes: Tensor
    copy: Tensor

    @property
    def moved(self) -> bool:
        """Whether the tensor was given other memory or another shape."""
        return self.tensor.shape != self.alias.shape or storage(self.tensor) != storage(self.alias)

    def put_back(self) -> None:
        if self.moved:
            self.tensor.data = self.alias
        # Through another tensor, so that no version counts it: nothing has changed, after all.
        self.bytes.copy_(self.copy)


def snapshots(tensors: Iterable[Tensor | None]) -> list[Snapshot]:
    """A snapshot of each tensor that has bytes."""
    found = {id(tensor): tensor for tensor in tensors if tensor is not None}
    return [_snapshot(t) for t in found.values() if _owns_bytes(t) and not t.is_meta]


def _snapshot(tensor: Tensor) -> Snapshot:
    # The storage as bytes: exact for every type, for nan, and for tensors that overlap themselves.
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole.set_(tensor.untyped_storage())
    return Snapshot(tensor=tensor, alias=tensor.data, bytes=whole, copy=whole.clone())


def storage(tensor: Tensor) -> int:
    """Where a tensor's memory begins; 0 if it has none of its own."""
    return tensor.untyped_storage().data_ptr() if _owns_bytes(tensor) else 0


def _owns_bytes(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.layout == torch.strided


class Difference:
    """Whether bytes differ from their snapshots: known at once on the host, later on CUDA.

    >>> tensor = torch.zeros(3)
    >>> taken = snapshots([tensor])
    >>> _ = tensor.data.add_(1.0)
    >>> Difference(taken).found
    True
    """

    def __init__(self, taken: Iterable[Snapshot]) -> None:
        self._found = False
        self._flags: list[Tensor] = []
        self._events: list[Any] = []
        groups: dict[torch.device, list[Tensor]] = {}
        for one in taken:
            if one.moved:
                self._found = True
                return
            groups.setdefault(one.bytes.device, []).append((one.bytes != one.copy).any())
        for device, flags in groups.items():
            self._ask(device, torch.stack(flags).any())

    @property
    def found(self) -> bool | None:
        """Whether any byte differs, or None while a device has not answered yet."""
        if not all(event.query() for event in self._events):
            return None
        return self._found or any(bool(flag) for flag in self._flags)

    def _ask(self, device: torch.device, flag: Tensor) -> None:
        if device.type == "cuda":
            # The answer travels while the host goes on; it is looked at in a later call.
            on_device, flag = flag, torch.empty((), dtype=torch.bool, pin_memory=True)
            flag.copy_(on_device, non_blocking=True)
            self._events.append(torch.cuda.current_stream(device).record_event())
        self._flags.append(flag)
