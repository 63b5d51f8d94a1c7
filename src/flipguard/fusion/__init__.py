"""Fuse members of an ensemble into one network, in which each trains as if it were alone.

>>> import torch
>>> from flipguard.fusion import fuse
>>> from flipguard.models import build_model
>>> members = [build_model("conv2d", classes=10, input_shape=(8, 8), seed=i) for i in range(4)]
>>> fuse(members)(torch.zeros(5, 8, 8)).shape
torch.Size([4, 5, 10])
"""

from __future__ import annotations

from flipguard.fusion.conversion import fuse
from flipguard.fusion.fused import Fused
from flipguard.fusion.tuning import tune

__all__ = [
    "Fused",
    "fuse",
    "tune",
]
