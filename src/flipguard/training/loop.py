"""The loop: read it from top to bottom.

Everything that a restart needs is in `_saved`; everything else follows from the configuration. No
random stream is kept: the order of an epoch and the dropout of a step are drawn from seeds that
depend on where they are used.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.errors import DivergedError, InputError
from flipguard.fusion import CapturedStep
from flipguard.methods import Objective, Step
from flipguard.models import Inputs, classify, head_of, with_features
from flipguard.training.clipping import clip, unscale
from flipguard.training.config import Config, Recipe, is_measured
from flipguard.training.devices import peak_memory, seed_dropout
from flipguard.training.folder import CHECKPOINT, HISTORY, TIMING, save, write_lines
from flipguard.training.interrupting import interrupted, time_is_up
from flipguard.training.material import Material
from flipguard.training.measure import Yardstick
from flipguard.training.monitor import Monitor
from flipguard.training.optimizers import optimizer_of, restore_optimizer
from flipguard.training.replaying import replays, unless_insisted
from flipguard.training.schedule import learning_rate
from flipguard.training.states import state_at


class Trainee(nn.Module):
    """The student and what is trained along with it, as one module that gives the parts of a loss.

    One module, so that several processes average all gradients, and one forward pass, so that
    precision is set in one place.
    """

    def __init__(self, student: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.student = student
        self.trained = objective.trained
        self._objective = objective
        self._head = head_of(student) if objective.needs_features else None

    def forward(
        self, inputs: Inputs, target: Tensor, places: Tensor, number: int | Tensor
    ) -> dict[str, Tensor]:
        features: Tensor | None = None
        if self._head is not None:
            logits, features = with_features(self.student, head=self._head)(inputs)
        elif self._objective.forward is not None:
            logits = self._objective.forward(self.student, inputs)
        else:
            logits = classify(self.student, inputs)
        return self._objective.parts(
            Step(
                inputs=inputs,
                target=target,
                places=places,
                logits=logits,
                features=features,
                number=number,
                model=self.student,
            )
        )


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run has come."""

    epoch: int = 0
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    timing: list[dict[str, Any]] = field(default_factory=list)


def train_loop(
    config: Config,
    folder: Path,
    *,
    fabric: Any,
    student: nn.Module,
    objective: Objective,
    material: Material,
    yardsticks: dict[str, Yardstick],
    digest: str,
    resume: bool,
    deadline: float | None = None,
    monitor: Monitor,
) -> bool:
    """Trains until the last epoch, or until time is up or somebody interrupts it.

    Says whether it came to the end. With `resume` it goes on from the state in the folder, if there
    is one, which must have been kept with the same `digest` of what decides it.
    """
    recipe, seeds = config.recipe, config.seeds
    device = material.device
    # A projection that BCT trains beside the student is made on the CPU.
    trainee = Trainee(student, objective).to(device)
    captured = replays(config, objective, material, fabric)
    weights = [p for p in trainee.parameters() if p.requires_grad]
    optimizer = optimizer_of(
        config,
        [p for p in weights if p.dim() > 1],
        [p for p in weights if p.dim() <= 1],  # biases and norms
        device,
        captured=captured,
    )
    trainee, optimizer = fabric.setup(trainee, optimizer)
    progress = Progress()
    if resume:
        progress = _restored(folder, digest, student, objective, optimizer)
    if progress.epoch and fabric.is_global_zero:
        # A process that was killed may have kept the state, but not said so yet.
        _tell(folder, progress)
    if fabric.broadcast(interrupted()) and progress.epoch < recipe.epochs:
        return False  # before an epoch was under way: none has to be finished
    began, first_epoch = time.monotonic(), progress.epoch
    kept = began
    batch, steps = recipe.batch_size * recipe.accumulate, steps_an_epoch(recipe, len(material))
    sums: dict[str, Tensor] = {}  # of the parts of the loss, over the steps of an epoch
    # What a replayed step reads: tensors that stay where they are.
    rate_there = torch.zeros((), device=device)
    number_there = torch.tensor(progress.step, device=device)

    def seed_piece(*place: int) -> None:
        # The first process draws what a single process would; the others draw something else. Each
        # piece gets a new seed: what a twin draws must not change what the student draws next.
        epoch, step, *index = place
        rank = fabric.global_rank
        own = (epoch, step, *index, rank) if rank or any(index) else (epoch, step)
        seed_dropout(seeds.of("dropout", *own), device)

    def learn(
        inputs: Inputs, target: Tensor, places: Tensor, number: int | Tensor, share: float = 1.0
    ) -> None:
        parts = trainee(inputs, target, places, number)
        # Gradients are averaged over the processes, each of which gives its part of a sum.
        fabric.backward(sum(parts.values()) * (share * fabric.world_size))
        for name, part in parts.items():
            if name not in sums:
                sums[name] = torch.zeros_like(part, requires_grad=False)
            sums[name].add_(part.detach(), alpha=share)

    def update() -> None:
        if recipe.clip is not None:
            unscale(fabric, optimizer)
            clip(student, recipe.clip)
            clip(objective.trained, recipe.clip)
        optimizer.step()
        optimizer.zero_grad()

    def whole_step(inputs: Tensor, target: Tensor, places: Tensor) -> None:
        optimizer.zero_grad()  # a capture that failed may have left some that were never computed
        learn(inputs, target, places, number_there)
        update()
        number_there.add_(1)

    step_at_once = None
    if captured:
        step_at_once = CapturedStep(whole_step, otherwise=unless_insisted(config, monitor.note))
        for group in optimizer.param_groups:
            group["lr"] = rate_there

    for epoch in range(progress.epoch, recipe.epochs):
        epoch_began = time.monotonic()
        drawn = torch.Generator().manual_seed(seeds.of("order", epoch))
        # On the device at once: a copy for every step would wait for the device every time.
        order = torch.randperm(len(material), generator=drawn).to(material.device)
        wholes = [order[step * batch : (step + 1) * batch] for step in range(steps)]
        # Every process takes its share of the same batch.
        mine = [whole[fabric.global_rank :: fabric.world_size] for whole in wholes]
        pieces = [own.chunk(recipe.accumulate) for own in mine]
        view = epoch if objective.views is None else epoch % objective.views
        coming = material.ahead([piece for some in pieces for piece in some], epoch=view)
        if objective.views is not None:
            # Views are stored one after the other; a step finds its rows and needs no view.
            pieces = [tuple(p + view * len(material) for p in some) for some in pieces]
        for total in sums.values():
            total.zero_()
        trainee.train()
        for step in range(steps):
            rate = learning_rate(recipe, step=progress.step, steps_an_epoch=steps)
            if step_at_once is not None:
                rate_there.fill_(rate)
                seed_piece(epoch, step)
                inputs, target = next(coming)
                assert isinstance(inputs, Tensor)  # texts are not replayed
                step_at_once(inputs, target, pieces[step][0])
            else:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                for index, piece in enumerate(pieces[step]):
                    seed_piece(epoch, step, index)
                    share = len(piece) / len(wholes[step])
                    learn(*next(coming), piece, progress.step, share)
                update()
            objective.after_step()
            progress.step += 1
        losses = {
            name: fabric.all_reduce(total / steps, reduce_op="sum").item()
            for name, total in sums.items()
        }
        _refuse_divergence(losses, student, epoch)
        objective.after_epoch()
        progress.epoch = epoch + 1
        row: dict[str, Any] = {"epoch": epoch + 1, "learning_rate": rate, "losses": losses}
        if is_measured(config, epoch + 1):
            row |= {split: yardstick.rates(student) for split, yardstick in yardsticks.items()}
            progress.history.append(row)
        seconds = time.monotonic() - epoch_began
        progress.timing.append(
            {
                "epoch": epoch + 1,
                "seconds": round(seconds, 3),
                "samples_a_second": round(len(material) / seconds),
                "memory_mib": round(peak_memory(material.device) / 2**20),
            }
        )
        now = time.monotonic()
        stops = fabric.broadcast(time_is_up(deadline))
        ends = progress.epoch == recipe.epochs
        if fabric.is_global_zero:
            if ends or stops or now - kept >= config.machine.save_seconds:
                _keep(folder, digest, progress, student, objective, optimizer)
                kept = time.monotonic()
            each = (now - began) / (epoch + 1 - first_epoch)
            left = each * (recipe.epochs - epoch - 1)
            monitor.epoch(epoch + 1, recipe.epochs, [row], progress.timing[-1], left)
        if stops and not ends:
            return False
    return True


def steps_an_epoch(recipe: Recipe, samples: int) -> int:
    """How many steps an epoch has; a rest of a batch is left out, unless it is all there is."""
    return max(samples // (recipe.batch_size * recipe.accumulate), 1)


def _keep(
    folder: Path,
    digest: str,
    progress: Progress,
    student: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Writes the state after an epoch, which is all that a restart reads, and tells of it."""
    state = {
        "digest": digest,
        "epoch": progress.epoch,
        "step": progress.step,
        "history": progress.history,
        "timing": progress.timing,
        "student": student.state_dict(),
        "trained": objective.trained.state_dict(),
        "objective": objective.state(),
        "optimizer": optimizer.state_dict(),
    }
    save(folder / CHECKPOINT, lambda path: torch.save(state, path))
    _tell(folder, progress)


def _tell(folder: Path, progress: Progress) -> None:
    """Writes what has been reached, for people and reports."""
    write_lines(folder / TIMING, progress.timing)
    write_lines(folder / HISTORY, progress.history)


def _restored(
    folder: Path,
    digest: str,
    student: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
) -> Progress:
    """Goes back to the state of the last epoch, if there is one."""
    path = folder / CHECKPOINT
    if not path.exists():
        if (folder / HISTORY).exists():
            raise InputError(
                f"Expected {path}, the state after the last epoch, but there is no such file; "
                f"remove {folder} to begin again."
            )
        return Progress()
    with state_at(path, of=folder, digest=digest) as state:
        student.load_state_dict(state["student"])
        objective.trained.load_state_dict(state["trained"])
        objective.restore(state["objective"])
        restore_optimizer(optimizer, state["optimizer"])
        return Progress(
            epoch=state["epoch"],
            step=state["step"],
            history=state["history"],
            timing=state["timing"],
        )


def _refuse_divergence(losses: dict[str, float], student: nn.Module, epoch: int) -> None:
    said = [f"{name} = {value}" for name, value in losses.items() if not math.isfinite(value)]
    weights = torch.cat([p.detach().flatten() for p in student.parameters()])
    if not said and not bool(weights.isfinite().all()):
        said = ["weights that are not"]
    if said:
        raise DivergedError(
            f"Expected finite losses and weights, but got {said[0]} in epoch {epoch + 1}; lower "
            "the learning rate or the weight of the term, and the state of the epoch before it is "
            "as it was."
        )
