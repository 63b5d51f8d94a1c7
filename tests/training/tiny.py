"""Runs that take a tenth of a second: real ones, only small."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from flipguard.methods import METHODS
from flipguard.runs.folder import MODEL
from flipguard.runs.history import HISTORY
from flipguard.training import Config, Machine, Recipe, Run, Scope, Seeds, train

DATA = "mnist1d:train=200,test=100"
MODEL_SPEC = "mlp:hidden=16"
# Fewer members than by default, and peers that are refreshed and used within so few steps.
OPTIONS: dict[str, dict[str, Any]] = {
    "ensemble": {"members": 2},
    "elodi": {"members": 2},
    "codistill-ce": {"every": 2, "burn_in": 0.2},
    "ewc": {"samples": 10},
}
OF_BYTES = (MODEL, HISTORY, "predictions/test.npz")


def tiny(method: str = "none", *, epochs: int = 2, **changes: Any) -> Config:
    """A small configuration of a method; recipe, options and the rest may be changed."""
    recipe = Recipe(**{"epochs": epochs, "batch_size": 50, **changes.pop("recipe", {})})
    options = {**OPTIONS.get(method, {}), **changes.pop("options", {})}
    # A state after every epoch, so that there is something to go on from within a second.
    machine = {"threads": 1, "device": "cpu", "save_seconds": 0.0, **changes.pop("machine", {})}
    return Config(
        **{
            "method": method,
            "options": options,
            "data": DATA,
            "model": MODEL_SPEC,
            "recipe": recipe,
            "machine": Machine(**machine),
            **changes,
        }
    )


def trained(config: Config, out: Path, *, resume: bool = False) -> Run:
    """A run that reports to nobody."""
    return train(config, out, resume=resume, report=lambda _: None)


def needs_old(method: str) -> bool:
    """Whether a method cannot do without an old run."""
    return METHODS[method.partition("+")[0]].default_needs().old


def make_old(out: Path, *, seed: int = 7, classes: int | None = None, **changes: Any) -> Run:
    """An old run, which knows the first classes if it does not know all."""
    scope = Scope(classes=classes, class_choice="first")
    config = tiny(seeds=Seeds(seed=seed), scope=scope, **changes)
    return trained(config, out)


def with_old(config: Config, *olds: Run) -> Config:
    """A configuration that updates old runs."""
    return dataclasses.replace(config, old=tuple(str(run.folder) for run in olds))


def history_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's history."""
    return [json.loads(line) for line in (folder / HISTORY).read_text().splitlines()]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """What two equal runs have in common, to the byte."""
    return {name: (folder / name).read_bytes() for name in OF_BYTES if (folder / name).exists()}


def everything_in(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def images_file(path: Path) -> str:
    """Sixty small images of three classes, as the spec of a data set."""
    drawn = np.random.default_rng(0)
    np.savez(
        path,
        train_inputs=drawn.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8),
        train_targets=np.arange(40) % 3,
        test_inputs=drawn.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8),
        test_targets=np.arange(20) % 3,
    )
    return str(path)
