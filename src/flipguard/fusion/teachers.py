"""Finished members as one reference: the mean of their logits, computed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.fusion.base import Fused
from flipguard.fusion.convert import fuse
from flipguard.fusion.folding import folded
from flipguard.fusion.regions import Compiling, compile_parts
from flipguard.fusion.tuning import tune
from flipguard.models import Inputs
from flipguard.references import OldModel, Reference


class FusedMean(nn.Module):
    """The mean over fused members of logits, each divided by its temperature.

    It is summed in float32 (float64 if the members give that), as `Ensemble` does.
    """

    shares: Tensor

    def __init__(self, fused: Fused, temperatures: Sequence[float] | None = None) -> None:
        super().__init__()
        self.fused = fused
        given = temperatures or (1.0,) * fused.count
        shares = torch.tensor([1 / (fused.count * one) for one in given], dtype=torch.float64)
        self.register_buffer("shares", shares, persistent=False)

    def forward(self, inputs: Inputs) -> Tensor:
        logits = self.fused(inputs)
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        weighted: Tensor = logits.to(wide) * self.shares.to(wide).view(-1, 1, 1)
        return weighted.sum(0)


def teachers(
    members: Sequence[nn.Module],
    *,
    example: Tensor | None = None,
    temperatures: Sequence[float] | None = None,
    streams: int = 1,
    apart: bool = False,
    compiled: Compiling = "off",
    batch_size: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Reference:
    """The members' mean logits as a reference; their normalisations are folded away.

    On several streams a GPU asks several of them at the same time, each a network of its own if
    they are `apart`. Told how large batches will be and how precise, it measures on a GPU how they
    are fastest.

    >>> from flipguard.models import build_model
    >>> members = [build_model("conv2d", classes=10, input_shape=(8, 8), seed=i) for i in range(4)]
    >>> teachers(members)(torch.zeros(5, 8, 8)).shape
    torch.Size([5, 10])
    """
    shape = getattr(members[0], "input_shape", None) if example is None else example.shape[1:]
    plain = [folded(member, _batch(member, shape)) for member in members] if shape else members
    batch = None if shape is None else torch.zeros(1, *shape)
    networks = len(plain) if apart else streams
    fused = fuse(plain, example=batch, streams=streams, networks=networks)
    if apart and fused.way != "packed":
        raise InputError(
            "Expected networks of convolutions or of plain layers to be asked side by side, but "
            "got some whose calls are mapped; ask them in turn."
        )
    fused = fused.eval().requires_grad_(False)
    mean = FusedMean(fused, temperatures).to(_device(members[0]))
    if batch_size is not None and shape is not None:
        tune(fused, torch.zeros(batch_size, *shape, device=_device(members[0])), autocast)
    if compiled == "parts":
        compile_parts(fused)
    elif compiled == "whole":
        mean.compile()
    return OldModel(mean)


def _batch(member: nn.Module, shape: Sequence[int]) -> Tensor:
    kind = next((p.dtype for p in member.parameters()), torch.float32)
    return torch.zeros(2, *shape, device=_device(member), dtype=kind)


def _device(member: nn.Module) -> torch.device:
    return next((p.device for p in member.parameters()), torch.device("cpu"))
