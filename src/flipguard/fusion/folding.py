"""Batch normalisation as part of the convolution before it, for nets that only answer."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flipguard.fusion.packing import traced_member
from flipguard.fusion.place import Refusal


def folded(member: nn.Module, example: Tensor) -> nn.Module:
    """A copy in eval mode whose normalisations are folded into convolutions where they can be.

    A network that cannot be looked into is given as a plain copy.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    >>> [type(layer).__name__ for layer in folded(net, torch.zeros(2, 3, 5, 5)).children()]
    ['Conv2d', 'ReLU']
    """
    try:
        net = traced_member(member, example, training=False)
    except Refusal:
        return copy.deepcopy(member).eval()
    layers = dict(net.named_modules(remove_duplicate=False))
    calls = [str(node.target) for node in net.graph.nodes if node.op == "call_module"]
    for node in list(net.graph.nodes):
        if node.op != "call_module" or type(layers[node.target]) is not nn.BatchNorm2d:
            continue
        norm, before = layers[node.target], node.args[0]
        if before.op != "call_module" or len(before.users) != 1:
            continue
        convolution = layers[before.target]
        once = calls.count(before.target) == 1 and calls.count(node.target) == 1
        if type(convolution) is not nn.Conv2d or not once or norm.running_mean is None:
            continue
        # In float64, so that no more is rounded than the product itself.
        kind, laid = convolution.weight.dtype, convolution.weight
        exact = fuse_conv_bn_eval(copy.deepcopy(convolution).double(), copy.deepcopy(norm).double())
        exact = exact.to(kind)
        exact.weight.data = torch.empty_like(laid).copy_(exact.weight.data)  # as it lay in memory
        parent, _, name = before.target.rpartition(".")
        net.get_submodule(parent).add_module(name, exact)
        layers[before.target] = exact
        node.replace_all_uses_with(before)
        net.graph.erase_node(node)
    answering = GraphModule(net, net.graph, type(member).__name__)
    answering.recompile()
    return answering.eval()
