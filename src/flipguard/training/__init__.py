"""Training: from a configuration to a run folder, and from there to predictions."""

from __future__ import annotations

from flipguard.runs.config import Config, Machine, Recipe, Seeds
from flipguard.runs.folder import Run
from flipguard.runs.image_settings import ImageSettings
from flipguard.runs.scope import Scope
from flipguard.training.adopt import Adopted, adopt
from flipguard.training.checkpoint import load_model
from flipguard.training.predict import predict
from flipguard.training.train import train

__all__ = [
    "Adopted",
    "Config",
    "ImageSettings",
    "Machine",
    "Recipe",
    "Run",
    "Scope",
    "Seeds",
    "adopt",
    "load_model",
    "predict",
    "train",
]
