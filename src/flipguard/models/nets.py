"""flipguard's own networks: for vectors, signals and small images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.models.shapes import Shape, image, needed, signal

# With strides of 2, signals of this length keep at least one position.
SHORTEST_SIGNAL = 3

# LeCun et al. pad digits of 28 pixels to images of 32, so that kernels reach their corners.
LENET_SIZE = 32


class Net(nn.Module, ABC):
    """A classifier of features [N, D] by one linear layer, `head`."""

    head: nn.Linear

    def __init__(self, *, input_shape: Shape) -> None:
        super().__init__()
        self.input_shape = input_shape

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """Return the input of the head, [N, D]; in training, after dropout."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


def convolved(before: int, after: int) -> tuple[nn.Module, ...]:
    """Return a 3x3 convolution that keeps the size, batch normalisation and ReLU."""
    # No bias, because batch normalisation has one.
    return nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()


class Perceptron(Net):
    """A multi-layer perceptron: `depth` hidden layers of `hidden` units, ReLU, dropout after each.

    With `norm`, batch normalisation comes before each ReLU. Inputs of any shape are flattened.

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
        norm: bool = False,
    ) -> None:
        super().__init__(input_shape=needed("mlp", input_shape))
        widths = [math.prod(self.input_shape), *[hidden] * depth]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after)]
            if norm:
                layers += [nn.BatchNorm1d(after)]
            layers += [nn.ReLU(), nn.Dropout(dropout)]
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
    """Return the number of positions after the third convolution."""
    length = (length + 2 - 5) // 2 + 1
    for _ in range(2):
        length = (length + 2 - 3) // 2 + 1
    return length


class ConvNet2d(Net):
    """Three 3x3 convolutions with batch normalisation, of 1, 2 and 4 times `width` channels.

    The first two are halved by max-pooling. The head gets the mean over all positions.

    >>> net = ConvNet2d(classes=10, input_shape=(28, 28))
    >>> sum(parameter.numel() for parameter in net.parameters())
    94186
    """

    def __init__(
        self,
        *,
        classes: int,
        input_shape: Shape | None,
        width: int = 32,
        dropout: float = 0.0,
    ) -> None:
        grid = image("conv2d", input_shape, least=4)
        super().__init__(input_shape=needed("conv2d", input_shape))
        self.bare = grid.bare
        self.body = nn.Sequential(
            *convolved(grid.channels, width),
            nn.MaxPool2d(2),
            *convolved(width, 2 * width),
            nn.MaxPool2d(2),
            *convolved(2 * width, 4 * width),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * width, classes)

    def features(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs.unsqueeze(1) if self.bare else inputs)
        features: Tensor = self.dropout(hidden.mean(dim=(2, 3)))
        return features


class LeNet5(Net):
    """LeNet-5 (LeCun et al., 1998) in its current form: ReLU, max-pooling, full connections.

    With 10 classes it has 61,706 parameters on one channel of up to 32 x 32; smaller images are
    padded with zeros to 32, as the paper does.

    >>> net = LeNet5(classes=10, input_shape=(1, 28, 28))
    >>> sum(parameter.numel() for parameter in net.parameters())
    61706
    """

    def __init__(self, *, classes: int, input_shape: Shape | None, dropout: float = 0.0) -> None:
        grid = image("lenet5", input_shape)
        super().__init__(input_shape=needed("lenet5", input_shape))
        self.bare = grid.bare
        height, width = (max(LENET_SIZE, size) for size in grid.sizes)
        lacking_rows, lacking_columns = height - grid.sizes[0], width - grid.sizes[1]
        self.margins = (
            lacking_columns // 2,
            lacking_columns - lacking_columns // 2,
            lacking_rows // 2,
            lacking_rows - lacking_rows // 2,
        )
        self.first = nn.Conv2d(grid.channels, 6, 5)
        self.second = nn.Conv2d(6, 16, 5)
        places = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.third = nn.Linear(16 * places, 120)
        self.fourth = nn.Linear(120, 84)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(84, classes)

    def features(self, inputs: Tensor) -> Tensor:
        hidden = F.pad(inputs.unsqueeze(1) if self.bare else inputs, self.margins)
        hidden = F.max_pool2d(F.relu(self.first(hidden)), 2)
        hidden = F.max_pool2d(F.relu(self.second(hidden)), 2)
        hidden = F.relu(self.third(hidden.flatten(1)))
        features: Tensor = self.dropout(F.relu(self.fourth(hidden)))
        return features


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to their input.

    If the shape changes, the input is either projected by a 1x1 convolution (the paper's option B),
    or every `stride`-th position is taken and the new channels are zero (option A, which has no
    parameters).
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
    the third. The head gets the mean over all positions.

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
    parameters (option A): 6n + 2 layers for n blocks per group. Convolutions are initialised as in
    He et al. (2015). The head gets the mean over all positions.

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
                layers.append(ResidualBlock(before, after, stride=stride, projected=projected))
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
