"""How much memory training several members at once takes, measured on a small batch of one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.models import classify
from flipguard.models.checkpointing import blocks_of

STATES = {"sgd": 1, "adamw": 2}  # numbers that an optimizer keeps for each weight
# Beside what is kept for the gradient: what convolutions work in, and what lies between pieces.
RESERVE = 1.3
# At least so much of it where it is computed again: fused members forget it in other pieces.
AGAIN = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes that one member needs."""

    weights: int  # with gradients and the optimizer's numbers
    sample: int  # kept for the gradient, for each sample of a batch

    def of(self, members: int, batch: int) -> int:
        """Bytes of a step of so many members, each with a batch."""
        return round(members * (self.weights + batch * self.sample) * RESERVE)

    def most(self, free: int, batch: int) -> int:
        """How many members fit."""
        return free // max(self.of(1, batch), 1)


def needs(
    member: nn.Module, example: Tensor, *, optimizer: str, half: bool, again: bool = False
) -> Needs:
    """What training one member needs, from one small batch on the CPU.

    With `again`, what is kept for the gradient is what lies between blocks, and one block.

    >>> found = needs(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.zeros(2, 8),
    ...     optimizer="sgd", half=False)
    >>> found.weights == (8 * 8 + 8) * 4 * 3, found.sample
    (True, 64)
    """
    twin = copy.deepcopy(member).cpu().train()
    batch = example.detach().cpu().to(next(p.dtype for p in twin.parameters()))
    own = {tensor.untyped_storage().data_ptr() for tensor in twin.parameters()}
    kept: dict[int, tuple[nn.Module | None, int]] = {}  # where it came up first, and its bytes
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
    return Needs(
        weights=weights * (2 + STATES[optimizer]),
        sample=round(activations * (0.5 if half else 1.0)),
    )
