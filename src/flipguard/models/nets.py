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
