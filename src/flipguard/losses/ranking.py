"""Which classes have the highest logits, found fast where there are very many."""

from __future__ import annotations

import torch

from flipguard.losses.inputs import Labels, Logits

# With fewer classes for each one that is wanted, groups only add work.
FEW = 256
SIZE = 32  # classes in a group


@torch.no_grad()
def highest(logits: Logits, k: int) -> Labels:
    """The k classes of the highest logits, in no order; of equal ones, any.

    >>> import torch
    >>> highest(torch.tensor([[0.5, 3.0, -1.0, 2.0]]), 2).sort().values
    tensor([[1, 3]])
    """
    classes = logits.shape[-1]
    if classes < FEW * k:
        return logits.topk(k, -1, sorted=False).indices
    # Only k groups of classes can hold the k highest: those whose own highest is highest. A group
    # is every so-manieth class, since neighbours in memory are read best by neighbouring threads.
    groups = classes // SIZE
    grouped = logits[..., : groups * SIZE].view(*logits.shape[:-1], SIZE, groups)
    best = grouped.amax(-2).topk(k, -1, sorted=False).indices
    steps = torch.arange(SIZE, device=logits.device) * groups
    places = (best.unsqueeze(-1) + steps).flatten(-2)
    if groups * SIZE < classes:
        rest = torch.arange(groups * SIZE, classes, device=logits.device)
        places = torch.cat([places, rest.expand(*places.shape[:-1], len(rest))], -1)
    chosen = logits.gather(-1, places).topk(k, -1, sorted=False).indices
    return places.gather(-1, chosen)
