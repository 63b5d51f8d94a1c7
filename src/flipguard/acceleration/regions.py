"""Compile the operations between convolutions: normalisation, addition and activation as one.

To compile a whole network fuses them as well, but takes minutes for a deep one. Its blocks repeat,
so compiling only these operations gives a few small programs at any depth. Convolutions are
computed by the library in both cases.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from flipguard.fusion.fused import Fused
from flipguard.fusion.layers import ManyBatchNorm, ManyConv
from flipguard.fusion.operation import NotFusable
from flipguard.fusion.packed import Packed, trace

Compiling = Literal["off", "parts", "whole"]
Between = Callable[..., Tensor]
Chain = tuple[Node, Node, Node | None, bool]
ADDITIONS = (operator.add, operator.iadd, torch.add)
# The most shapes that may be compiled; by default torch gives up after eight.
SHAPES = 64
_compiled: list[Between] = []


def compile_parts(module: nn.Module) -> None:
    """Compile the operations between a network's convolutions, for calls in its current mode.

    Like `torch.nn.Module.compile`, it only changes how the module is called. A network that cannot
    be traced is compiled as a whole. As with torch.fx in general, a network
    that adds to a value in place and then uses it under another name is not supported.
    """
    if isinstance(module, Fused) and len(module.parts()) > 1:
        for part in module.parts():
            compile_parts(part)
        return
    if isinstance(module, Packed):
        module.rewrite(in_regions)
        return
    try:
        if isinstance(module, Fused):
            raise NotFusable("a network that is mapped over its members")
        net = in_regions(GraphModule(module, trace(module), type(module).__name__))
    except NotFusable:
        module.compile()
        return
    call_instead(module, net)


def call_instead(module: nn.Module, net: nn.Module) -> None:
    """Make calls of a module in its current mode use another network of the same layers."""
    training = module.training
    plain: Callable[..., Any] = module._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return (net if module.training == training else plain)(*args, **kwargs)

    # The attribute that `Module.compile` sets; copies of the module do not have it.
    module._compiled_call_impl = call


def in_regions(net: GraphModule) -> GraphModule:
    """Return the network with chains of normalisation, addition and activation as regions."""
    graph = copy.deepcopy(net.graph)
    if any(node.op == "get_attr" for node in graph.nodes):
        raise NotFusable("tensors outside of a layer")
    modules = {str(n.target): net.get_submodule(n.target) for n in graph.nodes if _calls(n)}
    _refuse_hooks(modules)
    # A normalisation that is called twice counts its batches in the order of the calls, which a
    # region may change. Activations have no statistics, so they may be called twice.
    calls = Counter(id(modules[str(n.target)]) for n in graph.nodes if _calls(n))
    free = {
        path: layer
        for path, layer in modules.items()
        if calls[id(layer)] == 1 or type(layer) is nn.ReLU
    }
    for node in list(graph.nodes):
        chain = _chain(node, free)
        if chain is None:
            continue
        first, last, addition, activated = chain
        layer = modules[str(first.target)] if _calls(first) else None
        normal = _is_norm(layer)
        values: Any = first.args[0] if normal or layer is None else first
        if layer is not None and not normal:  # a convolution, whose bias moves into the region
            path = f"unbiased_{len(modules)}"
            modules[path] = _Unbiased(layer)
            first.target = path
        other = None
        if addition is not None:
            mine = first if layer is not None else addition.args[0]
            other = next((one for one in addition.args if one is not mine), mine)
        path = f"region_{len(modules)}"
        modules[path] = _Region(layer, activated=activated)
        with graph.inserting_before(last):
            region = graph.call_module(path, (values, other))
        last.replace_all_uses_with(region)
        for used in (last, addition, first if normal else None):
            if used is not None and not used.users and used in graph.nodes:
                graph.erase_node(used)
    graph.lint()
    return GraphModule(modules, graph, type(net).__name__)


def _refuse_hooks(modules: Mapping[str, nn.Module]) -> None:
    for path, module in modules.items():
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotFusable(f"hooks on `{path}`")  # a region would not call them
        if _is_norm(module) and getattr(module, "momentum", 0.0) is None:
            raise NotFusable(f"BatchNorm without a momentum at `{path}`")


def _chain(node: Node, modules: Mapping[str, nn.Module]) -> Chain | None:
    """Return a chain of operations: the first, the last, the addition, whether it has a ReLU."""
    layer = modules.get(str(node.target)) if _calls(node) else None
    starts = _is_norm(layer) or _has_bias(layer)
    if not starts and not _is_addition(node):
        return None
    last, addition = node, None if starts else node
    following = _only_user(last)
    if addition is None and following is not None and _is_addition(following):
        if following.args[0] is following.args[1]:
            return (node, node, None, False) if _is_norm(layer) else None
        last = addition = following
        following = _only_user(last)
    activated = following is not None and _is_relu(following, modules)
    if activated and following is not None:
        last = following
    long_enough = last is not node or _is_norm(layer)
    return (node, last, addition, activated) if long_enough else None


def _calls(node: Node) -> bool:
    return node.op == "call_module"


def _is_norm(layer: nn.Module | None) -> bool:
    return type(layer) in (nn.BatchNorm2d, ManyBatchNorm)


def _has_bias(layer: nn.Module | None) -> bool:
    return type(layer) in (nn.Conv2d, ManyConv) and layer is not None and layer.bias is not None


def _is_addition(node: Node) -> bool:
    two = len(node.args) == 2 and not node.kwargs
    tensors = two and all(isinstance(one, Node) for one in node.args)
    named = node.op == "call_function" and node.target in ADDITIONS
    if node.op == "call_method" and node.target == "add_":
        # A region does not work in place, so the changed value must have no other user.
        onto = node.args[0]
        named = isinstance(onto, Node) and len(onto.users) == 1
    return tensors and (named or (node.op == "call_method" and node.target == "add"))


def _is_relu(node: Node, modules: Mapping[str, nn.Module]) -> bool:
    if _calls(node):
        return type(modules.get(str(node.target))) is nn.ReLU
    functions = (F.relu, torch.relu)
    named = node.op == "call_function" and node.target in functions
    return named or (node.op == "call_method" and node.target in ("relu", "relu_"))


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


class _Unbiased(nn.Module):
    """A convolution without its bias, with the layer of another module."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._layer = (layer,)

    def forward(self, values: Tensor, **kwargs: Any) -> Tensor:
        layer = self._layer[0]
        found: Tensor
        if isinstance(layer, ManyConv):
            found = layer(values, biased=False, **kwargs)
        else:
            found = layer._conv_forward(values, layer.weight, None)
        return found


class _Region(nn.Module):
    """Normalisation or bias, addition and activation, with the layer of another module."""

    def __init__(self, layer: Any, *, activated: bool) -> None:
        super().__init__()
        self._layer, self._activated = (layer,), activated

    def forward(self, values: Tensor, other: Tensor | None) -> Tensor:
        layer = self._layer[0]
        call = _between()
        if not _is_norm(layer):
            bias = None if layer is None else layer.bias.flatten()
            return call(values, other, bias, self._activated)
        norm = layer.settings() if isinstance(layer, ManyBatchNorm) else _settings(layer)
        return call(values, other, None, self._activated, norm)


def _settings(norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    """Return the arguments of `F.batch_norm` for a layer, and count the batch."""
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return (*statistics, norm.training or norm.running_mean is None, norm.momentum, norm.eps)


def norm_add_relu(
    values: Tensor,
    other: Tensor | None,
    bias: Tensor | None,
    activated: bool,
    norm: tuple[Any, ...] | None = None,
) -> Tensor:
    """Compute a region: normalisation or bias, addition and activation."""
    if norm is not None:
        values = F.batch_norm(values, *norm)
    if bias is not None:
        values = values + bias.to(values.dtype).view(-1, *[1] * (values.dim() - 2))
    if other is not None:
        values = values + other
    return F.relu(values) if activated else values


def _between() -> Between:
    if not _compiled:
        limits = torch._dynamo.config
        name = "recompile_limit" if hasattr(limits, "recompile_limit") else "cache_size_limit"
        setattr(limits, name, max(SHAPES, getattr(limits, name)))
        _compiled.append(torch.compile(norm_add_relu, dynamic=False))
    return _compiled[0]
