"""Rules that translate an operation of a network into one for m members at once."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from flipguard.fusion import operation as lay
from flipguard.fusion.operation import (
    MAJOR,
    PACKED,
    SHARED,
    Layout,
    NotFusable,
    Operation,
    Rule,
    Value,
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


def argument(place: Operation, position: int, name: str, default: Any = None) -> Any:
    """Return an argument by its position or its name."""
    if len(place.node.args) > position:
        return place.node.args[position]
    return place.node.kwargs.get(name, default)


def same_everywhere(place: Operation) -> Value:
    """Elementwise operations: unchanged in every layout."""
    value = place.value(place.node.args[0])
    return _again(place, value.layout, value, *place.node.args[1:])


def random_everywhere(place: Operation) -> Value:
    """Dropout: each member draws separately, also on shared values."""
    value = place.value(place.node.args[0])
    value = place.major(value) if value.layout == SHARED else value
    return _again(place, value.layout, value, *place.node.args[1:])


def over_places(place: Operation) -> Value:
    """Pooling and other operations on each channel separately."""
    value = place.channelled(place.value(place.node.args[0]))
    if value.dims < 3:
        raise NotFusable(f"{place} of values without positions")
    return _again(place, value.layout, value, *place.node.args[1:])


def _again(place: Operation, layout: Layout, *args: Any) -> Value:
    """Add the same call with other arguments to the graph."""
    if any(isinstance(one, Node) for one in place.node.kwargs.values()):
        raise NotFusable(f"{place} with a tensor as an option")
    node = place.node
    if node.op == "call_function":
        return place.put(layout, node.target, *args, **node.kwargs)
    if node.op == "call_method":
        return place.method(layout, str(node.target), *args, **node.kwargs)
    return place.module(layout, *args, **node.kwargs)


def convolution(place: Operation) -> Value:
    """Convolutions: one group per member, or on shared values one group with all channels."""
    value = place.channelled(place.value(place.node.args[0]))
    member = place.node.graph.owning_module
    assert member is not None
    module = member.get_submodule(str(place.node.target))
    if value.layout == SHARED and module.groups == 1:
        return place.module(PACKED, value, shared=True)
    return place.module(PACKED, place.packed(value))


def on_packed(place: Operation) -> Value:
    """Layers that take packed values."""
    return place.module(PACKED, place.packed(place.value(place.node.args[0])))


def on_major(place: Operation) -> Value:
    """Layers that take values with members as the first axis."""
    return place.module(MAJOR, place.major(place.value(place.node.args[0])))


def arithmetic(place: Operation) -> Value:
    """Sums and products of two tensors, or of one and a number."""
    first, second = place.node.args[0], place.node.args[1]
    tensors = [place.value(one) for one in (first, second) if isinstance(one, Node)]
    if len(tensors) == 1:
        value = tensors[0]
        given = (value, second) if isinstance(first, Node) else (first, value)
        return _again(place, value.layout, *given)
    one, other = tensors
    if one.layout == other.layout == SHARED:
        return _again(place, SHARED, one, other)
    if one.dims != other.dims:
        raise NotFusable(f"{place} of tensors with {one.dims} and {other.dims} axes")
    alike = one.dims > 1 and one.shape[1] == other.shape[1]
    if alike and PACKED in (one.layout, other.layout):
        return _again(place, PACKED, place.packed(one), place.packed(other))
    return _again(place, MAJOR, place.major(one), place.major(other))


def flatten(place: Operation) -> Value:
    """Flattening; if it includes the channels, the result is each member's features."""
    value = place.value(place.node.args[0])
    start = _axis(argument(place, 1, "start_dim", 0), value)
    end = _axis(argument(place, 2, "end_dim", -1), value)
    if start < 1:
        raise NotFusable(f"{place} over the samples")
    if value.layout == SHARED:
        return place.put(SHARED, torch.flatten, value, start, end)
    if value.layout == PACKED and start > 1:
        return place.put(PACKED, torch.flatten, value, start, end)
    if value.layout == PACKED and end == value.dims - 1:
        return place.put(MAJOR, lay.flattened, value, place.count)
    return place.put(MAJOR, torch.flatten, place.major(value), start + 1, end + 1)


def reshaped(place: Operation) -> Value:
    """Views that flatten everything except the samples."""
    value = place.value(place.node.args[0])
    whole = torch.Size(value.shape[1:]).numel()
    if value.layout == SHARED or place.shape != (value.shape[0], whole):
        raise NotFusable(f"{place} to another shape than one row per sample")
    if value.layout == PACKED:
        return place.put(MAJOR, lay.flattened, value, place.count)
    return place.put(MAJOR, torch.flatten, value, 2)


def reduction_rule(place: Operation) -> Value:
    """Means, sums and maxima over positions or channels, never over samples."""
    value = place.value(place.node.args[0])
    given = argument(place, 1, "dim")
    if given is None:
        raise NotFusable(f"{place} over the samples")
    axes = [_axis(one, value) for one in (given if isinstance(given, list | tuple) else [given])]
    keep = argument(place, 2, "keepdim", False)
    if 0 in axes or {*place.node.kwargs} - {"dim", "keepdim"} or len(place.node.args) > 3:
        raise NotFusable(f"{place} over the samples, or with options")
    if value.layout == PACKED and 1 in axes:
        value = place.major(value)
    if value.layout == MAJOR:
        axes = [axis + 1 for axis in axes]
    name = place.node.target if isinstance(place.node.target, str) else place.node.target.__name__
    return place.method(value.layout, name, value, dim=axes, keepdim=keep)


def padding(place: Operation) -> Value:
    """Padding; if it includes the channels, those of each member."""
    value = place.value(place.node.args[0])
    pads = argument(place, 1, "pad")
    mode, fill = argument(place, 2, "mode", "constant"), argument(place, 3, "value", None)
    fill = 0.0 if fill is None else fill
    reaches = -(-len(pads) // 2)  # axes, from the last
    if reaches > value.dims - 1 or any(isinstance(one, Node) for one in pads):
        raise NotFusable(f"{place} over the samples, or by numbers that depend on the input")
    if value.layout == PACKED and reaches == value.dims - 1:
        return place.put(PACKED, lay.padded, value, place.count, list(pads), mode, fill)
    return place.put(value.layout, F.pad, value, list(pads), mode, fill)


def getitem_rule(place: Operation) -> Value:
    """Slices of all samples."""
    value = place.value(place.node.args[0])
    given = place.node.args[1]
    index = given if isinstance(given, tuple) else (given,)
    everything = slice(None)
    plain = all(isinstance(one, slice | int) and not isinstance(one, bool) for one in index)
    parts = [part for one in index if isinstance(one, slice) for part in (one.start, one.stop)]
    if not plain or index[0] != everything or any(isinstance(part, Node) for part in parts):
        raise NotFusable(f"{place} of some samples, or at indices that depend on the input")
    if value.layout == PACKED and index[:2] != (everything, everything)[: len(index)]:
        value = place.major(value)
    if value.layout == MAJOR:
        index = (everything, *index)
    return place.put(value.layout, operator.getitem, value, index)


def unsqueezed(place: Operation) -> Value:
    """A new axis of length one."""
    value = place.value(place.node.args[0])
    axis = argument(place, 1, "dim")
    axis = axis + value.dims + 1 if axis < 0 else axis
    if axis == 0:
        raise NotFusable(f"{place} before the samples")
    if value.layout == PACKED and axis == 1:
        value = place.major(value)
    if value.layout == MAJOR:
        axis += 1
    return place.put(value.layout, torch.unsqueeze, value, axis)


def concatenated(place: Operation) -> Value:
    """Concatenation along each member's channels or along positions."""
    given = place.node.args[0]
    if not isinstance(given, list | tuple):
        raise NotFusable(f"{place} of an argument that is not a list")
    values = [place.value(one) for one in given]
    axis = _axis(argument(place, 1, "dim", 0), values[0])
    if axis == 0:
        raise NotFusable(f"{place} of samples")
    if all(value.layout == SHARED for value in values):
        return place.put(SHARED, torch.cat, [value.node for value in values], axis)
    if all(value.dims > 1 for value in values):
        packed = [place.packed(value).node for value in values]
        if axis == 1:
            return place.put(PACKED, lay.concat_channels, packed, place.count)
        return place.put(PACKED, torch.cat, packed, axis)
    raise NotFusable(f"{place} of values without channels")


def as_it_is(place: Operation) -> Value:
    """Operations that only change the order in memory: left out."""
    value = place.value(place.node.args[0])
    return Value(value.node, value.layout, value.shape)


def _axis(given: Any, value: Value) -> int:
    if not isinstance(given, int):
        raise NotFusable("an axis that depends on the input")
    return given + value.dims if given < 0 else given


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
    """Return the rule of a layer; None for subclasses, which may do anything."""
    return on_packed if norms_and_activates(module) else LAYERS.get(type(module))


def norms_and_activates(module: nn.Module) -> bool:
    """Return whether a layer is timm's batch normalisation with a plain activation."""
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
    torch.mean: reduction_rule,
    torch.sum: reduction_rule,
    torch.amax: reduction_rule,
    torch.cat: concatenated,
    torch.unsqueeze: unsqueezed,
    torch.reshape: reshaped,
    operator.getitem: getitem_rule,
}
METHODS: Mapping[str, Rule] = {
    **dict.fromkeys(("relu", "relu_", "tanh", "sigmoid", "abs", "neg", "clamp"), same_everywhere),
    **dict.fromkeys(("add", "add_", "mul", "mul_", "sub", "div"), arithmetic),
    **dict.fromkeys(("mean", "sum", "amax"), reduction_rule),
    **dict.fromkeys(("view", "reshape"), reshaped),
    "flatten": flatten,
    "unsqueeze": unsqueezed,
    "contiguous": as_it_is,
}
