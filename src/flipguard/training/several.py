"""Ordinary runs that differ by seed alone, trained as one network where that can be done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipguard.training.config import Config
from flipguard.training.devices import exactness, fabric_of
from flipguard.training.fusing import train_together
from flipguard.training.loop import Report
from flipguard.training.train import train


def train_several(configs: Sequence[Config], folders: Sequence[Path], *, report: Report) -> None:
    """Trains untreated runs of one kind: together what can be, and one by one what is left."""
    fabric = fabric_of(configs[0].machine)
    with exactness(configs[0].machine, fabric.device):
        train_together(fabric, configs, folders, deadline=None, report=report)
    for config, folder in zip(configs, folders, strict=True):
        train(config, folder, resume=True, report=report)
