"""Less memory for fused members: activations are computed again, segment by segment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import checkpoint

from flipguard.errors import InputError
from flipguard.fusion.base import Fused
from flipguard.fusion.layers import ManyBatchNorm, ManyConv, ManyLinear
from flipguard.fusion.packing import Packed

# Layers with weights in a segment, at least: of one alone, what is kept is all there is.
LAYERS = 2


def checkpoint_segments(fused: Fused) -> None:
    """Has fused members compute their activations again for the gradient, instead of keeping them.

    What is kept are the values between segments, such as the blocks of a residual network.
    """
    for part in fused.parts():
        if not isinstance(part, Packed):
            raise InputError(
                "Expected members that are packed as groups to compute activations again, but got "
                f"{part.way} ones; leave `machine.checkpointing` out, or use `--fuse off`."
            )
        part.rewrite(InSegments)


class InSegments(nn.Module):
    """A network as a chain of segments; the layers are another's."""

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
    """The network in pieces, each of which has one value from the one before it."""
    graph = copy.deepcopy(net.graph)
    for node in reversed(list(graph.nodes)):  # what is computed for nobody
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
    """Whether nothing before a node is used after it, but the node itself."""
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
    """Batch normalisation as in training, which does not count the same batch again."""
    norms = [layer for layer in segment.modules() if isinstance(layer, ManyBatchNorm)]
    for norm in norms:
        norm.again = True
    try:
        yield
    finally:
        for norm in norms:
            norm.again = False
