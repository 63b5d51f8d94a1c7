"""Models from the short texts that name them."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from flipguard.errors import InputError, listed, nearest
from flipguard.models.hugging import transformers_maker
from flipguard.models.libraries import (
    Maker,
    other_scale,
    python_maker,
    timm_maker,
    torchvision_maker,
)
from flipguard.models.options import read_options
from flipguard.models.randomness import drawn_from
from flipguard.models.registry import LIBRARIES, MODELS, NETS
from flipguard.models.shapes import Shape, check_classes, check_shape


def build_model(
    spec: str,
    *,
    classes: int,
    input_shape: Shape | None,
    seed: int | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """The model that a spec names, on the CPU, in training mode.

    Args:
        spec: ``name`` or ``name:key=value,...`` for flipguard's own networks, ``timm:NAME`` or
            ``timm:NAME:dropout=0.1``, ``torchvision:NAME``, ``hf:PATH`` for a folder of
            Transformers, ``python:package.module:function`` for anything else. All are in `MODELS`.
        classes: The number of classes.
        input_shape: The shape of one sample, without the batch axis; None for texts.
        seed: The first weights depend on it alone, and torch's, Python's and numpy's streams are
            afterwards where they were. With None the weights come from those streams.
        pretrained: Whether to start from the weights in a folder of Transformers, under a new
            head. Only for models of texts: what published image models expect of their inputs is
            not known here.

    >>> model = build_model("mlp:hidden=64,dropout=0.1", classes=10, input_shape=(40,), seed=1)
    >>> model(torch.zeros(2, 40)).shape
    torch.Size([2, 10])
    """
    check_classes(classes)
    shape = check_shape(input_shape)
    make = _maker(spec, classes=classes, input_shape=shape, pretrained=pretrained)
    # Another default device would draw other numbers than the CPU.
    with drawn_from(seed), torch.device("cpu"):
        return make().train()


def check_spec(spec: str) -> tuple[str, str]:
    """Refuses what names no model or gives it options that it has not; its name, and the rest.

    Whether a library has the model is seen when it is built.

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
        raise InputError(
            "Expected `model` to name a net, with options after a colon, but got "
            f"{listed([spec])}; " + nearest(name, NETS, all_in=f"all are {', '.join(MODELS)}")
        )
    if not rest:
        raise InputError(
            f"Expected `model` to be {LIBRARIES[name].name}, but got {listed([spec])}; say which "
            "model after the colon."
        )
    return name, rest


def _maker(spec: str, *, classes: int, input_shape: Shape | None, pretrained: bool) -> Maker:
    name, rest = check_spec(spec)
    if pretrained and name in ("timm", "torchvision"):
        raise other_scale(spec)
    if pretrained and name != "hf":
        raise InputError(
            f"Expected `pretrained` to be False for '{name}', but got True; only a text model "
            "in a Transformers folder (hf:PATH) can start from pretrained weights."
        )
    if name in NETS:
        options = read_options(rest, MODELS[name].options, owner=name)
        return partial(NETS[name], classes=classes, input_shape=input_shape, **options)
    if name == "hf":
        return transformers_maker(
            rest, classes=classes, input_shape=input_shape, pretrained=pretrained
        )
    if name == "python":
        return python_maker(rest, classes=classes, input_shape=input_shape)
    model, _, told = rest.partition(":")
    options = read_options(told, LIBRARIES[name].options, owner=f"{name}:{model}")
    if name == "torchvision":
        return torchvision_maker(model, classes=classes, input_shape=input_shape)
    return timm_maker(model, classes=classes, input_shape=input_shape, options=options)
