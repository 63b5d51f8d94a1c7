"""Estimate the memory of several members, and recompute activations of fused members to save it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import checkpoint

from flipguard.errors import InputError
from flipguard.fusion.fused import Fused
from flipguard.fusion.layers import ManyBatchNorm, ManyConv, ManyLinear
from flipguard.fusion.packed import Packed
from flipguard.models import classify
from flipguard.models.checkpointing import blocks_of

STATES = {"sgd": 1, "adamw": 2}  # numbers that an optimizer keeps for each weight
# Factor for workspaces of convolutions and fragmentation, in addition to kept activations.
RESERVE = 1.3
# The least share of activations that is kept with recomputation: fused members have other segments.
AGAIN = 0.3

# The least number of layers with weights in a segment: with one, nothing would be saved.
LAYERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The bytes that one member needs."""

    weights: int  # with gradients and the optimizer's numbers
    sample: int  # activations kept for the gradient, per sample of a batch

    def of(self, members: int, batch: int) -> int:
        """Return the bytes of a step of several members, each with a batch of this size."""
        return round(members * (self.weights + batch * self.sample) * RESERVE)

    def most(self, free: int, batch: int) -> int:
        """Return how many members fit into free bytes."""
        return free // max(self.of(1, batch), 1)


def memory_need(
    member: nn.Module, example: Tensor, *, optimizer: str, half: bool, again: bool = False
) -> MemoryNeed:
    """Return the memory that training one member needs, measured on one small batch on the CPU.

    With `again`, only the values between blocks and the activations of one block are kept.

    >>> found = memory_need(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.zeros(2, 8),
    ...     optimizer="sgd", half=False)
    >>> found.weights == (8 * 8 + 8) * 4 * 3, found.sample
    (True, 64)
    """
    twin = copy.deepcopy(member).cpu().train()
    batch = example.detach().cpu().to(next(p.dtype for p in twin.parameters()))
    own = {tensor.untyped_storage().data_ptr() for tensor in twin.parameters()}
    kept: dict[int, tuple[nn.Module | None, int]] = {}  # the first block of a storage, its bytes
    under_way: list[nn.Module] = []
    between = 0  # bytes that enter blocks

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            block = under_way[-1] if under_way else None
            kept.setdefault(storage.data_ptr(), (block, storage.nbytes()))
        return tensor

    def enter(block: nn.Module, given: tuple[Any, ...]) -> None:
        nonlocal between
        under_way.append(block)
        between += sum(one.nbytes for one in given if isinstance(one, Tensor))

    for block in blocks_of(twin) if again else ():
        block.register_forward_pre_hook(enter)
        block.register_forward_hook(lambda *_: (under_way.pop(), None)[1])
    held: list[Tensor] = []  # until all are counted, so that no memory is used twice
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held.append(classify(twin, batch))
    whole = sum(size for _, size in kept.values())
    activations = whole / len(batch)
    if again:
        inside: dict[nn.Module | None, int] = {}
        for where, size in kept.values():
            inside[where] = inside.get(where, 0) + size
        outside = inside.pop(None, 0)
        left = between + outside + max(inside.values(), default=0)
        activations = min(max(left, AGAIN * whole), whole) / len(batch)
    weights = sum(p.numel() * p.element_size() for p in twin.parameters())
    return MemoryNeed(
        weights=weights * (2 + STATES[optimizer]),
        sample=round(activations * (0.5 if half else 1.0)),
    )


def checkpoint_segments(fused: Fused) -> None:
    """Make fused members recompute their activations for the gradient, instead of keeping them.

    Only the values between segments, such as the blocks of a residual network, are kept.
    """
    for part in fused.parts():
        if not isinstance(part, Packed):
            raise InputError(
                "Expected members that are packed as groups, which can recompute activations, but "
                f"got {part.way} ones; leave `machine.checkpointing` out, or use "
                "`machine.fuse=off`."
            )
        part.rewrite(CheckpointedNet)


class CheckpointedNet(nn.Module):
    """A network as a chain of segments, with the layers of another module."""

    def __init__(self, net: GraphModule) -> None:
        super().__init__()
        self._segments = (tuple(_segments(net)),)

    def forward(self, inputs: Tensor) -> Tensor:
        value = inputs
        for segment in self._segments[0]:
            again = partial(_contexts, segment)
            value = checkpoint(segment, value, use_reentrant=False, context_fn=again)
        return value


def _segments(net: GraphModule) -> Iterator[GraphModule]:
    """Yield segments of a network, each of which takes one value from the one before it."""
    graph = copy.deepcopy(net.graph)
    for node in reversed(list(graph.nodes)):  # remove nodes whose results are not used
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)
    nodes = [node for node in graph.nodes if node.op != "output"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    piece: list[Node] = []
    enters = nodes[0]  # the inputs
    for place, node in enumerate(nodes[1:], start=1):
        piece.append(node)
        later = {user for user in node.users if user is not output}
        ends = node is output.args[0] or place == len(nodes) - 1
        if ends or (later and _heavy(net, piece) >= LAYERS and _alone(nodes, place)):
            yield _piece(net, enters, piece)
            piece, enters = [], node


def _heavy(net: GraphModule, piece: Sequence[Node]) -> int:
    layers = [net.get_submodule(str(n.target)) for n in piece if n.op == "call_module"]
    return sum(isinstance(layer, ManyConv | ManyLinear) for layer in layers)


def _alone(nodes: Sequence[Node], place: int) -> bool:
    """Return whether no node before this one is used after it."""
    after = set(nodes[place + 1 :])
    return not any(after & set(node.users) for node in nodes[:place])


def _piece(net: GraphModule, enters: Node, nodes: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copies = {enters: graph.placeholder("value")}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda one: copies[one])
    graph.output(copies[nodes[-1]])
    layers = {str(n.target): net.get_submodule(str(n.target)) for n in nodes if _is_layer(n)}
    return GraphModule(layers, graph, "Segment")


def _is_layer(node: Node) -> bool:
    return node.op == "call_module"


def _contexts(
    segment: GraphModule,
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _statistics_kept(segment)


@contextmanager
def _statistics_kept(segment: GraphModule) -> Iterator[None]:
    """Context manager: batch normalisation does not count the batch, which was counted before."""
    norms = [layer for layer in segment.modules() if isinstance(layer, ManyBatchNorm)]
    for norm in norms:
        norm.again = True
    try:
        yield
    finally:
        for norm in norms:
            norm.again = False
