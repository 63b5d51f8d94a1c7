"""What `run.json` says about a run in addition to its configuration."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard._version import __version__
from flipguard.data import DataSet
from flipguard.methods import method_of
from flipguard.models import architecture
from flipguard.runs.key import run_key
from flipguard.training.config import Config
from flipguard.training.folder import Run
from flipguard.training.follows import follows, recorded_key
from flipguard.training.formulas import changes_of, departures_of
from flipguard.training.material import input_shape_of


def run_facts(
    config: Config, out: Path, data: DataSet, model: nn.Module, old_runs: Sequence[Run]
) -> dict[str, Any]:
    """Return the facts about a run that are known before it is trained."""
    shape = input_shape_of(data)
    formula = len(changes_of(config, old_runs, data.class_names))
    key_defaults = method_of(config.method)[0].key_defaults
    return {
        "key": run_key(
            config, option_defaults=key_defaults, key_of_run=recorded_key, formula=formula
        ),
        "departures": departures_of(config),
        "formula": formula,
        "follows": follows(out, old_runs),
        "data": {
            "fingerprint": data.fingerprint,
            "class_names": list(data.class_names),
            "input_shape": None if shape is None else list(shape),
            "train": len(data.train),
            "test": len(data.test),
        },
        **model_facts(model),
        "versions": {
            "flipguard": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def model_facts(model: nn.Module) -> dict[str, Any]:
    """Return the facts about a model."""
    return {
        "architecture": architecture(model),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
