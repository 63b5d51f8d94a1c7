"""Networks for vectors and signals: a perceptron, and the convolutional net of MNIST-1D."""

from __future__ import annotations

import math
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.models.nets import Net
from flipguard.models.shapes import Shape, needed, signal

# Strides of 2 leave this much of a signal at least one place to look at.
SHORTEST_SIGNAL = 3


class Perceptron(Net):
    """A multi-layer perceptron: `depth` hidden layers of `hidden` units, ReLU, dropout after each.

    Inputs of any shape are flattened.

    >>> Perceptron(classes=10, input_shape=(40,))
    Perceptron(
      (body): Sequential(
        (0): Linear(in_features=40, out_features=100, bias=True)
        (1): ReLU()
        (2): Dropout(p=0.0, inplace=False)
        (3): Linear(in_features=100, out_features=100, bias=True)
        (4): ReLU()
        (5): Dropout(p=0.0, inplace=False)
      )
      (head): Linear(in_features=100, out_features=10, bias=True)
    )
    """

    def __init__(
        self,
        *,
        classes: int,
        input_shape: Shape | None,
        hidden: int = 100,
        depth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(input_shape=needed("mlp", input_shape))
        widths = [math.prod(self.input_shape), *[hidden] * depth]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)

    def features(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.body(inputs.flatten(1))
        return features


class ConvNet1d(Net):
    """Three strided convolutions over a signal, as in MNIST-1D (Greydanus and Kobak, 2024).

    With the default width and 10 classes it has the paper's 5,210 parameters on signals of 40.

    >>> net = ConvNet1d(classes=10, input_shape=(40,))
    >>> sum(parameter.numel() for parameter in net.parameters())
    5210
    """

    def __init__(
        self,
        *,
        classes: int,
        input_shape: Shape | None,
        width: int = 25,
        dropout: float = 0.0,
    ) -> None:
        grid = signal("conv1d", input_shape, least=SHORTEST_SIGNAL)
        super().__init__(input_shape=needed("conv1d", input_shape))
        self.bare = grid.bare
        self.first = nn.Conv1d(grid.channels, width, 5, stride=2, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.third = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width * _places(grid.sizes[0]), classes)

    def features(self, inputs: Tensor) -> Tensor:
        hidden = inputs.unsqueeze(1) if self.bare else inputs
        for layer in (self.first, self.second, self.third):
            hidden = F.relu(layer(hidden))
        features: Tensor = self.dropout(hidden.flatten(1))
        return features


def _places(length: int) -> int:
    """How many places of a signal the third convolution looks at."""
    length = (length + 2 - 5) // 2 + 1
    for _ in range(2):
        length = (length + 2 - 3) // 2 + 1
    return length
