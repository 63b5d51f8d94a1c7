"""A network of few channels that works on several samples of a batch side by side.

Narrow convolutions leave most of a GPU idle. With several samples beside each other in the
channels they become wide ones of several groups, and all else stays as it is: sums, activations
and the statistics of a batch are those of the same numbers. It is exact but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from flipguard.fusion import rules, widened
from flipguard.fusion.known import FUNCTIONS, METHODS, norms_and_activates, rule_of
from flipguard.fusion.packing import SIZES, trace
from flipguard.fusion.place import Refusal
from flipguard.fusion.regions import call_instead, compile_parts, in_regions

DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
ADAPTIVE = (
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d,
)
# What ends in a row a sample is given the samples one by one.
ENDINGS = (rules.flatten, rules.reshaped, rules.reduced)


class Width(NamedTuple):
    """How many samples lie side by side, and how many of them are one group in each convolution."""

    copies: int = 1
    merges: tuple[int, ...] = ()  # in the order of the calls; 1 where nothing is said


def use_widened(module: nn.Module, width: Width, *, compiled: bool) -> None:
    """Widens a network for calls as it is now, and compiles it in parts if it is to be.

    Like `torch.nn.Module.compile`, it changes how the module is called and nothing else. Batches
    that cannot be put side by side, and calls in another mode, are computed as before. A network
    that cannot be widened is refused.
    """
    if width.copies == 1:
        if compiled:
            compile_parts(module)
        return
    net = widen(module, *width)
    if compiled:
        with suppress(Refusal):
            net = in_regions(net)
    axes = _axes(net)

    def fits(*args: Any, **kwargs: Any) -> bool:
        alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        return alone and args[0].dim() == axes and _divides(width.copies, len(args[0]))

    call_instead(module, net, fits)


def widen(module: nn.Module, copies: int, merges: Sequence[int] = ()) -> GraphModule:
    """The network in its present mode, for batches of a multiple of `copies` samples.

    It calls with the layers and parameters of the module, and gives what the module gives. As
    wherever torch.fx traces a network, one that changes a view of a value in place and then uses
    the value is not understood.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> images = torch.randn(6, 3, 8, 8)
    >>> torch.allclose(widen(net, copies=2)(images), net(images), atol=1e-6)
    True
    """
    for path, layer in module.named_modules():
        seen = (layer._forward_hooks, layer._forward_pre_hooks)
        if any(seen) or layer._backward_hooks or layer._backward_pre_hooks:
            raise Refusal(f"hooks on `{path}`")  # which would see other shapes, or nothing
    writing = _Writing(module, copies, merges)
    for node in trace(module).nodes:
        writing.write(node)
    if not writing.convolutions:
        raise Refusal("no convolution of images")
    writing.graph.lint()
    return GraphModule(writing.layers, writing.graph, type(module).__name__)


class _Writing:
    """The graph that is being written, a node of the network's own after the other.

    Values that follow from a convolution are long ones (`widened.py`) until something ends in a
    row a sample. How a value lies is changed where it is used, each time anew: what changes it in
    place in between is seen.
    """

    def __init__(self, module: nn.Module, copies: int, merges: Sequence[int]) -> None:
        self.graph, self.layers = Graph(), dict[str, nn.Module]()
        self.convolutions = 0
        self._module, self._copies, self._merges = module, copies, merges
        self._values: dict[Node, Node] = {}
        self._long: set[Node] = set()
        self._after: set[Node] = set()  # follows from long values, and is ordinary again

    def write(self, node: Node) -> None:
        """Writes what stands for a node."""
        if node.op == "get_attr":
            raise Refusal(f"the tensor `{node.target}` outside of a layer")
        given, layer = node.all_input_nodes, self._layer(node)
        if node.op == "output":
            self._values[node] = self.graph.node_copy(node, self._one_by_one)
        elif any(one in self._long for one in given):
            self._write_long(node, layer)
        elif type(layer) is nn.Conv2d and given[0] not in self._after:
            self._convolve(node, layer, self._put(widened.beside, self._values[given[0]]))
        else:
            self._copy(node, self._values.__getitem__)
            if any(one in self._after for one in given):
                self._after.add(node)

    def _write_long(self, node: Node, layer: nn.Module | None) -> None:
        """Writes what is done with long values."""
        rule: Any = _rule(node, layer)
        first = node.args[0] if node.args else None
        if type(layer) is nn.Conv2d:
            self._convolve(node, layer, self._value(node, first))
        elif rule in ENDINGS or _is_adaptive(node, layer) or _asks_for_a_size(node):
            self._copy(node, self._one_by_one)
            self._after.add(node)
        elif rule is rules.as_it_is:
            self._keep(node, self._value(node, first))
        elif rule is rules.over_places:
            _refuse_indices(node, layer)
            self._on_wide(node)
        elif rule is rules.picked:
            _refuse_some(node)
            self._on_wide(node)
        elif rule is rules.padding:
            self._pad(node)
        elif _is_for_each_number(rule, layer):
            self._copy(node, lambda one: self._value(node, one))
            self._long.add(node)
        elif rule is rules.random_everywhere or type(layer) in DROPPING:
            _refuse_masks(node, layer)
            self._keep(node, self._value(node, first))
        else:
            raise Refusal(f"the operation {_name(node, layer)}")

    def _convolve(self, node: Node, layer: nn.Conv2d, values: Node) -> None:
        if layer.groups != 1:
            raise Refusal(f"the grouped convolution `{node.target}`")
        if layer.padding_mode != "zeros":
            raise Refusal(f"padding by {layer.padding_mode} at `{node.target}`")
        place = self.convolutions
        merge = self._merges[place] if place < len(self._merges) else 1
        self.convolutions += 1
        path = f"wide_{place}"
        self.layers[path] = widened.WideConv(layer, self._copies, merge)
        self._keep(node, self.graph.call_module(path, (values,)))

    def _on_wide(self, node: Node) -> None:
        """The same, done on wide values, where rows and columns are those of one sample."""

        def turned(one: Node) -> Node:
            return self._put(widened.wide, self._value(node, one))

        self._copy(node, turned)
        self._keep(node, self._put(widened.long, self._values[node]))

    def _pad(self, node: Node) -> None:
        options = dict(zip(("input", "pad", "mode", "value"), node.args, strict=False))
        options |= node.kwargs
        pads: Any = options.pop("pad")
        values = self._value(node, options.pop("input"))
        fixed = isinstance(pads, list | tuple) and all(isinstance(one, int) for one in pads)
        if not fixed or len(pads) > 6:
            raise Refusal("`pad` over the samples, or by numbers that depend on the input")
        around, along = list(pads[:4]), list(pads[4:])
        if any(along) and options.get("mode", "constant") != "constant":
            raise Refusal("`pad` of channels by what is in them")
        if any(around):
            inside = self._put(widened.wide, values)
            padded = self.graph.call_function(F.pad, (inside, around), options)
            values = self._put(widened.long, padded)
        if any(along):
            values = self.graph.call_function(F.pad, (values, [0, 0, 0, 0, *along]), options)
        self._keep(node, values)

    def _keep(self, node: Node, values: Node) -> None:
        self._values[node] = values
        self._long.add(node)

    def _copy(self, node: Node, given: Callable[[Node], Node]) -> None:
        layer = self._layer(node)
        if layer is not None:
            self.layers[str(node.target)] = layer
        self._values[node] = self.graph.node_copy(node, given)

    def _put(self, target: Callable[[Tensor, int], Tensor], values: Node) -> Node:
        return self.graph.call_function(target, (values, self._copies))

    def _one_by_one(self, node: Node) -> Node:
        values = self._values[node]
        return self._put(widened.one_by_one, values) if node in self._long else values

    def _value(self, node: Node, given: Any) -> Node:
        """The long values that an operation is given, and nothing else."""
        if not isinstance(given, Node) or given not in self._long:
            name = _name(node, self._layer(node))
            raise Refusal(f"{name} of samples side by side and of something else")
        return self._values[given]

    def _layer(self, node: Node) -> nn.Module | None:
        called = node.op == "call_module"
        return self._module.get_submodule(str(node.target)) if called else None


def _rule(node: Node, layer: nn.Module | None) -> Any:
    """What is known of an operation, be it of members or of samples."""
    if layer is not None:
        return rule_of(layer)
    return METHODS.get(str(node.target)) if node.op == "call_method" else FUNCTIONS.get(node.target)


def _is_for_each_number(rule: Any, layer: nn.Module | None) -> bool:
    """Whether numbers are treated alone, or channel by channel.

    Sums and products too: a size of one, which would be repeated, is none where samples lie side
    by side.
    """
    if layer is not None and (type(layer) is nn.BatchNorm2d or norms_and_activates(layer)):
        return True
    return rule in (rules.same_everywhere, rules.arithmetic)


def _is_adaptive(node: Node, layer: nn.Module | None) -> bool:
    return type(layer) in ADAPTIVE or (layer is None and node.target in ADAPTIVE)


def _asks_for_a_size(node: Node) -> bool:
    asked = node.op == "call_method" and node.target in SIZES
    return asked or (node.target is getattr and node.args[1:] == ("shape",))


def _refuse_indices(node: Node, layer: nn.Module | None) -> None:
    if getattr(layer, "return_indices", False) or node.kwargs.get("return_indices"):
        raise Refusal(f"{_name(node, layer)} that says where it found something")


def _refuse_some(node: Node) -> None:
    """Refuses all but slices of rows and columns."""
    index: Any = node.args[1]
    whole = isinstance(index, tuple) and index[:2] == (slice(None), slice(None))
    if not whole or not all(isinstance(one, slice) for one in index):
        raise Refusal("`getitem` of something else than rows and columns")
    if len(node.all_input_nodes) > 1:
        raise Refusal("`getitem` at places that depend on the input")


def _refuse_masks(node: Node, layer: Any) -> None:
    """Refuses to drop: masks would be drawn in another order."""
    if layer is not None:
        drops = layer.training and layer.p > 0
    else:
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        drops = given.get("training", True) and given.get("p", 0.5) != 0
    if drops:
        raise Refusal("dropout between convolutions")


def _name(node: Node, layer: nn.Module | None) -> str:
    if layer is not None:
        return f"{type(layer).__name__} at `{node.target}`"
    target = node.target
    return f"`{target if isinstance(target, str) else getattr(target, '__name__', target)}`"


def _axes(net: GraphModule) -> int:
    """The number of axes of a batch: images may come without an axis for their only channel."""
    inputs = next(node for node in net.graph.nodes if node.op == "placeholder")
    names = [getattr(user.target, "__name__", user.target) for user in inputs.users]
    return 3 if names and all(name == "unsqueeze" for name in names) else 4


def _divides(copies: int, samples: int) -> bool:
    return samples > 0 and samples % copies == 0
