"""What flipguard's own networks share: features, and a linear head on them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from flipguard.models.shapes import Shape


class Net(nn.Module, ABC):
    """A classifier of features [N, D] by one linear layer, `head`."""

    head: nn.Linear

    def __init__(self, *, input_shape: Shape) -> None:
        super().__init__()
        self.input_shape = input_shape

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """What the head classifies, [N, D]; while training, after the dropout."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


def convolved(before: int, after: int) -> tuple[nn.Module, ...]:
    """A 3x3 convolution that keeps the size, normalised, with ReLU."""
    # Batch normalisation has a bias of its own.
    return nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
