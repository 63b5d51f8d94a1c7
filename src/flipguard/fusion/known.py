"""The layers, functions and methods that can be packed, each with its rule; others are refused."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from flipguard.fusion.place import Rule
from flipguard.fusion.rules import (
    arithmetic,
    as_it_is,
    concatenated,
    convolution,
    flatten,
    on_major,
    on_packed,
    over_places,
    padding,
    picked,
    random_everywhere,
    reduced,
    reshaped,
    same_everywhere,
    unsqueezed,
)

ELEMENTWISE_LAYERS: Sequence[type[nn.Module]] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)
POOLING_LAYERS: Sequence[type[nn.Module]] = (
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.ZeroPad2d,
    nn.ReflectionPad2d,
    nn.ReplicationPad2d,
)
LAYERS: Mapping[type[nn.Module], Rule] = {
    **dict.fromkeys(ELEMENTWISE_LAYERS, same_everywhere),
    **dict.fromkeys(POOLING_LAYERS, over_places),
    nn.Dropout: random_everywhere,
    nn.Dropout1d: on_packed,
    nn.Dropout2d: on_packed,
    nn.Flatten: flatten,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.BatchNorm1d: on_packed,
    nn.BatchNorm2d: on_packed,
    nn.GroupNorm: on_packed,
    nn.Linear: on_major,
    nn.LayerNorm: on_major,
}


def rule_of(module: nn.Module) -> Rule | None:
    """The rule of a layer; subclasses may do anything, and have none."""
    return on_packed if norms_and_activates(module) else LAYERS.get(type(module))


def norms_and_activates(module: nn.Module) -> bool:
    """Whether this is timm's layer of batch normalisation and a plain activation."""
    if type(module).__name__ != "BatchNormAct2d" or not isinstance(module, nn.BatchNorm2d):
        return False
    plain = type(getattr(module, "act", None)) in ELEMENTWISE_LAYERS
    return plain and type(getattr(module, "drop", None)) is nn.Identity


FUNCTIONS: Mapping[Any, Rule] = {
    **dict.fromkeys(
        (
            F.relu,
            F.relu6,
            F.elu,
            F.gelu,
            F.silu,
            F.mish,
            F.hardswish,
            F.hardsigmoid,
            F.hardtanh,
            F.leaky_relu,
            F.softplus,
            torch.relu,
            torch.tanh,
            torch.sigmoid,
            torch.neg,
            torch.abs,
            torch.clamp,
            operator.neg,
        ),
        same_everywhere,
    ),
    **dict.fromkeys(
        (
            F.max_pool1d,
            F.max_pool2d,
            F.avg_pool1d,
            F.avg_pool2d,
            F.adaptive_avg_pool1d,
            F.adaptive_avg_pool2d,
            F.adaptive_max_pool2d,
        ),
        over_places,
    ),
    **dict.fromkeys(
        (
            operator.add,
            operator.iadd,
            operator.sub,
            operator.mul,
            operator.imul,
            operator.truediv,
            torch.add,
            torch.mul,
            torch.sub,
        ),
        arithmetic,
    ),
    F.dropout: random_everywhere,
    F.pad: padding,
    torch.flatten: flatten,
    torch.mean: reduced,
    torch.sum: reduced,
    torch.amax: reduced,
    torch.cat: concatenated,
    torch.unsqueeze: unsqueezed,
    torch.reshape: reshaped,
    operator.getitem: picked,
}
METHODS: Mapping[str, Rule] = {
    **dict.fromkeys(("relu", "relu_", "tanh", "sigmoid", "abs", "neg", "clamp"), same_everywhere),
    **dict.fromkeys(("add", "add_", "mul", "mul_", "sub", "div"), arithmetic),
    **dict.fromkeys(("mean", "sum", "amax"), reduced),
    **dict.fromkeys(("view", "reshape"), reshaped),
    "flatten": flatten,
    "unsqueeze": unsqueezed,
    "contiguous": as_it_is,
}
