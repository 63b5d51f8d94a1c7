"""Functions that a spec can name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


def linear(*, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Draws from numpy too, as some do."""
    layer = nn.Linear(input_shape[0], classes)
    with torch.no_grad():
        layer.bias.fill_(float(np.random.rand()))  # noqa: NPY002
    return layer


def nothing(**_: Any) -> None:
    """Returns no model."""


class Inside:
    @staticmethod
    def linear(*, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
        return linear(classes=classes, input_shape=input_shape)


number = 3


def fails(**_: Any) -> nn.Module:
    """Draws, and then does not end."""
    nn.Linear(2, 2)
    raise TypeError("on purpose")
