"""Small networks for images: a plain convolutional one, and LeNet-5."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.models.nets import Net, convolved
from flipguard.models.shapes import Shape, image, needed

# LeCun et al. put their digits of 28 pixels into images of 32, whose corners the kernels reach.
LENET_SIZE = 32


class ConvNet2d(Net):
    """Three 3x3 convolutions with batch normalisation, of 1, 2 and 4 times `width` channels.

    The first two are halved by max-pooling; the mean over all places is what the head sees.

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
    """LeNet-5 (LeCun et al., 1998) as it is used now: ReLU, max-pooling, full connections.

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
