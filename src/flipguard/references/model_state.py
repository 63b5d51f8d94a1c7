"""Guards that restore a model's parameters and buffers if a call changes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.randomness import capturing

# Tensors with a storage. For others (sharded, quantised by a subclass) torch reports none.
PLAIN = (Tensor, nn.Parameter)

Store = dict[str, Any]
Marks = tuple[list[int], list[int]]
"""Of some tensors, which they are and at which version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The address of one tensor's bytes, and a copy of them."""

    tensor: Tensor
    alias: Tensor
    bytes: Tensor
    copy: Tensor

    @property
    def moved(self) -> bool:
        """Whether the tensor has been given other memory or another shape."""
        return self.tensor.shape != self.alias.shape or storage(self.tensor) != storage(self.alias)

    def put_back(self) -> None:
        if self.moved:
            self.tensor.data = self.alias
        # Written through another tensor, so that the version counter stays as it was.
        self.bytes.copy_(self.copy)


def snapshots(tensors: Iterable[Tensor | None]) -> list[Snapshot]:
    """Return a snapshot of each tensor that has bytes."""
    found = {id(tensor): tensor for tensor in tensors if tensor is not None}
    return [_snapshot(t) for t in found.values() if _owns_bytes(t) and not t.is_meta]


def _snapshot(tensor: Tensor) -> Snapshot:
    # Bytes are exact for every type, for nan, and for tensors that overlap themselves.
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole.set_(tensor.untyped_storage())
    return Snapshot(tensor=tensor, alias=tensor.data, bytes=whole, copy=whole.clone())


def storage(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, or 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if _owns_bytes(tensor) else 0


def _owns_bytes(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.layout == torch.strided


class Difference:
    """Whether bytes differ from their snapshots: known at once on the CPU, later on CUDA.

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
        """Whether any byte differs, or None while a device is still comparing."""
        if not all(event.query() for event in self._events):
            return None
        return self._found or any(bool(flag) for flag in self._flags)

    def _ask(self, device: torch.device, flag: Tensor) -> None:
        if device.type == "cuda":
            # The result is copied while the CPU continues, and is read in a later call.
            on_device, flag = flag, torch.empty((), dtype=torch.bool, pin_memory=True)
            flag.copy_(on_device, non_blocking=True)
            self._events.append(torch.cuda.current_stream(device).record_event())
        self._flags.append(flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The state of a model before a call, without a copy of any tensor."""

    modules: list[nn.Module]
    attributes: list[dict[str, Any]]
    stores: list[Store]
    contents: list[Store]
    parameters: Marks
    buffers: Marks

    @property
    def same(self) -> bool:
        """Whether nothing was replaced, added, removed or (as torch reports) changed since."""
        return self.buffers == _marks([m._buffers for m in self.modules]) and (
            self.parameters == _marks([m._parameters for m in self.modules])
        )


class StateGuard:
    """Restores a model's buffers after each call that changed them.

    The first call copies the buffers. If the model does not change them, it is never copied again;
    otherwise it is copied before every later call. If a model starts to change its buffers later,
    the first copy is used, unless other code changed the buffers in between: then the first change
    is kept. Parameters are never copied: a model that changes them raises an error.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._changes: bool | None = None  # unknown before the first call
        self._difference: Difference | None = None
        # The copies of the first call, and the marks for which they are still valid.
        self._first: list[Snapshot] | None = None
        self._marks: Marks | None = None

    @contextmanager
    def kept(self, modules: list[nn.Module]) -> Iterator[None]:
        """Return a context in which the model may be called; `modules` are all of its modules."""
        seen = _look(modules)
        taken = self._before(seen)
        rewritten: str | None = None
        try:
            yield
        finally:
            rewritten = self._after(seen, taken)
        if rewritten is not None:
            raise InputError(
                "Expected `model` to leave its parameters alone in eval mode, but got a change of "
                f"'{rewritten}' in place. Give a model that learns in train mode only."
            )

    def _before(self, seen: _Seen) -> list[Snapshot] | None:
        if self._changes is None and self._difference is not None and not capturing():
            self._changes = self._difference.found
        if self._changes or (self._changes is None and capturing()):
            # Copied each time, so that what other code wrote through `.data` is kept.
            return _taken(seen)
        if self._marks != seen.buffers:
            self._first = _taken(seen) if self._changes is None else None
            self._marks = None
        return self._first

    def _after(self, seen: _Seen, taken: list[Snapshot] | None) -> str | None:
        rewritten = None
        if not seen.same:
            self._changes = True
            self._first, self._marks = None, None
            rewritten = _rewritten(self._model, seen)
            _roll_back(seen)
        elif self._changes is None and not capturing():
            if self._difference is None:
                self._difference = Difference(taken or [])
            self._changes = self._difference.found
            self._marks = seen.buffers
        if self._changes is not False:
            for one in taken or []:
                one.put_back()
        return rewritten


def shares_memory(modules: list[nn.Module], result: Tensor) -> bool:
    """Whether a result shares the model's memory, which a later call may change."""
    place = storage(result)
    stores: list[Store] = [s for m in modules for s in (m._parameters, m._buffers) if s]
    return any(t is not None and storage(t) == place for s in stores for t in s.values())


def _look(modules: list[nn.Module]) -> _Seen:
    stores = [store for m in modules for store in (m._parameters, m._buffers)]
    return _Seen(
        modules=modules,
        attributes=[dict(vars(module)) for module in modules],
        stores=stores,
        contents=[dict(store) for store in stores],
        parameters=_marks([module._parameters for module in modules]),
        buffers=_marks([module._buffers for module in modules]),
    )


def _marks(stores: list[Any]) -> Marks:
    tensors = [tensor for store in stores for tensor in store.values()]
    try:
        versions = [-1 if tensor is None else tensor._version for tensor in tensors]
    except RuntimeError:
        # Tensors made in inference mode have no version, and cannot be changed outside of it.
        versions = [
            -1 if tensor is None or tensor.is_inference() else tensor._version for tensor in tensors
        ]
    return [id(tensor) for tensor in tensors], versions


def _taken(seen: _Seen) -> list[Snapshot]:
    return snapshots(tensor for module in seen.modules for tensor in module._buffers.values())


def _rewritten(model: nn.Module, seen: _Seen) -> str | None:
    """Return the name of the first parameter that was changed in place, or None."""
    # A recurrent layer that packs its weights for the GPU moves them without changing values.
    moving = {id(p) for m in seen.modules if isinstance(m, nn.RNNBase) for p in m.parameters()}
    before = dict(zip(*seen.parameters, strict=True))
    for name, parameter in model.named_parameters():
        _, (version,) = _marks([{name: parameter}])
        if id(parameter) not in moving and before.get(id(parameter), version) != version:
            return name
    return None


def _roll_back(seen: _Seen) -> None:
    """Restore what every name refers to, including plain attributes.

    A cache and the attribute with its length must be restored together.
    """
    for module, before in zip(seen.modules, seen.attributes, strict=True):
        now = vars(module)
        for name in [name for name in now if name not in before]:
            del now[name]
        now.update(before)
    for store, content in zip(seen.stores, seen.contents, strict=True):
        store.clear()
        store.update(content)
