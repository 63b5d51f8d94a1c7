"""Grouped convolutions in the grouping that a device computes fastest.

Libraries have fast kernels for some numbers of channels a group and none for others, where they
take the groups one by one. Groups can be merged without changing the result: the kernels of q
neighbours become one kernel, q times as deep, with zeros where a group would see another's
channels. That is more arithmetic, and often less time. Only what is not finite reaches neighbours,
since zero times infinity is no number; a training that came to that is refused as a whole.
"""

from __future__ import annotations

import torch
from torch import Tensor


def merged(kernel: Tensor, groups: int, merge: int) -> Tensor:
    """Kernels [groups * out, in, ...] of neighbours as one: [groups * out, merge * in, ...].

    >>> merged(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1, 1), groups=4, merge=2).squeeze()
    tensor([[1., 0.],
            [0., 2.],
            [3., 0.],
            [0., 4.]])
    """
    if merge == 1:
        return kernel
    (out, inside), places = kernel.shape[:2], kernel.shape[2:]
    apart = kernel.reshape(groups // merge, merge, out // groups, 1, inside, *places)
    own = torch.eye(merge, dtype=torch.bool, device=kernel.device)
    own = own.view(1, merge, 1, merge, 1, *[1] * len(places))
    # Not a product: what is infinite in one group must not reach another.
    whole = torch.where(own, apart, torch.zeros((), dtype=kernel.dtype, device=kernel.device))
    whole = whole.reshape(out, merge * inside, *places)
    last = kernel.dim() == 4 and kernel.is_contiguous(memory_format=torch.channels_last)
    return whole.contiguous(memory_format=torch.channels_last) if last else whole
