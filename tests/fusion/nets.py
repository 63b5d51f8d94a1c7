"""Members to fuse, and the loop that they are compared with."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.models import build_model

Batches = Sequence[tuple[Tensor, Tensor]]


def members_of(spec: str, shape: tuple[int, ...], *, count: int = 3, classes: int = 10) -> list:
    """Members in float64, with weights of their own."""
    return [
        build_model(spec, classes=classes, input_shape=shape, seed=seed).double()
        for seed in range(count)
    ]


class Attends(nn.Module):
    """A small transformer: what is stacked, and not packed."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        self.register_buffer("table", torch.tensor([4, 3, 2, 1, 0]), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs[:, self.table] + self.place)
        return self.head(self.norm(hidden.mean(1)))


def attending(count: int = 3) -> list[nn.Module]:
    members = []
    for seed in range(count):
        torch.manual_seed(seed)
        members.append(Attends().double())
    return members


def optimizer_for(
    kind: str, parameters: list[nn.Parameter], least: int, rate: float | None = None
) -> torch.optim.Optimizer:
    """SGD or AdamW; tensors of at least so many axes decay."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= least], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.dim() < least], "weight_decay": 0.0},
    ]
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=rate or 3e-3)
    return torch.optim.SGD(groups, lr=rate or 0.02, momentum=0.9, nesterov=True)


def train_alone(
    member: nn.Module,
    batches: Batches,
    *,
    kind: str,
    smoothing: float,
    clip: float | None = None,
    rate: float | None = None,
) -> nn.Module:
    """A copy of a member, trained by a bare loop."""
    model = copy.deepcopy(member).train()
    optimizer = optimizer_for(kind, list(model.parameters()), 2, rate)
    for inputs, target in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target, label_smoothing=smoothing).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def drawn(shape: tuple[int, ...], *, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def apart(found: Tensor, expected: Tensor) -> float:
    """How far two tensors are from each other."""
    assert found.shape == expected.shape
    return (found.double() - expected.double()).abs().max().item() if found.numel() else 0.0
