"""Write `run.json`: the configuration, facts about the run, followed runs, and formulas."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard._version import __version__
from flipguard.data import DataSet
from flipguard.errors import InputError, listed, printable
from flipguard.files import atomic_write, sha256_of
from flipguard.methods import method_of
from flipguard.methods.base import Fact
from flipguard.models import architecture
from flipguard.run_document import RUN, SCHEMA
from flipguard.runs.config import Config, as_dict
from flipguard.runs.folder import MODEL, Run, is_finished
from flipguard.runs.key import run_key
from flipguard.training.batches import input_shape_of
from flipguard.training.starting import start_facts


def follows(out: Path, runs: Iterable[Run]) -> dict[str, str]:
    """Return the digests of runs' weights by their paths relative to the folder of a run."""
    # Relative, so that a folder of runs can be moved as a whole.
    return {os.path.relpath(run.folder, out): weights_of(run) for run in runs}


def weights_of(run: Run) -> str:
    """Return the digest of a finished run's weights."""
    return str(run.document.get("weights") or sha256_of(run.folder / MODEL))


def recorded_key(folder: str) -> str:
    """Return the key of the run in a folder, or the digest of its weights if it has no key."""
    document = Run.read(Path(folder)).document
    return str(document.get("key") or document.get("weights", ""))


def follows_same(run: Run, there: Sequence[str], here: Sequence[str]) -> bool:
    """Return whether the runs in `here` are those that a run names as `there`.

    Runs are the same if their folders or their weights are. Paths are not enough: one may be
    relative, or the runs may have been moved.
    """
    return len(there) == len(here) and all(
        os.path.realpath(first) == os.path.realpath(second)
        or (
            is_finished(Path(second)) and weights_of(Run.read(Path(second))) in run.follows.values()
        )
        for first, second in zip(there, here, strict=True)
    )


def changed_since(run: Run) -> list[str]:
    """Return the followed runs whose weights have changed, by paths relative to the run."""
    return [
        path
        for path, digest in run.follows.items()
        if is_finished(run.folder / path) and weights_of(Run.read(run.folder / path)) != digest
    ]


def check_follows(run: Run) -> None:
    """Raise if the weights that a run follows have changed since it was started."""
    if changed := changed_since(run):
        raise InputError(
            f"Expected {printable(str(run.folder))} to resume with the weights that it was started "
            f"with, but those of {listed(changed)} (paths relative to it) have changed; restore "
            f"them, or remove {printable(str(run.folder))} to start again."
        )


def departures_of(config: Config) -> list[str]:
    """Return the differences from the method's paper with a complete configuration's settings."""
    method, named = method_of(config.method)
    return list(method.departures({**config.options, **named}))


def facts_for(config: Config, olds: Sequence[Config], *, new_classes: bool) -> frozenset[Fact]:
    """Return the facts about a run that decide whether a change of its method's formula applies.

    Args:
        config: The settings of the run.
        olds: The settings of the old runs that it follows.
        new_classes: Whether it has classes that one of the old runs lacks.
    """
    true: dict[Fact, bool] = {
        "clip": config.recipe.clip is not None,
        "new_classes": new_classes,
        "other_model": any(old.model != config.model for old in olds),
    }
    return frozenset(fact for fact, holds in true.items() if holds)


def changes_of(
    config: Config, olds: Sequence[Run], class_names: Collection[str]
) -> tuple[str, ...]:
    """Return the changes of the method's formula that apply to a run with these classes."""
    lacked = any(set(class_names) - set(run.class_names) for run in olds)
    facts = facts_for(config, [run.config for run in olds], new_classes=lacked)
    return method_of(config.method)[0].changes(facts)


def changes_since(run: Run) -> tuple[str, ...]:
    """Return the changes of the method's formula that apply to a run and came after its training.

    Old runs that no longer exist are not considered.
    """
    olds = [Run.read(Path(old)) for old in run.config.old if is_finished(Path(old))]
    return changes_of(run.config, olds, run.class_names)[run.document.get("formula", 0) :]


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
            **{name: len(split) for name, split in data.splits.items()},
        },
        **model_facts(model),
        **start_facts(model),
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


def part_facts(run: Run) -> dict[str, Any]:
    """Return what is needed to build the model of a run that is part of an ensemble."""
    return {
        "model": run.config.model,
        "input_shape": None if run.input_shape is None else list(run.input_shape),
        "preprocessing": run.document.get("preprocessing"),
    }


def write_run(folder: Path, config: Config, *, status: str, **more: Any) -> None:
    """Write `run.json`."""
    document = {
        "schema": SCHEMA,
        "status": status,
        "config": as_dict(config),
        **more,
    }
    text = json.dumps(document, indent=1) + "\n"
    with atomic_write(folder / RUN) as path:
        path.write_text(text)
