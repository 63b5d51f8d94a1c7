"""Models that are trained in the student's own loop, on its batches, and end with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flipguard.fusion import Fused
from flipguard.models import Inputs, classify

IN_TURN = "one by one"


class Companions(nn.Module):
    """m models that see one batch: called with it, they give logits [m, n, classes].

    They are one network if they could be fused, and else called in turn. Either way none knows of
    the others: a loss that is a sum over them gives each the gradient of its own.

    >>> together = Companions([nn.Linear(2, 3), nn.Linear(2, 3)])
    >>> together(torch.zeros(4, 2)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, members: Sequence[nn.Module] | Fused) -> None:
        super().__init__()
        self.members: Fused | nn.ModuleList
        if isinstance(members, Fused):
            self.members, self.count, self.way = members, members.count, members.way
        else:
            self.members, self.count, self.way = nn.ModuleList(members), len(members), IN_TURN

    def forward(self, inputs: Inputs) -> Tensor:
        if isinstance(self.members, Fused):
            found: Tensor = self.members(inputs)
            return found
        return torch.stack([classify(member, inputs) for member in self.members])

    def decays(self, parameter: nn.Parameter) -> bool:
        """Whether it is a matrix or more in a member; the vectors of fused ones have two axes."""
        if isinstance(self.members, Fused):
            return all(parameter is not vector for vector in self.members.decaying()[1])
        return parameter.dim() > 1
