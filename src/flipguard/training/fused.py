"""Train members as one network: one loop for all of them, and a run folder for each.

Each member has the initial weights, the order and the augmentations that it would have alone, and
ends with the same weights up to rounding. Only dropout draws other numbers, because all masks are
drawn at once. One shared checkpoint has everything that a restart needs; the members' folders are
written at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flipguard.files import sha256_of
from flipguard.fusion import tune
from flipguard.runs.config import Config
from flipguard.runs.folder import MODEL, Run, is_finished, remove_leftovers, write_lines
from flipguard.runs.history import HISTORY, TIMING
from flipguard.training.batches import EpochBatches
from flipguard.training.checkpoint import CheckpointStore, Progress, save_model, state_digest
from flipguard.training.checks import complete_config
from flipguard.training.devices import can_capture, compile_as
from flipguard.training.fused_group import FusedGroup
from flipguard.training.group_setup import GroupSetup, set_up_group
from flipguard.training.loop import loop
from flipguard.training.monitor import Monitor
from flipguard.training.outcomes import Done, Stopped
from flipguard.training.predict import write_test_predictions
from flipguard.training.record import run_facts, write_run
from flipguard.training.strategy import TrainingContext
from flipguard.training.trainee import GroupTrainee

Facts = list[dict[str, Any]]  # of each member


def train_group(group: FusedGroup, context: TrainingContext) -> Done | Stopped:
    """Train members as one network."""
    fabric, monitor = context.fabric, context.monitor
    configs = tuple(complete_config(config)[1] for config in group.configs)
    first = configs[0]
    setup = set_up_group(fabric, group, configs)
    remove_leftovers(group.folder)
    facts = [
        run_facts(config, folder, setup.data, setup.members[0], _old_runs(config))
        for folder, config in zip(group.folders, configs, strict=True)
    ]
    with group.begun_or_nothing():
        _begin(group, setup, configs, facts, monitor)
        batches = EpochBatches(setup.sources, [config.seeds for config in configs], first.recipe)
        captured = can_capture(first, batches.device)
        if not first.machine.deterministic:  # measuring may choose other kernels every time
            tune(setup.fused, batches.example(), fabric.autocast)
        compile_as(first.machine, setup.fused)
        store = CheckpointStore(
            group.folder,
            [state_digest(config, own) for config, own in zip(configs, facts, strict=True)],
            save_seconds=first.machine.save_seconds,
            writes_history=False,
        )
        ended = loop(
            GroupTrainee(setup.fused, first.recipe.label_smoothing),
            batches,
            setup.trackers,
            store,
            monitor,
            config=first,
            fabric=fabric,
            captured=captured,
            deadline=context.deadline,
        )
    if isinstance(ended, Stopped):
        return ended
    _finish(group, setup, configs, facts, ended, fabric.device)
    return Done()


def _old_runs(config: Config) -> list[Run]:
    return [Run.read(Path(old)) for old in config.old]


def _begin(
    group: FusedGroup,
    setup: GroupSetup,
    configs: Sequence[Config],
    facts: Facts,
    monitor: Monitor,
) -> None:
    """Begin the folder of each member that is not finished, and report how they are trained."""
    for folder, config, own in zip(group.folders, configs, facts, strict=True):
        remove_leftovers(folder)
        if not is_finished(folder):
            write_run(folder, config, status="training", **own)
    group.begin()
    networks = len(setup.fused.parts())
    how = "one network" if networks == 1 else f"{networks} networks side by side"
    monitor.note(f"{len(configs)} members as {how} ({setup.fused.way})")


def _finish(
    group: FusedGroup,
    setup: GroupSetup,
    configs: Sequence[Config],
    facts: Facts,
    ended: Progress,
    device: torch.device,
) -> None:
    """Write the folder of each member, and remove the shared checkpoint."""
    states = setup.fused.split()
    for index, (folder, config) in enumerate(zip(group.folders, configs, strict=True)):
        if is_finished(folder):
            continue
        model = setup.members[index]
        model.load_state_dict(states[index])
        save_model(folder, model)
        for split in setup.data.predicted:
            write_test_predictions(folder, model, setup.data, split=split, device=device)
        write_lines(folder / TIMING, ended.timing)
        write_lines(folder / HISTORY, ended.histories[index])
        weights = sha256_of(folder / MODEL)
        write_run(folder, config, status="finished", **facts[index], weights=weights)
    group.end()
