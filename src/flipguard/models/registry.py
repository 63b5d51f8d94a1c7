"""The table of models by name, and the function that builds the model of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from flipguard.errors import InputError, any_of, listed, nearest
from flipguard.models.code import check_code
from flipguard.models.hugging_face import path_and_options, transformers_maker
from flipguard.models.libraries import (
    Maker,
    python_maker,
    specs_named,
    timm_maker,
    torchvision_maker,
)
from flipguard.models.nets import ConvNet1d, ConvNet2d, LeNet5, Perceptron, ResNet, ResNet9
from flipguard.models.shapes import Shape, check_class_count, check_shape
from flipguard.randomness import drawn_from
from flipguard.specs import ModelOption, Number, dropout_option, read_options, whole_option

Kind = Literal["any", "signal", "image", "text or image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model, or one library of models, that a spec can name."""

    name: str  # as written in a spec; the user replaces the words in capitals
    inputs: Kind
    sentence: str
    options: tuple[ModelOption, ...] = ()


BEFORE_HEAD = dropout_option("before the head")

NETS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "mlp": Perceptron,
        "mlp-bn": partial(Perceptron, norm=True),
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


def _perceptron(name: str, sentence: str) -> ModelRow:
    return ModelRow(
        name=name,
        inputs="any",
        sentence=sentence,
        options=(
            whole_option("hidden", 100, "Units of each hidden layer."),
            whole_option("depth", 2, "Hidden layers.", below=1000),
            dropout_option("after each hidden layer"),
        ),
    )


_ROWS = (
    _perceptron("mlp", "A multi-layer perceptron on the flattened input."),
    _perceptron("mlp-bn", "The same with batch normalisation in each hidden layer."),
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
        options=(dropout_option("where torchvision has it"),),
    ),
    ModelRow(
        name="hf:PATH",
        inputs="text or image",
        sentence="A classifier of Transformers, from a folder or a configuration file.",
        options=(dropout_option("before the head, or where the configuration has it"),),
    ),
    ModelRow(
        name="python:MODULE:FUNCTION",
        inputs="any",
        sentence="What a function returns that is called with `classes` and `input_shape`.",
    ),
)

MODELS: Mapping[str, ModelRow] = MappingProxyType({row.name: row for row in _ROWS})
"""All that a spec can name, by how it is written."""

# The libraries' rows, by their prefix before the colon.
LIBRARIES: Mapping[str, ModelRow] = MappingProxyType(
    {row.name.partition(":")[0]: row for row in _ROWS if ":" in row.name}
)


def build_model(
    spec: str,
    *,
    classes: int,
    input_shape: Shape | None,
    seed: int | None = None,
    pretrained: bool = False,
    allow_code: bool = False,
) -> nn.Module:
    """Build the model of a spec, on the CPU and in training mode.

    Args:
        spec: ``name`` or ``name:key=value,...`` for flipguard's own networks, ``timm:NAME`` or
            ``timm:NAME:dropout=0.1``, ``torchvision:NAME``, ``hf:PATH`` for a folder of
            Transformers, both with ``:dropout=0.1`` where the model has dropout, and
            ``python:package.module:function`` for anything else. All are in `MODELS`.
        classes: The number of classes.
        input_shape: The shape of one sample, without the batch axis; None for texts.
        seed: The initial weights depend on it only, and the random streams of torch, Python and
            numpy are restored. With None, the weights are drawn from those streams.
        pretrained: Whether to start from the weights in a folder of Transformers; a head for
            another number of classes is new. For models of texts: a model of images also needs the
            preprocessing of its weights, which a run has.
        allow_code: Whether ``python:`` may import and call its function, which runs code. Without
            it, code runs only if the environment sets FLIPGUARD_ALLOW_CODE.

    >>> model = build_model("mlp:hidden=64,dropout=0.1", classes=10, input_shape=(40,), seed=1)
    >>> model(torch.zeros(2, 40)).shape
    torch.Size([2, 10])
    """
    check_class_count(classes)
    shape = check_shape(input_shape)
    make = _maker(
        spec, classes=classes, input_shape=shape, pretrained=pretrained, allow_code=allow_code
    )
    # Another default device would draw other numbers.
    with drawn_from(seed), torch.device("cpu"):
        return make().train()


def check_spec(spec: str) -> tuple[str, str]:
    """Return a spec's model name and the rest, or raise an error if no such model exists.

    Unknown options raise an error too. Whether a library has the model is checked when it is built.

    >>> check_spec("mlp:hidden=64")
    ('mlp', 'hidden=64')
    """
    if not isinstance(spec, str):
        raise InputError(
            f"Expected `model` to be a text that names a model, but got {type(spec).__name__}; "
            "write for instance 'resnet20'."
        )
    name, colon, rest = spec.partition(":")
    if name in NETS:
        read_options(rest, MODELS[name].options, owner=name)
        return name, rest
    if name not in LIBRARIES or not colon:
        all_in = f"all are {', '.join(MODELS)}"
        meant = specs_named(name)
        hint = f"did you mean {any_of(meant)}? {all_in}." if meant else None
        raise InputError(
            "Expected `model` to name a net, with options after a colon, but got "
            f"{listed([spec])}; {hint or nearest(name, NETS, all_in=all_in)}"
        )
    if not rest:
        raise InputError(
            f"Expected `model` to be {LIBRARIES[name].name}, but got {listed([spec])}; say which "
            "model after the colon."
        )
    return name, rest


def _maker(
    spec: str, *, classes: int, input_shape: Shape | None, pretrained: bool, allow_code: bool
) -> Maker:
    name, rest = check_spec(spec)
    check_code(spec, allowed=allow_code)
    if pretrained and name != "hf":
        raise InputError(
            f"Expected `pretrained` to be False for '{name}', but got True; here, only a model of "
            "texts in a folder of Transformers (hf:PATH) can have its weights. Train a run with "
            "`pretrained`, which also gives a model of images its own preprocessing."
        )
    if name in NETS:
        options = read_options(rest, MODELS[name].options, owner=name)
        return partial(NETS[name], classes=classes, input_shape=input_shape, **options)
    if name == "hf":
        path, told = path_and_options(rest)
        return transformers_maker(
            path,
            classes=classes,
            input_shape=input_shape,
            pretrained=pretrained,
            dropout=_dropout(name, told, owner=f"hf:{path}"),
        )
    if name == "python":
        return python_maker(rest, classes=classes, input_shape=input_shape)
    model, _, text = rest.partition(":")
    if name == "torchvision":
        dropout = _dropout(name, text, owner=f"{name}:{model}")
        return torchvision_maker(model, classes=classes, input_shape=input_shape, dropout=dropout)
    options = read_options(text, LIBRARIES[name].options, owner=f"{name}:{model}")
    return timm_maker(model, classes=classes, input_shape=input_shape, options=options)


def _dropout(library: str, told: str, *, owner: str) -> Number | None:
    """Return the rate in the options of a library's model, or None for the library's own."""
    options = read_options(told, LIBRARIES[library].options, owner=owner)
    return options["dropout"] if told else None
