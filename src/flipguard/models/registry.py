"""The models that flipguard knows by name, as rows that a command can list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from torch import nn

from flipguard.models.images import ConvNet2d, LeNet5
from flipguard.models.options import ModelOption, dropout_option, whole_option
from flipguard.models.resnets import ResNet, ResNet9
from flipguard.models.vectors import ConvNet1d, Perceptron

Kind = Literal["any", "signal", "image", "text or image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model, or one library of models, that a spec can name."""

    name: str  # as it is written; what stands in capitals is for the user to fill in
    inputs: Kind
    sentence: str
    options: tuple[ModelOption, ...] = ()


BEFORE_HEAD = dropout_option("before the head")

NETS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "mlp": Perceptron,
        "conv1d": ConvNet1d,
        "conv2d": ConvNet2d,
        "lenet5": LeNet5,
        "resnet9": ResNet9,
        "resnet20": partial(ResNet, name="resnet20", blocks=(3, 3, 3)),
        "resnet32": partial(ResNet, name="resnet32", blocks=(5, 5, 5)),
        "resnet56": partial(ResNet, name="resnet56", blocks=(9, 9, 9)),
        "resnet18": partial(ResNet, name="resnet18", blocks=(2, 2, 2, 2), projected=True, width=64),
    }
)


def _cifar(depth: int) -> ModelRow:
    return ModelRow(
        name=f"resnet{depth}",
        inputs="image",
        sentence=f"ResNet-{depth} for CIFAR (He et al., 2016): shortcuts without parameters.",
        options=(whole_option("width", 16, "Channels of the first group."), BEFORE_HEAD),
    )


_ROWS = (
    ModelRow(
        name="mlp",
        inputs="any",
        sentence="A multi-layer perceptron on the flattened input.",
        options=(
            whole_option("hidden", 100, "Units of each hidden layer."),
            whole_option("depth", 2, "Hidden layers.", below=1000),
            dropout_option("after each hidden layer"),
        ),
    ),
    ModelRow(
        name="conv1d",
        inputs="signal",
        sentence="Three strided convolutions, the convolutional net of MNIST-1D.",
        options=(whole_option("width", 25, "Channels of each convolution."), BEFORE_HEAD),
    ),
    ModelRow(
        name="conv2d",
        inputs="image",
        sentence="Three convolutions with batch normalisation, and the mean over all places.",
        options=(whole_option("width", 32, "Channels of the first convolution."), BEFORE_HEAD),
    ),
    ModelRow(
        name="lenet5",
        inputs="image",
        sentence="LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling.",
        options=(BEFORE_HEAD,),
    ),
    ModelRow(
        name="resnet9",
        inputs="image",
        sentence="ResNet-9 (Page, 2018), wide and shallow, which halves images early.",
        options=(whole_option("width", 64, "Channels of the first convolution."), BEFORE_HEAD),
    ),
    _cifar(20),
    _cifar(32),
    _cifar(56),
    ModelRow(
        name="resnet18",
        inputs="image",
        sentence="ResNet-18 with a 3x3 stem, for small images: projected shortcuts.",
        options=(whole_option("width", 64, "Channels of the first group."), BEFORE_HEAD),
    ),
    ModelRow(
        name="timm:NAME",
        inputs="image",
        sentence="A model of timm, with the channels and the size of the inputs.",
        options=(BEFORE_HEAD,),
    ),
    ModelRow(
        name="torchvision:NAME",
        inputs="image",
        sentence="A classifier of torchvision, for three channels.",
    ),
    ModelRow(
        name="hf:PATH",
        inputs="text or image",
        sentence="A classifier of Transformers, from a folder or a configuration file.",
    ),
    ModelRow(
        name="python:MODULE:FUNCTION",
        inputs="any",
        sentence="What a function returns that is called with `classes` and `input_shape`.",
    ),
)

MODELS: Mapping[str, ModelRow] = MappingProxyType({row.name: row for row in _ROWS})
"""All that a spec can name, by how it is written."""

# The libraries' rows, by what stands before the colon.
LIBRARIES: Mapping[str, ModelRow] = MappingProxyType(
    {row.name.partition(":")[0]: row for row in _ROWS if ":" in row.name}
)
