"""One operation of a member's graph, and the layouts of m members' values in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node

Layout: TypeAlias = Literal["shared", "packed", "major"]
SHARED: Final[Layout] = "shared"
PACKED: Final[Layout] = "packed"
MAJOR: Final[Layout] = "major"

Shape: TypeAlias = tuple[int, ...]


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack the members' tensors along a new first axis, and keep their memory format.

    >>> kernels = [torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)] * 2
    >>> stacked(kernels)[0].is_contiguous(memory_format=torch.channels_last)
    True
    """
    first = tensors[0].detach()
    strided = first.dim() == 4 and not first.is_contiguous()
    if strided and first.is_contiguous(memory_format=torch.channels_last):
        return torch.stack([t.detach().permute(0, 2, 3, 1) for t in tensors]).permute(0, 1, 4, 2, 3)
    return torch.stack([t.detach() for t in tensors])


def to_packed(values: Tensor) -> Tensor:
    """Convert [m, n, channels, ...] to [n, m * channels, ...].

    >>> to_packed(torch.tensor([[[1, 2]], [[3, 4]]]))
    tensor([[1, 2, 3, 4]])
    """
    count, samples, channels, *image = values.shape
    # Channels are the last axis in memory, so that no convolution has to transpose them.
    moved = values.movedim(0, -1).movedim(1, -1)
    return moved.reshape(samples, *image, count * channels).movedim(-1, 1)


def to_major(values: Tensor, count: int) -> Tensor:
    """Convert [n, m * channels, ...] to [m, n, channels, ...].

    >>> to_major(torch.tensor([[1, 2, 3, 4]]), 2)
    tensor([[[1, 2]],
    <BLANKLINE>
            [[3, 4]]])
    """
    return split_members_axis(values, 1, count).transpose(0, 1)


def split_members_axis(values: Tensor, axis: int, count: int) -> Tensor:
    """Split an axis into two, the first of which is that of the members."""
    before, here, after = values.shape[:axis], values.shape[axis], values.shape[axis + 1 :]
    return values.view(*before, count, here // count, *after)


def for_all(values: Tensor, count: int) -> Tensor:
    """Return values that all members share, [n, ...], as [m, n, ...], without a copy."""
    return values.expand(count, *values.shape)


def repeated(values: Tensor, count: int) -> Tensor:
    """Return values that all members share, [n, channels, ...], packed: one copy per member."""
    return to_packed(for_all(values, count))


def flattened(values: Tensor, count: int) -> Tensor:
    """Return packed [n, m * channels, ...] as features per member: [m, n, channels * positions]."""
    return to_major(values, count).flatten(2)


def padded(
    values: Tensor, count: int, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    """Return packed values with each member's channels padded, as in ResNets' plain shortcuts.

    `pads` is that of `torch.nn.functional.pad`, and includes the channels.
    """
    places = values.dim() - 2
    inner, (before, after) = pads[: 2 * places], pads[2 * places : 2 * places + 2]
    if any(inner):
        values = F.pad(values, list(inner), mode, value)
    last = split_members_axis(values.movedim(1, -1), values.dim() - 1, count)
    return F.pad(last, (before, after), mode, value).flatten(-2).movedim(-1, 1)


def concat_channels(values: Sequence[Tensor], count: int) -> Tensor:
    """Concatenate packed values along each member's channels, as `torch.cat(..., dim=1)` does."""
    parts = [split_members_axis(one.movedim(1, -1), one.dim() - 1, count) for one in values]
    return torch.cat(parts, dim=-1).flatten(-2).movedim(-1, 1)


class NotFusable(Exception):
    """Raised when a network contains an operation that cannot be fused; the message names it."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the new graph: the node that makes it, its layout, and its shape per member."""

    node: Node
    layout: Layout
    shape: Shape

    @property
    def dims(self) -> int:
        """The number of axes of a member's value."""
        return len(self.shape)


@dataclass(slots=True, kw_only=True)
class Operation:
    """One operation of a member's graph, and the new graph that is being built."""

    node: Node
    graph: Graph
    count: int
    values: Mapping[Node, Value]
    shape: Shape  # of the operation's result for one member

    def value(self, given: Any) -> Value:
        """Return the value of an argument; raise if it is not a tensor."""
        if not isinstance(given, Node) or given not in self.values:
            raise NotFusable(f"{self} of an argument that is not a tensor")
        return self.values[given]

    def put(self, layout: Layout, target: Any, *args: Any, **kwargs: Any) -> Value:
        """Add a function call to the graph; values among the arguments stand for their nodes."""
        made = self.graph.call_function(target, _nodes(args), _nodes(kwargs))
        return Value(made, layout, self.shape)

    def method(self, layout: Layout, name: str, *args: Any, **kwargs: Any) -> Value:
        """Add a call of a tensor's method to the graph."""
        made = self.graph.call_method(name, _nodes(args), _nodes(kwargs))
        return Value(made, layout, self.shape)

    def module(self, layout: Layout, *args: Any, **kwargs: Any) -> Value:
        """Add a call of the layer with the same path to the graph."""
        made = self.graph.call_module(str(self.node.target), _nodes(args), _nodes(kwargs))
        return Value(made, layout, self.shape)

    def major(self, value: Value) -> Value:
        """Return the value with members as the first axis."""
        if value.layout == MAJOR:
            return value
        turn = to_major if value.layout == PACKED else for_all
        made = self.graph.call_function(turn, (value.node, self.count))
        return Value(made, MAJOR, value.shape)

    def packed(self, value: Value) -> Value:
        """Return the value with members along the channels."""
        if value.layout == PACKED:
            return value
        if value.dims < 2:
            raise NotFusable(f"{self} of values without channels")
        if value.layout == MAJOR:
            made = self.graph.call_function(to_packed, (value.node,))
        else:
            made = self.graph.call_function(repeated, (value.node, self.count))
        return Value(made, PACKED, value.shape)

    def channelled(self, value: Value) -> Value:
        """Return the value unchanged if all members share it, else packed."""
        return value if value.layout == SHARED else self.packed(value)

    def __str__(self) -> str:
        target = self.node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        return f"`{name}`"


Rule: TypeAlias = Callable[[Operation], Value]


def _nodes(given: Any) -> Any:
    if isinstance(given, Value):
        return given.node
    if isinstance(given, tuple | list):
        return type(given)(_nodes(one) for one in given)
    if isinstance(given, dict):
        return {name: _nodes(one) for name, one in given.items()}
    return given
