"""What the losses have in common: options that are stated once, as the fields of a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from flipguard.losses.inputs import REDUCTIONS, Loss, Preset, Reduction, one_of

T = TypeVar("T")
# The default of an option whose value depends on the preset.
FROM_PRESET: Any = None


class LossTerm(nn.Module):
    """A loss as a module: options when it is made, tensors when it is called.

    A loss without parameters is a dataclass, whose fields are its options. Every term is to be
    added to the task's own loss, which none of them holds. ``term.compile()`` fuses a term into a
    few kernels.
    """

    reduction: Reduction

    def __post_init__(self) -> None:
        """Make the dataclass a module, and check the option that every loss has."""
        super().__init__()
        one_of("reduction", self.reduction, REDUCTIONS)

    def extra_repr(self) -> str:
        """The options, as they would be typed."""
        options = ((name, value) for name, value in vars(self).items() if name != "training")
        return ", ".join(f"{name}={value!r}" for name, value in options if not name.startswith("_"))


def options_of(kind: type[LossTerm]) -> Callable[[Callable[..., Loss]], Callable[..., Loss]]:
    """Show the options of a loss in the signature of a function that takes ``**options``."""

    def shown(function: Callable[..., Loss]) -> Callable[..., Loss]:
        own = inspect.signature(function)
        tensors = [p for p in own.parameters.values() if p.kind is p.KEYWORD_ONLY]
        options = inspect.signature(kind).parameters.values()
        both = own.replace(parameters=[*tensors, *options])
        function.__signature__ = both  # type: ignore[attr-defined]
        return function

    return shown


def is_paper_preset(preset: Preset | None) -> bool:
    """Whether a preset asks for what a paper prints."""
    if preset is not None:
        one_of("preset", preset, ("paper",))
    return preset == "paper"


def given_or(value: T | None, default: T) -> T:
    """Return an option, or `default` if it was not given."""
    return default if value is None else value
