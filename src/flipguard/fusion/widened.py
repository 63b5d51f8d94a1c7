"""Several samples of a batch beside each other in the channels: the same numbers, seen in two ways.

With their channels last, `copies` samples side by side lie in memory as rows, columns, samples,
channels. That is, without moving a number:

- *wide* ``[n, copies * channels, rows, columns]``: what a convolution of so many groups takes,
  all of which have the same kernel, and what pooling takes;
- *long* ``[n, channels, rows, columns * copies]``: what everything takes that treats channels by
  themselves, such as batch normalisation, for which these are the numbers of a whole batch.

Libraries have fast kernels for the many channels of a wide batch, and slow ones for few channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def beside(values: Tensor, copies: int) -> Tensor:
    """A batch [n * copies, channels, rows, columns] as long values: neighbours side by side.

    >>> beside(torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 1, 3), copies=2).squeeze()
    tensor([[0., 1., 0., 1., 0., 1.],
            [2., 3., 2., 3., 2., 3.]])
    """
    samples, channels, rows, columns = values.shape
    apart = values.reshape(samples // copies, copies, channels, rows, columns)
    together = apart.permute(0, 3, 4, 1, 2).reshape(-1, rows, columns * copies, channels)
    return together.permute(0, 3, 1, 2)


def one_by_one(values: Tensor, copies: int) -> Tensor:
    """Long values as the batch that they were made from, in its order.

    >>> one_by_one(beside(torch.arange(4.0).view(4, 1, 1, 1), copies=2), copies=2).flatten()
    tensor([0., 1., 2., 3.])
    """
    count, channels, rows, columns = values.shape
    apart = values.reshape(count, channels, rows, columns // copies, copies)
    # Contiguous, as a network may expect that sees its values as rows.
    return apart.permute(0, 4, 1, 2, 3).reshape(-1, channels, rows, columns // copies)


def wide(values: Tensor, copies: int) -> Tensor:
    """Long values as wide ones: the same memory, where channels are last.

    >>> wide(torch.zeros(2, 3, 5, 7 * 4), copies=4).shape
    torch.Size([2, 12, 5, 7])
    """
    count, channels, rows, columns = values.shape
    last = values.permute(0, 2, 3, 1).reshape(count, rows, columns // copies, copies * channels)
    return last.permute(0, 3, 1, 2)


def long(values: Tensor, copies: int) -> Tensor:
    """Wide values as long ones: the same memory, where channels are last.

    >>> long(torch.zeros(2, 12, 5, 7), copies=4).shape
    torch.Size([2, 3, 5, 28])
    """
    count, channels, rows, columns = values.shape
    last = values.permute(0, 2, 3, 1).reshape(count, rows, columns * copies, channels // copies)
    return last.permute(0, 3, 1, 2)


def kernels(weight: Tensor, copies: int, merge: int) -> Tensor:
    """One kernel [out, in, ...] for each of `copies` groups, of which `merge` are one with zeros.

    As `flipguard.fusion.grouped.merged` does it for kernels that differ, and in fewer steps.

    >>> kernels(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), copies=2, merge=2).squeeze()
    tensor([[1., 0.],
            [2., 0.],
            [0., 1.],
            [0., 2.]])
    """
    last = weight.permute(0, 2, 3, 1)
    out, *places, inside = last.shape
    if merge == 1:
        whole = last.repeat(copies, 1, 1, 1)
    else:
        each = last.unsqueeze(-1).expand(copies // merge, *last.shape, merge)
        # Its gradient is a view of what is not zero: nothing is multiplied by zeros.
        whole = torch.diag_embed(each, dim1=1, dim2=5)
    return whole.reshape(copies * out, *places, merge * inside).permute(0, 3, 1, 2)


class WideConv(nn.Module):
    """A convolution of long values, computed on wide ones; the layer is another's."""

    def __init__(self, layer: nn.Conv2d, copies: int, merge: int = 1) -> None:
        super().__init__()
        # Not a submodule: its parameters are in the state of the network that it belongs to.
        self._layer = (layer,)
        self.copies = copies
        self.merge = merge  # so many samples are one group, with zeros between them

    @property
    def weight(self) -> Tensor:
        """The kernel of the layer itself."""
        return self._layer[0].weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer itself."""
        return self._layer[0].bias

    def forward(self, values: Tensor, biased: bool = True) -> Tensor:
        layer, weight = self._layer[0], self.weight
        device = values.device.type
        if torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
            # Before it is repeated, and not after: there is less of it.
            weight = weight.to(torch.get_autocast_dtype(device))
        bias = self.bias.repeat(self.copies) if biased and self.bias is not None else None
        found = F.conv2d(
            wide(values, self.copies),
            kernels(weight, self.copies, self.merge),
            bias,
            layer.stride,
            layer.padding,
            layer.dilation,
            self.copies // self.merge,
        )
        return long(found, self.copies)

    def settings(self, values: Tensor) -> tuple[Any, ...]:
        """All that the time of a call depends on."""
        layer = self._layer[0]
        lies = (values.shape, values.stride(), values.dtype)
        steps = (layer.stride, layer.padding, layer.dilation)
        return (*lies, self.copies, self.weight.shape, self.weight.dtype, *steps)
