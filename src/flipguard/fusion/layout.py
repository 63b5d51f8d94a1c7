"""How the values of m members lie in one tensor, and how they get from one way to the other.

A member's value [n, ...] lies in one of three ways:

- SHARED ``[n, ...]``: the same for all members, such as a batch that all of them see;
- PACKED ``[n, m * channels, ...]``: member after member along the channels, as grouped
  convolutions take it; images keep channels last in memory;
- MAJOR ``[m, n, ...]``: one member after the other, as batched matrix products take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Layout: TypeAlias = Literal["shared", "packed", "major"]
SHARED: Final[Layout] = "shared"
PACKED: Final[Layout] = "packed"
MAJOR: Final[Layout] = "major"


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Members' tensors as one [m, ...], each of which lies in memory as it did.

    >>> kernels = [torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)] * 2
    >>> stacked(kernels)[0].is_contiguous(memory_format=torch.channels_last)
    True
    """
    first = tensors[0].detach()
    last = first.dim() == 4 and not first.is_contiguous()
    if last and first.is_contiguous(memory_format=torch.channels_last):
        return torch.stack([t.detach().permute(0, 2, 3, 1) for t in tensors]).permute(0, 1, 4, 2, 3)
    return torch.stack([t.detach() for t in tensors])


def to_packed(values: Tensor) -> Tensor:
    """From [m, n, channels, ...] to [n, m * channels, ...].

    >>> to_packed(torch.tensor([[[1, 2]], [[3, 4]]]))
    tensor([[1, 2, 3, 4]])
    """
    count, samples, channels, *places = values.shape
    # Channels are the last axis in memory, so that no convolution has to turn them round.
    last = values.movedim(0, -1).movedim(1, -1)
    return last.reshape(samples, *places, count * channels).movedim(-1, 1)


def to_major(values: Tensor, count: int) -> Tensor:
    """From [n, m * channels, ...] to [m, n, channels, ...].

    >>> to_major(torch.tensor([[1, 2, 3, 4]]), 2)
    tensor([[[1, 2]],
    <BLANKLINE>
            [[3, 4]]])
    """
    return apart(values, 1, count).transpose(0, 1)


def apart(values: Tensor, axis: int, count: int) -> Tensor:
    """One axis as two, the first of which is the members'."""
    before, here, after = values.shape[:axis], values.shape[axis], values.shape[axis + 1 :]
    return values.view(*before, count, here // count, *after)


def for_all(values: Tensor, count: int) -> Tensor:
    """What is the same for all members, [n, ...], as [m, n, ...]; nothing is copied."""
    return values.expand(count, *values.shape)


def repeated(values: Tensor, count: int) -> Tensor:
    """What is the same for all members, [n, channels, ...], as packed: a copy a member."""
    return to_packed(for_all(values, count))


def flattened(values: Tensor, count: int) -> Tensor:
    """Packed [n, m * channels, ...] as every member's features: [m, n, channels * places]."""
    return to_major(values, count).flatten(2)


def padded(
    values: Tensor, count: int, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    """Packed values, each member's channels padded: the shortcut without parameters of ResNets.

    `pads` is as `torch.nn.functional.pad` takes it, and reaches the channels.
    """
    places = values.dim() - 2
    inner, (before, after) = pads[: 2 * places], pads[2 * places : 2 * places + 2]
    if any(inner):
        values = F.pad(values, list(inner), mode, value)
    last = apart(values.movedim(1, -1), values.dim() - 1, count)
    return F.pad(last, (before, after), mode, value).flatten(-2).movedim(-1, 1)


def joined(values: Sequence[Tensor], count: int) -> Tensor:
    """Packed values side by side along each member's channels, as `torch.cat(..., dim=1)`."""
    parts = [apart(one.movedim(1, -1), one.dim() - 1, count) for one in values]
    return torch.cat(parts, dim=-1).flatten(-2).movedim(-1, 1)
