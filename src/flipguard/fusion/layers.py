"""Layers that compute m members at once; their parameters are stacked along the first axis."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.fusion.operation import repeated

CONVOLUTIONS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


class ManyConv(nn.Module):
    """Convolutions of packed values, one group per member, or of values that all members share."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, one: Any) -> None:
        super().__init__()
        self._convolve: Any = CONVOLUTIONS[type(one)]
        self._stride, self._dilation, self.groups = one.stride, one.dilation, one.groups
        self._mode, self._padding = one.padding_mode, one.padding
        self._around = one._reversed_padding_repeated_twice
        self.merge = 1  # how many members form one group, with zeros between them
        self.spread = False  # whether shared values are repeated, to have one group per member
        # Called before each call that could be computed in another way, while `tune` chooses one.
        self.watch: Callable[[Tensor, bool], None] | None = None

    def forward(self, values: Tensor, shared: bool = False, biased: bool = True) -> Tensor:
        if self.watch is not None and self.groups == 1:
            self.watch(values, shared)
        if shared and self.spread:
            values, shared = repeated(values, self.weight.shape[0]), False
        padding = self._padding
        if self._mode != "zeros":
            values, padding = F.pad(values, self._around, mode=self._mode), 0
        kernel = self.weight.flatten(0, 1)  # a view, also of kernels whose channels are last
        # Shared values need one group: a convolution with the output channels of all members.
        groups = self.groups if shared else self.groups * self.weight.shape[0]
        if not shared and self.merge > 1:
            kernel, groups = merged(kernel, groups, self.merge), groups // self.merge
        bias = self.bias.flatten() if biased and self.bias is not None else None
        found: Tensor = self._convolve(
            values, kernel, bias, self._stride, padding, self._dilation, groups
        )
        return found

    def settings(self, values: Tensor) -> tuple[Any, ...]:
        """Return everything that the time of a call depends on."""
        lies = (values.shape, values.stride(), values.dtype)
        return (*lies, self.weight.shape, self._stride, self._padding, self._dilation, self._mode)


class ManyBatchNorm(nn.Module):
    """Batch normalisation of packed values: every channel has separate statistics anyway."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, one: Any) -> None:
        super().__init__()
        self._momentum, self._eps, self._tracks = one.momentum, one.eps, one.track_running_stats
        self.again = False  # whether the batch was counted already

    def forward(self, values: Tensor) -> Tensor:
        return F.batch_norm(values, *self.settings())

    def settings(self) -> tuple[Any, ...]:
        """Return the arguments of `batch_norm` after the values, and count the batch."""
        tracks = self.training and self._tracks and not self.again
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return (
            _flat(self.running_mean),
            _flat(self.running_var),
            _flat(self.weight),
            _flat(self.bias),
            self.training or self.running_mean is None,
            0.0 if self.again else self._momentum,
            self._eps,
        )


class ManyBatchNormAct(ManyBatchNorm):
    """Batch normalisation and an activation in one layer, as in timm."""

    def __init__(self, one: Any) -> None:
        super().__init__(one)
        # Not a submodule: it holds no tensors, and a placeholder has its name already.
        self._activation = (copy.deepcopy(one.act),)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self._activation[0](super().forward(values))
        return found


class ManyGroupNorm(nn.Module):
    """Group normalisation of packed values, with the groups of all members."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, one: Any, count: int) -> None:
        super().__init__()
        self._groups, self._eps = one.num_groups * count, one.eps

    def forward(self, values: Tensor) -> Tensor:
        return F.group_norm(values, self._groups, _flat(self.weight), _flat(self.bias), self._eps)


class ManyLinear(nn.Module):
    """Linear layers on values [m, n, ..., features], as one batched product."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, one: nn.Linear) -> None:  # noqa: ARG002  # made as the other layers are
        super().__init__()

    def forward(self, values: Tensor) -> Tensor:
        between = values.shape[1:-1]
        # Shared values have a first stride of 0, which a batched product accepts.
        rows = values if values.dim() == 3 else values.flatten(1, -2)
        turned = self.weight.transpose(1, 2)
        if self.bias is None:
            found = torch.bmm(rows, turned)
        else:
            found = torch.baddbmm(self.bias.unsqueeze(1), rows, turned)
        return found if values.dim() == 3 else found.view(len(found), *between, -1)


class ManyLayerNorm(nn.Module):
    """Layer normalisation of values [m, n, ...]."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, one: nn.LayerNorm) -> None:
        super().__init__()
        self._shape, self._eps = list(one.normalized_shape), one.eps

    def forward(self, values: Tensor) -> Tensor:
        found = F.layer_norm(values, self._shape, None, None, self._eps)
        ones = [1] * (values.dim() - 1 - len(self._shape))
        if self.weight is not None:
            found = found * self.weight.view(len(self.weight), *ones, *self._shape)
        if self.bias is not None:
            found = found + self.bias.view(len(self.bias), *ones, *self._shape)
        return found


def _flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.flatten()


def merged(kernel: Tensor, groups: int, merge: int) -> Tensor:
    """Return kernels [groups * out, in, ...] with groups merged: [groups * out, merge * in, ...].

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
    # Not a product with zeros: an infinite number in one group must not reach another.
    whole = torch.where(own, apart, torch.zeros((), dtype=kernel.dtype, device=kernel.device))
    whole = whole.reshape(out, merge * inside, *places)
    last = kernel.dim() == 4 and kernel.is_contiguous(memory_format=torch.channels_last)
    return whole.contiguous(memory_format=torch.channels_last) if last else whole
