"""A model's parameters and buffers, watched through a call and put back if they changed.

Changes are found by identity (another tensor in a tensor's place) and by version (torch counts
what is done to a tensor in place). What neither shows (a write through `.data`, batch
normalisation that was told to train) is found by comparing bytes, in the first call only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.randomness import capturing
from flipguard.references.snapshots import Difference, Snapshot, snapshots, storage

Store = dict[str, Any]
Marks = tuple[list[int], list[int]]
"""Of some tensors, which they are and at which version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All of a model as it was before a call, without a copy of any tensor."""

    modules: list[nn.Module]
    attributes: list[dict[str, Any]]
    stores: list[Store]
    contents: list[Store]
    parameters: Marks
    buffers: Marks

    @property
    def same(self) -> bool:
        """Whether nothing was replaced, added, removed or (as torch tells) changed since."""
        return self.buffers == _marks([m._buffers for m in self.modules]) and (
            self.parameters == _marks([m._parameters for m in self.modules])
        )


class Watch:
    """Puts a model's parameters and buffers back after each call that changed them.

    The first call copies the buffers. A model that leaves them alone is never copied again; one
    that does not is copied before every later call. The first copy serves a model that begins to
    change itself later, unless others changed its buffers in between: then its first change stays.
    Parameters are never copied: a model that rewrites them is refused.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._changes: bool | None = None  # not known before the first call
        self._difference: Difference | None = None
        # The copies of the first call, and the marks under which they still hold.
        self._first: list[Snapshot] | None = None
        self._marks: Marks | None = None

    @contextmanager
    def kept(self, modules: list[nn.Module]) -> Iterator[None]:
        """Within, the model may be called; `modules` are all of its modules."""
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
            # Afresh each time: what others wrote through `.data` since is theirs to keep.
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


def lies_in(modules: list[nn.Module], result: Tensor) -> bool:
    """Whether a result lies in the model's own memory, which a later call may rewrite."""
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
        # Tensors made in inference mode are not counted, and are not changed outside of it.
        versions = [
            -1 if tensor is None or tensor.is_inference() else tensor._version for tensor in tensors
        ]
    return [id(tensor) for tensor in tensors], versions


def _taken(seen: _Seen) -> list[Snapshot]:
    return snapshots(tensor for module in seen.modules for tensor in module._buffers.values())


def _rewritten(model: nn.Module, seen: _Seen) -> str | None:
    """The first parameter that was changed in place, if one was."""
    # A recurrent layer that packs its weights for the GPU moves them, and keeps their values.
    moving = {id(p) for m in seen.modules if isinstance(m, nn.RNNBase) for p in m.parameters()}
    before = dict(zip(*seen.parameters, strict=True))
    for name, parameter in model.named_parameters():
        _, (version,) = _marks([{name: parameter}])
        if id(parameter) not in moving and before.get(id(parameter), version) != version:
            return name
    return None


def _roll_back(seen: _Seen) -> None:
    """Every name means again what it meant, among the plain attributes too.

    A cache and the number that says how far it reaches belong together: one alone is a lie.
    """
    for module, before in zip(seen.modules, seen.attributes, strict=True):
        now = vars(module)
        for name in [name for name in now if name not in before]:
            del now[name]
        now.update(before)
    for store, content in zip(seen.stores, seen.contents, strict=True):
        store.clear()
        store.update(content)
