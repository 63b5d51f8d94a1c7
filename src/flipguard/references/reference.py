"""The base class of references, and calls of a model that do not change it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.randomness import untouched_randomness
from flipguard.references.model_state import StateGuard, shares_memory

Output = Callable[[Any], Tensor]
"""Picks the logits from what a model returns."""


class Reference(ABC):
    """Base class of what a new model is pulled to: called with a batch, it returns logits [N, C].

    The logits have no gradient, and a call leaves the random streams as they were. It is not a
    `torch.nn.Module`, so as an attribute of a student it is not trained, saved, moved or copied.

    >>> from flipguard.references import OldModel
    >>> student = torch.nn.Linear(2, 3)
    >>> student.reference = OldModel(torch.nn.Linear(2, 3))
    >>> list(student.state_dict())
    ['weight', 'bias']
    """

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logits of a batch."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Move the reference to a device, and return it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Averaged copies of a student are deep copies, which must not copy its references.
        return self


def logits_of(output: Any, pick: Output | None = None) -> Tensor:
    """Return the logits of a model's output; `pick` selects them if needed.

    >>> logits_of({"logits": torch.zeros(1, 2), "loss": None})
    tensor([[0., 0.]])
    >>> logits_of((torch.zeros(1, 2), torch.ones(1, 3)), lambda pair: pair[1])
    tensor([[1., 1., 1.]])
    """
    if pick is not None:
        found: Any = pick(output)
        if not isinstance(found, Tensor):
            raise InputError(
                f"Expected `output` to pick a tensor of logits, but got {_kind(found)}. Give a "
                "callable that picks the logits from what the model returns."
            )
    else:
        found = output
        if not isinstance(found, Tensor):
            found = getattr(output, "logits", None)
        if found is None and isinstance(output, Mapping):
            found = output.get("logits")
        if not isinstance(found, Tensor):
            raise InputError(
                "Expected `model` to return a tensor, an object with `.logits` or a mapping with "
                f"'logits', but got {_kind(output)}. Pass `output=`, a callable that picks the "
                "logits from what the model returns."
            )
    if not found.is_floating_point():
        raise InputError(
            f"Expected `model` to return logits as floats, but got {found.dtype}. Return the "
            "scores of all classes, not the predicted class."
        )
    return found


def _kind(value: object) -> str:
    return type(value).__name__


class Frozen:
    """A model or callable that returns logits and is not changed by calls.

    A module runs in eval mode, and each submodule gets its own mode back afterwards. Its
    parameters and buffers stay equal to the byte (plain attributes that a call rebinds are restored
    only if it changed a buffer too). A module follows the batch: where the first
    tensor among the arguments lies on another device than the module, the module is moved there.
    A plain callable cannot be looked into: only gradients and random numbers are kept from it.

    Autocast is the caller's: what is on where the call stands, applies. In a step that is compiled
    the modes are set and no gradient flows; the rest is not watched there, and no model is moved.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5))
    >>> logits = Frozen(model)(torch.ones(4, 2))
    >>> logits.shape, logits.requires_grad, model.training
    (torch.Size([4, 3]), False, True)
    """

    def __init__(
        self, model: nn.Module | Callable[..., Any], *, output: Output | None = None
    ) -> None:
        if not callable(model) or isinstance(model, type):
            raise InputError(
                "Expected `model` to be a model or a callable that gives logits, but got "
                f"{model.__name__ if isinstance(model, type) else type(model).__name__}. Build or "
                "load the model first."
            )
        if output is not None and not callable(output):
            raise InputError(
                f"Expected `output` to be a callable, but got {type(output).__name__}. Give one "
                "that picks the logits from what the model returns."
            )
        self.model = model
        self._output = output
        # A bound method of a module runs the module.
        owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
        self._module = owner if isinstance(owner, nn.Module) else None
        self._watch = StateGuard(self._module) if self._module is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if torch.compiler.is_compiling():
            return self._traced(args, kwargs)
        if isinstance(self.model, Reference):
            return self.model(*args, **kwargs).detach()
        device = device_of((args, kwargs))
        with untouched_randomness(device), torch.no_grad(), _no_autocast_cache():
            if self._module is None or self._watch is None:
                return logits_of(self.model(*args, **kwargs), self._output).detach()
            _follow(self._module, device)
            modules = list(self._module.modules())
            with evaluating(modules), self._watch.kept(modules):
                logits = logits_of(self.model(*args, **kwargs), self._output).detach()
                return logits.clone() if shares_memory(modules, logits) else logits

    def to(self, device: torch.device | str) -> None:
        """Move the model, if it can be moved."""
        if isinstance(self.model, Reference):
            self.model.to(device)
        elif self._module is not None:
            _move(self._module, device)

    def __reduce__(self) -> tuple[Any, ...]:
        # Facts about the model's memory are valid in this process only.
        return _frozen, (self.model, self._output)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return the logits without guards, which a compiler cannot trace."""
        modules = list(self._module.modules()) if self._module is not None else []
        flags = [module.training for module in modules]
        with torch.no_grad():
            try:
                for module in modules:
                    module.training = False
                return logits_of(self.model(*args, **kwargs), self._output).detach()
            finally:
                for module, flag in zip(modules, flags, strict=True):
                    module.training = flag


def _frozen(model: nn.Module | Callable[..., Any], output: Output | None) -> Frozen:
    return Frozen(model, output=output)


@contextmanager
def evaluating(modules: list[nn.Module]) -> Iterator[None]:
    """Set eval mode for all modules, and restore each module's mode afterwards.

    Only the flags are set, because some models change their weights in `eval()` and `train()`.

    >>> model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    >>> with evaluating(list(model.modules())):
    ...     [module.training for module in model.modules()]
    [False, False, False]
    >>> [module.training for module in model.modules()]
    [True, True, False]
    """
    flags = [(module, module.training) for module in modules]
    try:
        for module, training in flags:
            if training:
                _set_training(module, False)
        yield
    finally:
        for module, training in flags:
            if module.training != training:
                _set_training(module, training)


def _set_training(module: nn.Module, training: bool) -> None:
    # Set directly, because most of torch's time goes to a search for parameters and modules.
    if type(module).__setattr__ is nn.Module.__setattr__:
        object.__setattr__(module, "training", training)
    else:
        module.training = training


def device_of(values: Any) -> torch.device | None:
    """Return the device of the first tensor in nested lists, tuples and mappings.

    >>> device_of(([3, {"x": torch.zeros(1)}],))
    device(type='cpu')
    """
    if isinstance(values, Tensor):
        return values.device
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return None
    return next((found for value in values if (found := device_of(value)) is not None), None)


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    # What autocast casts here it would keep for the rest of the block: memory, weights that are
    # out of date after a refresh and, before torch 2.10, casts without a gradient, of which a
    # student that shares the weights learns nothing.
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _follow(module: nn.Module, device: torch.device | None) -> None:
    held = next(chain(module.parameters(), module.buffers()), None)
    if device is None or held is None or held.device == device:
        return
    # A model on several devices, or one that loads weights as it runs, moves its inputs itself.
    if not held.is_meta and not hasattr(module, "hf_device_map"):
        _move(module, device)


def _move(module: nn.Module, device: torch.device | str) -> None:
    # Weights that are moved in inference mode could not be used in training.
    with torch.inference_mode(False):
        module.to(device)
