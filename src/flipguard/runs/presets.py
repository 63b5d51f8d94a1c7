"""Recipes by name: those of the papers, and a short one of flipguard.

Only the values of `recipe` belong here. The presets of methods belong to `flipguard.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# PyTorch's ImageNet example, which PCT and ELODI follow. It decays all parameters.
_IMAGENET: dict[str, Any] = {
    "epochs": 90,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 1e-4,
    "schedule": "steps",
    "milestones": (30, 60),
    "decay": 0.1,
    "decay_biases_and_norms": True,
    "augment": "random-resized-crop",
}

# One rise and one fall of the learning rate (Smith and Topin, 2018; Jordan, 2024).
_SHORT: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 512,
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "schedule": "linear",
    "warmup": 6.0,
    "label_smoothing": 0.0,
    "augment": "crop-flip",
}

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # PCT, section 5.1
        "pct-imagenet": {**_IMAGENET, "batch_size": 2048},
        # ELODI, section 5.1
        "elodi-imagenet": {**_IMAGENET, "batch_size": 256},
        # Reproducibility, appendix A: weight decay in all experiments, of parameters not named.
        "churn-cifar": {
            **_IMAGENET,
            "epochs": 450,
            "batch_size": 1024,
            "learning_rate": 1.0,
            "nesterov": True,
            "milestones": (200, 300, 400),
            "warmup": 15.0,
            "augment": "crop-flip",
        },
        "churn-imagenet": {
            **_IMAGENET,
            "batch_size": 1024,
            "learning_rate": 0.8,
            "milestones": (30, 60, 80),
            "warmup": 5.0,
        },
        # Not from a paper: takes minutes on one GPU.
        "cifar-short": _SHORT,
    }
)
