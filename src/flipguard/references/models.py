"""References that call a model: the old model, and a stale copy of a model in training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from flipguard.errors import InputError, listed
from flipguard.references.reference import Frozen, Output, Reference


class OldModel(Reference):
    """The old model, called as in production.

    `model` is a module or any callable that returns logits. A callable that is not a module is only
    kept from gradients and from the random streams. Outputs with `.logits` are understood; for
    other outputs, `output` selects the logits. A module is moved to the device of the batch.

    >>> old = OldModel(torch.nn.Linear(2, 3))
    >>> old(torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    >>> pair = OldModel(lambda x: (x, x + 1.0), output=lambda output: output[1])
    >>> pair(torch.zeros(1, 2))
    tensor([[1., 1.]])
    """

    def __init__(
        self, model: nn.Module | Callable[..., Any], *, output: Output | None = None
    ) -> None:
        self._frozen = Frozen(model, output=output)

    @property
    def model(self) -> nn.Module | Callable[..., Any]:
        """The model that was given."""
        return self._frozen.model

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {type(self._frozen.model).__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._frozen(*args, **kwargs)

    def to(self, device: torch.device | str) -> Self:
        self._frozen.to(device)
        return self


class Peer(Reference):
    """A stale copy of a live model, for two models that learn from each other.

    Each model is trained against an earlier state of the other, so that the two can be updated
    independently (Anil et al. 2018). The copy is made at construction. Call `step()` after each
    optimizer step: every `every` steps it copies the live model's parameters and buffers. The live
    model is never changed.

    >>> live = torch.nn.Linear(1, 2)
    >>> peer = Peer(live, every=2)
    >>> first = peer(torch.ones(1, 1))
    >>> _ = live.weight.data.add_(1.0)
    >>> peer.step()
    >>> bool((peer(torch.ones(1, 1)) == first).all())
    True
    >>> peer.step()
    >>> bool((peer(torch.ones(1, 1)) == first + 1.0).all())
    True
    """

    def __init__(self, model: nn.Module, *, every: int, output: Output | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}. Give "
                "the model that is being trained."
            )
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InputError(
                f"Expected `every` to be a whole number from 1 on, but got {listed([every])}. Give "
                "the number of optimizer steps between two refreshes."
            )
        self.every = every
        self.steps = 0
        self._output = output
        self._live = _unwrapped(model)
        self._copy = _stale_copy(self._live)
        self._frozen = Frozen(self._copy, output=output)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {type(self._live).__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._frozen(*args, **kwargs)

    def to(self, device: torch.device | str) -> Self:
        """Move the copy to a device; the live model is not moved."""
        self._frozen.to(device)
        return self

    def step(self) -> None:
        """Count an optimizer step, and refresh the copy after every `every` steps."""
        self.steps += 1
        if self.steps % self.every == 0:
            self._refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the copy and the number of steps, so that a resumed run continues exactly."""
        tensors = {name: tensor.detach().clone() for name, tensor in _tensors(self._copy).items()}
        return {"steps": self.steps, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state from `state_dict`; if it does not fit, nothing is changed."""
        if not isinstance(state, Mapping) or not {"steps", "tensors"} <= set(state):
            raise InputError(
                "Expected `state` to be what Peer.state_dict() gave, but got "
                f"{listed(state) if isinstance(state, Mapping) else type(state).__name__}. Save "
                "and load the peer's own state."
            )
        held, given = _tensors(self._copy), state["tensors"]
        differing = [n for n in (*held, *given) if n not in held or n not in given]
        differing += [n for n in held if n in given and held[n].shape != given[n].shape]
        if differing:
            raise InputError(
                "Expected `state` to hold the parameters and buffers of the model, but got others "
                f"at {listed(differing)}. Load it for a model of the same architecture."
            )
        _overwrite(held, given)
        self.steps = int(state["steps"])

    def _refresh(self) -> None:
        held, live = _tensors(self._copy), _tensors(self._live)
        if _layout(held) == _layout(live):
            _overwrite(held, live)
        else:
            # The live model was given other layers, or buffers of other shapes.
            device = next((tensor.device for tensor in held.values()), None)
            self._copy = _stale_copy(self._live)
            self._frozen = Frozen(self._copy, output=self._output)
            if device is not None:
                self._frozen.to(device)


def _unwrapped(model: nn.Module) -> nn.Module:
    # Wrappers that distribute or compile a model cannot be copied with it.
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _stale_copy(model: nn.Module) -> nn.Module:
    try:
        stale = copy.deepcopy(model)
    except (RuntimeError, TypeError) as problem:
        raise InputError(
            f"Expected `model` to be one that can be deep-copied, but got {type(model).__name__} "
            f"({problem}). Make the peer before the model's first call."
        ) from problem
    for parameter in stale.parameters():
        parameter.requires_grad_(False)
    for module in stale.modules():
        # Hooks on the live model must not see the copy's activations.
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    return stale


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and all buffers, including those that a state dict leaves out."""
    return dict(chain(model.named_parameters(), model.named_buffers()))


def _layout(tensors: Mapping[str, Tensor]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]


def _overwrite(held: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(given[name])
