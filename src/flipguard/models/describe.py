"""Descriptions of models, and whether one model can load another's weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from flipguard.models.calling import unwrapped
from flipguard.models.shapes import Shape, check_shape

Layout = dict[str, tuple[int, ...] | None]
"""The shape of each tensor of a state dict, by name; None for what is no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model in numbers. Models with the same `architecture` can load each other's weights."""

    parameters: int
    trainable: int
    input_shape: Shape | None
    architecture: str


def describe(model: nn.Module, *, input_shape: Shape | None = None) -> Description:
    """Return a model's description; flipguard's networks have their own `input_shape`.

    >>> describe(nn.Linear(2, 3), input_shape=(2,))
    Description(parameters=9, trainable=9, input_shape=(2,),
        architecture='layout-110d317e84c5862707a042242d71b6d8')
    """
    model = unwrapped(model)
    shape = check_shape(input_shape)
    if shape is None:
        known = getattr(model, "input_shape", None)
        shape = known if isinstance(known, tuple) else None
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return Description(
        parameters=sum(count for count, _ in counts),
        trainable=sum(count for count, learns in counts if learns),
        input_shape=shape,
        architecture=architecture(model),
    )


def architecture(model: nn.Module | Mapping[str, Any]) -> str:
    """Return a name that is equal for models whose tensors have the same names and shapes.

    The order, values, number types and devices of the tensors do not matter.

    >>> architecture(nn.Linear(2, 3)) == architecture(nn.Linear(2, 3).double())
    True
    >>> architecture(nn.Linear(2, 3)) == architecture(nn.Linear(3, 2))
    False
    """
    text = json.dumps(sorted(_layout(model).items()), separators=(",", ":"))
    return f"layout-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def same_layout(
    first: nn.Module | Mapping[str, Any], second: nn.Module | Mapping[str, Any]
) -> str | None:
    """Return None if one can load the other's weights, else the first difference in words.

    Both are models or state dicts.

    >>> same_layout(nn.Linear(2, 3), nn.Linear(2, 3))
    >>> same_layout(nn.Linear(2, 3), nn.Linear(2, 5))
    "'weight' is [3, 2] in the first and [5, 2] in the second"
    """
    one, other = _layout(first), _layout(second)
    for name, shape in one.items():
        if name not in other:
            return f"'{name}' {_words(shape)} is in the first alone"
        if shape != other[name]:
            return (
                f"'{name}' is {_words(shape)} in the first and {_words(other[name])} in the second"
            )
    for name, shape in other.items():
        if name not in one:
            return f"'{name}' {_words(shape)} is in the second alone"
    return None


def _layout(model: nn.Module | Mapping[str, Any]) -> Layout:
    state = unwrapped(model).state_dict() if isinstance(model, nn.Module) else model
    return {
        name: tuple(value.shape) if isinstance(value, Tensor) else None
        for name, value in state.items()
    }


def _words(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else str(list(shape))
