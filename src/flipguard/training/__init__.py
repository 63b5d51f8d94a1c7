"""Training: from a configuration to a run folder, and from there to predictions."""

from __future__ import annotations

from flipguard.runs.config import Config, Machine, Recipe, Seeds
from flipguard.runs.folder import Run
from flipguard.runs.scope import Scope
from flipguard.training.checkpoint import load_model
from flipguard.training.predict import predict
from flipguard.training.train import train

__all__ = ["Config", "Machine", "Recipe", "Run", "Scope", "Seeds", "load_model", "predict", "train"]
