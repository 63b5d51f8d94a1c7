"""Convert convolutional networks to one network of m groups, by rewriting a member's graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node, Tracer

from flipguard.fusion import layers
from flipguard.fusion.fused import Fused, Maker, stack_parameters
from flipguard.fusion.operation import (
    MAJOR,
    SHARED,
    Layout,
    NotFusable,
    Operation,
    Rule,
    Shape,
    Value,
)
from flipguard.fusion.rules import FUNCTIONS, METHODS, norms_and_activates, rule_of
from flipguard.models import Inputs

# Methods that give sizes of tensors; their results are not values, and only some views use them.
SIZES = ("size", "dim")


class Packed(Fused):
    """Members as groups of one convolutional network."""

    way = "packed"

    def __init__(self, members: Sequence[nn.Module], *, example: Tensor) -> None:
        # Flags such as `training` are read while a graph is traced, so each mode has its own.
        traced = {mode: traced_member(members[0], example, training=mode) for mode in (True, False)}
        makers: dict[str, Maker] = {}
        for mode in traced.values():
            makers |= _makers(mode, len(members))
        super().__init__(
            body=stack_parameters(members, makers),
            names=list(members[0].state_dict()),
            count=len(members),
            sample_dims=example.dim(),
        )
        # Not submodules: they call the layers of the body and have no tensors.
        self._nets = {
            (mode, layout): GraphModule(
                self.body, _rewritten(net, count=len(members), inputs=layout), "Packed"
            )
            for mode, net in traced.items()
            for layout in (SHARED, MAJOR)
        }
        self._rewritten: dict[tuple[bool, Layout], nn.Module] = {}
        self.train(members[0].training)

    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        which = self.training, SHARED if shared else MAJOR
        net = self._rewritten.get(which, self._nets[which])
        found: Tensor = net(inputs)
        return found

    def rewrite(self, rewrite: Callable[[GraphModule], nn.Module]) -> None:
        """Replace the networks of the current mode by rewritten ones with the same layers.

        Copies of the module do not use them.
        """
        for (mode, layout), net in self._nets.items():
            if mode == self.training:
                self._rewritten[mode, layout] = rewrite(net)

    def __deepcopy__(self, memo: dict[int, Any]) -> Packed:
        made = object.__new__(type(self))
        memo[id(self)] = made
        apart = ("_nets", "_rewritten")
        kept = {name: value for name, value in self.__dict__.items() if name not in apart}
        made.__dict__.update(copy.deepcopy(kept, memo))
        # Graphs are copied without layers, so that they call the layers of the copy.
        made._nets = {
            key: GraphModule(made.body, copy.deepcopy(net.graph), "Packed")
            for key, net in self._nets.items()
        }
        made._rewritten = {}
        return made


def traced_member(member: nn.Module, example: Tensor, *, training: bool) -> GraphModule:
    """Return a member's graph in one mode, with the shape of every value in it."""
    # A copy, because a forward pass changes the statistics of batch normalisation.
    own = copy.deepcopy(member).train(training)
    for name, module in own.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotFusable(f"hooks on `{name}`")
    graph = trace(own)
    # Layers are looked up in the copy, so that a layer with two names is found under both.
    net = GraphModule(own, graph, "Member")
    with torch.no_grad():
        _Shapes(net).run(example)
    return net


def trace(net: nn.Module) -> Graph:
    """Return the graph of a network in its current mode, with known layers as nodes."""
    if net._forward_hooks or net._forward_pre_hooks:  # such as preprocessing, which a graph lacks
        raise NotFusable("hooks on the network")
    try:
        return _Layers().trace(net)
    except Exception as problem:  # a network may raise anything when it gets no real values
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise NotFusable(f"a graph that depends on its input ({lines[0].rstrip('.')})") from problem


class _Layers(Tracer):
    """Traces a network, with layers of torch and known layers of timm as nodes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return rule_of(m) is not None or super().is_leaf_module(m, module_qualified_name)


class _Shapes(Interpreter):
    """Runs a graph and records the shape of every tensor in it."""

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        n.meta["shape"] = tuple(found.shape) if isinstance(found, Tensor) else None
        return found


def _makers(net: GraphModule, count: int) -> dict[str, Maker]:
    """Return the functions that make the layers of a graph, by path."""
    found: dict[str, Maker] = {}
    for node in net.graph.nodes:
        if node.op == "call_module":
            path = str(node.target)
            found[path] = _maker(net.get_submodule(path), path, count)
    return found


def _maker(module: nn.Module, path: str, count: int) -> Maker:
    kind = type(module)
    if rule_of(module) is None:
        raise NotFusable(f"the layer {kind.__name__} at `{path}`")
    if norms_and_activates(module):
        return partial(layers.ManyBatchNormAct, module)
    if kind in layers.CONVOLUTIONS:
        return partial(layers.ManyConv, module)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        if module.momentum is None and module.track_running_stats:
            raise NotFusable(f"BatchNorm without a momentum at `{path}`")
        return partial(layers.ManyBatchNorm, module)
    if isinstance(module, nn.GroupNorm):
        return partial(layers.ManyGroupNorm, module, count)
    if isinstance(module, nn.Linear):
        return partial(layers.ManyLinear, module)
    if isinstance(module, nn.LayerNorm):
        return partial(layers.ManyLayerNorm, module)
    return partial(copy.deepcopy, module)


def _rewritten(net: GraphModule, *, count: int, inputs: Layout) -> Graph:
    """Return the graph of m members for inputs in a layout."""
    graph, values = Graph(), dict[Node, Value]()
    seen_input = False
    for node in net.graph.nodes:
        shape: Shape | None = node.meta.get("shape")
        if node.op == "placeholder":
            if node.users:
                if seen_input or shape is None:
                    raise NotFusable("more than one input")
                seen_input = True
                values[node] = Value(graph.placeholder(str(node.target)), inputs, shape)
        elif node.op == "output":
            (result,) = node.args
            if not isinstance(result, Node) or result not in values:
                raise NotFusable("an output that is not a tensor")
            place = Operation(node=node, graph=graph, count=count, values=values, shape=())
            graph.output(place.major(values[result]).node)
        elif shape is None:
            _refuse_unless_size(node)
        else:
            place = Operation(node=node, graph=graph, count=count, values=values, shape=shape)
            values[node] = _rule(net, node, place)(place)
    graph.lint()
    return graph


def _rule(net: GraphModule, node: Node, place: Operation) -> Rule:
    found: Rule | None = None
    if node.op == "call_module":
        found = rule_of(net.get_submodule(str(node.target)))
        if found is not None and found.__name__ == "flatten":
            flat = cast(nn.Flatten, net.get_submodule(str(node.target)))
            node.args = (node.args[0], flat.start_dim, flat.end_dim)
    elif node.op == "call_function":
        found = FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        found = METHODS.get(str(node.target))
    elif node.op == "get_attr":
        raise NotFusable(f"the tensor `{node.target}` outside of a layer")
    if found is None:
        raise NotFusable(f"the operation {place}")
    return found


def _refuse_unless_size(node: Node) -> None:
    """Raise unless a node computes sizes; the rules of operations that use sizes check them."""
    is_size = node.op == "call_method" and node.target in SIZES
    is_shape = node.target is getattr and node.args[1:] == ("shape",)
    of_size = node.target in (operator.getitem, operator.floordiv, operator.mul)
    if not (is_size or is_shape or of_size):
        raise NotFusable(f"the operation `{node.target}`")
