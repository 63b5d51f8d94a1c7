"""Members trained as one network: one loop for all of them, and a run folder for each.

Each member has the start, the order and the augmentations that it would have alone, and ends where
it would, to rounding; only dropout draws other numbers, because all masks are drawn at once.
Everything that a restart needs is in one joint state; the members' folders are written at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flipguard.errors import DivergedError
from flipguard.fusion import CapturedStep, Fused, tune
from flipguard.training.checkpoint import save_model
from flipguard.training.checks import completed
from flipguard.training.clipping import clip
from flipguard.training.config import Config, is_measured
from flipguard.training.devices import compile_as, peak_memory, seed_dropout
from flipguard.training.facts import run_facts
from flipguard.training.folder import (
    CHECKPOINT,
    HISTORY,
    MODEL,
    TIMING,
    Run,
    digest_of,
    is_finished,
    save,
    sweep,
    write_lines,
    write_run,
)
from flipguard.training.fused_group import Group
from flipguard.training.interrupting import interrupted, time_is_up
from flipguard.training.loop import steps_an_epoch
from flipguard.training.material import Material
from flipguard.training.monitor import Monitor
from flipguard.training.optimizers import optimizer_of, restore_optimizer
from flipguard.training.predict import write_predictions
from flipguard.training.replaying import replays_members, unless_insisted
from flipguard.training.schedule import learning_rate
from flipguard.training.states import state_at, state_digest
from flipguard.training.workshop import Together, Workshop, workshop_of

Rows = list[dict[str, Any]]


def train_group(fabric: Any, group: Group, *, deadline: float | None, monitor: Monitor) -> bool:
    """Trains members as one network; False if it was stopped before the end."""
    configs = tuple(completed(config)[1] for config in group.configs)
    workshop = workshop_of(fabric, group, configs)
    sweep(group.folder)
    facts = [
        run_facts(
            config,
            folder,
            workshop.data,
            workshop.members[0],
            [Run.read(Path(old)) for old in config.old],
        )
        for folder, config in zip(group.folders, configs, strict=True)
    ]
    digests = [
        state_digest(
            config,
            data=workshop.data.fingerprint,
            follows=told["follows"],
            formula=told["formula"],
        )
        for config, told in zip(configs, facts, strict=True)
    ]
    with group.begun_or_nothing():
        for folder, config, told in zip(group.folders, configs, facts, strict=True):
            sweep(folder)
            if not is_finished(folder):
                write_run(folder, config, status="training", **told)
        group.begin()
        networks = len(workshop.fused.parts())
        how = "one network" if networks == 1 else f"{networks} networks side by side"
        monitor.note(f"{len(configs)} members as {how} ({workshop.fused.way})")
        done = _train(fabric, workshop, configs, digests, group.folder, deadline, monitor)
    if done is None:
        return False
    states = workshop.fused.split()
    for index, (folder, config) in enumerate(zip(group.folders, configs, strict=True)):
        if is_finished(folder):
            continue
        model = workshop.members[index]
        model.load_state_dict(states[index])
        save_model(folder, model)
        write_predictions(folder, model, workshop.data, split="test", device=fabric.device)
        write_lines(folder / TIMING, done.timing)
        write_lines(folder / HISTORY, done.histories[index])
        weights = digest_of(folder / MODEL)
        write_run(folder, config, status="finished", **facts[index], weights=weights)
    group.end()
    return True


@dataclass(slots=True, kw_only=True)
class Joint:
    """How far a group has come."""

    epoch: int = 0
    step: int = 0
    histories: list[Rows]
    timing: Rows = field(default_factory=list)


def _train(
    fabric: Any,
    workshop: Workshop,
    configs: Sequence[Config],
    digests: list[str],  # of what decides each member's state
    folder: Path,
    deadline: float | None,
    monitor: Monitor,
) -> Joint | None:
    """The loop; None if time was up, or somebody interrupted it."""
    recipe, machine, fused = configs[0].recipe, configs[0].machine, workshop.fused
    device = workshop.materials[0].device
    captured = replays_members(configs[0], device)
    trainee, optimizer = fabric.setup(
        Together(fused, recipe.label_smoothing),
        optimizer_of(configs[0], *fused.decaying(), device, captured=captured),
    )
    progress = _restored(folder, fused, optimizer, digests)
    if interrupted() and progress.epoch < recipe.epochs:
        return None  # before an epoch was under way: none has to be finished
    if not machine.deterministic:  # which kernel is fastest is not always the same one's turn
        tune(fused, _like_a_batch(workshop, configs), fabric.autocast)
    compile_as(machine, fused)
    rate_on_device = torch.zeros((), device=device)
    if captured:
        for group in optimizer.param_groups:
            group["lr"] = rate_on_device
    batch, steps = (
        recipe.batch_size * recipe.accumulate,
        steps_an_epoch(recipe, len(workshop.data.train)),
    )
    sums = torch.zeros(len(configs), device=device)

    def backward(inputs: Tensor, target: Tensor, share: float = 1.0) -> None:
        losses = trainee(inputs, target)
        # A sum over the members: each gets the gradient of its own loss.
        fabric.backward(losses.sum() * share)
        sums.add_(losses.detach() * share)

    def update() -> None:
        if recipe.clip is not None:
            clip(fused, recipe.clip)
        optimizer.step()
        optimizer.zero_grad()

    def whole_step(inputs: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()  # a capture that failed may have left some that were never computed
        backward(inputs, target)
        update()

    step_at_once: Callable[[Tensor, Tensor], None] | None = None
    if captured:
        step_at_once = CapturedStep(whole_step, otherwise=unless_insisted(configs[0], monitor.note))
    began, first_epoch = time.monotonic(), progress.epoch
    kept = began
    rate = 0.0
    for epoch in range(progress.epoch, recipe.epochs):
        epoch_began = time.monotonic()
        coming = _batches(workshop.materials, configs, epoch, batch, steps)
        trainee.train()
        sums.zero_()
        for step in range(steps):
            seed_dropout(configs[0].seeds.of("dropout", epoch, step), device)
            rate = learning_rate(recipe, step=progress.step, steps_an_epoch=steps)
            if step_at_once is not None:
                rate_on_device.fill_(rate)
                step_at_once(*next(coming)[:2])
            else:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                for _ in range(recipe.accumulate):
                    backward(*next(coming))
                update()
            progress.step += 1
        losses = (sums / steps).tolist()
        _refuse_divergence(losses, fused, epoch)
        progress.epoch = epoch + 1
        rows: Rows = [
            {"epoch": epoch + 1, "learning_rate": rate, "losses": {"task": loss}} for loss in losses
        ]
        if is_measured(configs[0], epoch + 1):
            for name, yardstick in workshop.yardsticks.items():
                for row, rates in zip(rows, yardstick.rates_of_all(fused), strict=True):
                    row[name] = rates
            for row, history in zip(rows, progress.histories, strict=True):
                history.append(row)
        now = time.monotonic()
        progress.timing.append(
            _timing(epoch, now - epoch_began, len(workshop.data.train), len(configs), device)
        )
        stops = time_is_up(deadline)
        ends = progress.epoch == recipe.epochs
        if ends or stops or now - kept >= machine.save_seconds:
            _keep(folder, progress, fused, optimizer, digests)
            kept = time.monotonic()
        each_epoch = (now - began) / (epoch + 1 - first_epoch)
        left = each_epoch * (recipe.epochs - epoch - 1)
        monitor.epoch(epoch + 1, recipe.epochs, rows, progress.timing[-1], left)
        if stops and not ends:
            return None
    return progress


def _batches(
    materials: Sequence[Material], configs: Sequence[Config], epoch: int, batch: int, steps: int
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Inputs, targets and their share of a step: one batch for all members, or one for each."""
    accumulate = configs[0].recipe.accumulate
    if _share_batches(configs, epoch):
        materials, configs = materials[:1], configs[:1]
    coming, sizes = [], []
    for material, config in zip(materials, configs, strict=True):
        drawn = torch.Generator().manual_seed(config.seeds.of("order", epoch))
        order = torch.randperm(len(material), generator=drawn).to(material.device)
        wholes = [order[step * batch : (step + 1) * batch] for step in range(steps)]
        pieces = [piece for whole in wholes for piece in whole.chunk(accumulate)]
        sizes = [(len(piece), len(wholes[i // accumulate])) for i, piece in enumerate(pieces)]
        coming.append(material.ahead(pieces, epoch=epoch))
    for (size, whole), *given in zip(sizes, *coming, strict=True):
        inputs, targets = zip(*given, strict=True)
        share = size / whole
        if len(given) == 1:
            yield inputs[0], targets[0], share
        else:
            yield torch.stack(inputs), torch.stack(targets), share


def _share_batches(configs: Sequence[Config], epoch: int = 0) -> bool:
    """Whether all members see the same batches."""
    return len({(c.seeds.of("order", epoch), c.seeds.of("augment")) for c in configs}) == 1


def _like_a_batch(workshop: Workshop, configs: Sequence[Config]) -> Tensor:
    """Zeros in the shape of a batch."""
    material = workshop.materials[0]
    batch = min(configs[0].recipe.batch_size, len(material))
    inputs, _ = material.batch(torch.zeros(batch, dtype=torch.int64))
    assert isinstance(inputs, Tensor)
    inputs = torch.zeros_like(inputs)
    return inputs if _share_batches(configs) else torch.stack([inputs] * len(configs))


def _keep(
    folder: Path,
    progress: Joint,
    fused: Fused,
    optimizer: torch.optim.Optimizer,
    digests: list[str],
) -> None:
    state = {
        "digest": digests,
        "epoch": progress.epoch,
        "step": progress.step,
        "histories": progress.histories,
        "timing": progress.timing,
        "members": fused.body.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    save(folder / CHECKPOINT, lambda path: torch.save(state, path))


def _restored(
    folder: Path, fused: Fused, optimizer: torch.optim.Optimizer, digests: list[str]
) -> Joint:
    path = folder / CHECKPOINT
    if not path.exists():
        return Joint(histories=[[] for _ in digests])
    with state_at(path, of=folder, digest=digests) as state:
        fused.body.load_state_dict(state["members"])
        restore_optimizer(optimizer, state["optimizer"])
        return Joint(
            epoch=state["epoch"],
            step=state["step"],
            histories=state["histories"],
            timing=state["timing"],
        )


def _refuse_divergence(losses: Sequence[float], fused: Fused, epoch: int) -> None:
    found = list(zip(losses, fused.finite().tolist(), strict=True))
    # Groups that are merged hand on what is not finite: all are named, the cause among them.
    bad = [index for index, (loss, whole) in enumerate(found) if loss - loss != 0 or not whole]
    if bad:
        loss, _ = found[bad[0]]
        what = "weights that are not" if loss - loss == 0 else f"task = {loss}"
        names = ", ".join(str(index + 1) for index in bad)
        raise DivergedError(
            f"Expected finite losses and weights, but got {what} of member{'s' * (len(bad) > 1)} "
            f"{names} in epoch {epoch + 1}; lower the learning rate, and the state of the epoch "
            "before it is as it was."
        )


def _timing(
    epoch: int, seconds: float, samples: int, count: int, device: torch.device
) -> dict[str, Any]:
    """A member's share of the time; the memory is that of all."""
    return {
        "epoch": epoch + 1,
        "seconds": round(seconds / count, 3),
        "samples_a_second": round(samples * count / seconds),
        "memory_mib": round(peak_memory(device) / 2**20),
    }
