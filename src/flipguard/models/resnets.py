"""Residual networks for small images (He et al., 2016), with a 3x3 stem and no pooling after it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.models.nets import Net, convolved
from flipguard.models.shapes import Shape, image, needed


class Block(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to what came in.

    Where the shape changes, what came in is either projected by a 1x1 convolution (the paper's
    option B), or every `stride`-th place of it is taken and the new channels are zero (option A,
    which has no parameters).
    """

    def __init__(self, before: int, after: int, *, stride: int, projected: bool) -> None:
        super().__init__()
        self.stride = stride
        self.more_channels = after - before
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut: nn.Module | None = None
        if projected and (stride != 1 or before != after):
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.first_norm(self.first(inputs)))
        hidden = self.second_norm(self.second(hidden))
        return F.relu(hidden + self._kept(inputs))

    def _kept(self, inputs: Tensor) -> Tensor:
        if self.shortcut is not None:
            projected: Tensor = self.shortcut(inputs)
            return projected
        if self.stride == 1 and self.more_channels == 0:
            return inputs
        taken = inputs[:, :, :: self.stride, :: self.stride]
        return F.pad(taken, (0, 0, 0, 0, 0, self.more_channels))


class ResNet9(Net):
    """Eight convolutions, wide and shallow, that halve the image early.

    Page's network of the DAWNBench contest (2018): a first convolution, then three of twice the
    channels each, halved by max-pooling, with two more added as a residual after the first and
    the third. The mean over all places is what the head sees.

    >>> net = ResNet9(classes=10, input_shape=(3, 32, 32))
    >>> sum(parameter.numel() for parameter in net.parameters())
    6573130
    """

    def __init__(
        self,
        *,
        classes: int,
        input_shape: Shape | None,
        width: int = 64,
        dropout: float = 0.0,
    ) -> None:
        grid = image("resnet9", input_shape, least=8)
        super().__init__(input_shape=needed("resnet9", input_shape))
        self.bare = grid.bare
        self.stem = nn.Sequential(*convolved(grid.channels, width))
        self.body = nn.Sequential(
            _halved(width, 2 * width),
            _Residual(2 * width),
            _halved(2 * width, 4 * width),
            _halved(4 * width, 8 * width),
            _Residual(8 * width),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, inputs: Tensor) -> Tensor:
        hidden = self.body(self.stem(inputs.unsqueeze(1) if self.bare else inputs))
        features: Tensor = self.dropout(hidden.mean(dim=(2, 3)))
        return features


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*convolved(channels, channels))
        self.second = nn.Sequential(*convolved(channels, channels))

    def forward(self, inputs: Tensor) -> Tensor:
        added: Tensor = inputs + self.second(self.first(inputs))
        return added


def _halved(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(*convolved(before, after), nn.MaxPool2d(2))


class ResNet(Net):
    """Groups of `blocks` residual blocks; from the second group on, twice as wide and half as big.

    The paper's networks for CIFAR have three groups, a width of 16 and shortcuts without
    parameters (option A): 6n + 2 layers for n blocks a group. Convolutions start as He et al.
    (2015) say. The mean over all places is what the head sees.

    >>> net = ResNet(name="resnet20", blocks=(3, 3, 3), classes=10, input_shape=(3, 32, 32))
    >>> sum(parameter.numel() for parameter in net.parameters())
    269722
    """

    def __init__(
        self,
        *,
        name: str,
        blocks: tuple[int, ...],
        classes: int,
        input_shape: Shape | None,
        width: int = 16,
        projected: bool = False,
        dropout: float = 0.0,
    ) -> None:
        grid = image(name, input_shape)
        super().__init__(input_shape=needed(name, input_shape))
        self.bare = grid.bare
        self.stem = nn.Conv2d(grid.channels, width, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        before = width
        for group, count in enumerate(blocks):
            after = width * 2**group
            for place in range(count):
                stride = 2 if group > 0 and place == 0 else 1
                layers.append(Block(before, after, stride=stride, projected=projected))
                before = after
        self.body = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, inputs: Tensor) -> Tensor:
        hidden = inputs.unsqueeze(1) if self.bare else inputs
        hidden = self.body(F.relu(self.stem_norm(self.stem(hidden))))
        features: Tensor = self.dropout(hidden.mean(dim=(2, 3)))
        return features
