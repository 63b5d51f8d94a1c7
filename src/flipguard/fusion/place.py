"""Where an operation of a member's graph stands, and how its replacement is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.fx import Graph, Node

from flipguard.fusion import layout as lay
from flipguard.fusion.layout import MAJOR, PACKED, SHARED, Layout

Shape: TypeAlias = tuple[int, ...]


class Refusal(Exception):
    """An operation that cannot be done for several members at once; its text says which."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the new graph: where it is made, how it lies, and a member's own shape."""

    node: Node
    layout: Layout
    shape: Shape

    @property
    def dims(self) -> int:
        """The number of axes of a member's value."""
        return len(self.shape)


@dataclass(slots=True, kw_only=True)
class Place:
    """One operation of a member's graph, and the graph that is being written."""

    node: Node
    graph: Graph
    count: int
    values: Mapping[Node, Value]
    shape: Shape  # of what a member's operation gives

    def value(self, given: Any) -> Value:
        """The value of an argument that must be a tensor."""
        if not isinstance(given, Node) or given not in self.values:
            raise Refusal(f"{self} of something else than a tensor")
        return self.values[given]

    def put(self, layout: Layout, target: Any, *args: Any, **kwargs: Any) -> Value:
        """Writes a call; values among the arguments are written as what makes them."""
        made = self.graph.call_function(target, _nodes(args), _nodes(kwargs))
        return Value(made, layout, self.shape)

    def method(self, layout: Layout, name: str, *args: Any, **kwargs: Any) -> Value:
        """Writes a call of a tensor's method."""
        made = self.graph.call_method(name, _nodes(args), _nodes(kwargs))
        return Value(made, layout, self.shape)

    def module(self, layout: Layout, *args: Any, **kwargs: Any) -> Value:
        """Writes a call of the layer that stands at the same path."""
        made = self.graph.call_module(str(self.node.target), _nodes(args), _nodes(kwargs))
        return Value(made, layout, self.shape)

    def major(self, value: Value) -> Value:
        """The value with members first."""
        if value.layout == MAJOR:
            return value
        turn = lay.to_major if value.layout == PACKED else lay.for_all
        made = self.graph.call_function(turn, (value.node, self.count))
        return Value(made, MAJOR, value.shape)

    def packed(self, value: Value) -> Value:
        """The value with members along the channels."""
        if value.layout == PACKED:
            return value
        if value.dims < 2:
            raise Refusal(f"{self} of values without channels")
        if value.layout == MAJOR:
            made = self.graph.call_function(lay.to_packed, (value.node,))
        else:
            made = self.graph.call_function(lay.repeated, (value.node, self.count))
        return Value(made, PACKED, value.shape)

    def channelled(self, value: Value) -> Value:
        """The value as it is if all share it, else packed."""
        return value if value.layout == SHARED else self.packed(value)

    def __str__(self) -> str:
        target = self.node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        return f"`{name}`"


Rule: TypeAlias = Callable[[Place], Value]


def _nodes(given: Any) -> Any:
    if isinstance(given, Value):
        return given.node
    if isinstance(given, tuple | list):
        return type(given)(_nodes(one) for one in given)
    if isinstance(given, dict):
        return {name: _nodes(one) for name, one in given.items()}
    return given
