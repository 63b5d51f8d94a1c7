"""The training loop.

The checkpoint has all that a restart needs; everything else follows from the configuration. The
state of no random generator is saved: the order of an epoch and the dropout of a step are drawn
from seeds that depend on the epoch and the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from flipguard.acceleration.cuda_graphs import CapturedStep
from flipguard.errors import DivergedError
from flipguard.runs.config import Config, is_measured
from flipguard.training.batches import Batch, EpochBatches
from flipguard.training.checkpoint import CheckpointStore, Progress
from flipguard.training.devices import note_or_raise, peak_memory, seed_dropout
from flipguard.training.evaluate import FlipTracker
from flipguard.training.interrupting import interrupted, stop_reason
from flipguard.training.monitor import Monitor
from flipguard.training.outcomes import Stopped
from flipguard.training.trainee import LossParts, Trainee, learning_rate, optimizer_of, unscale


def loop(
    trainee: Trainee,
    batches: EpochBatches,
    trackers: Mapping[str, FlipTracker],
    store: CheckpointStore,
    monitor: Monitor,
    *,
    config: Config,
    fabric: Any,
    captured: bool,
    deadline: float | None,
) -> Progress | Stopped:
    """Train until the last epoch, the deadline or an interruption.

    Resume from the state in the store, if there is one. `config` is that of each model, except for
    its seeds. With `captured`, steps are replayed as CUDA graphs.
    """
    epochs = config.recipe.epochs
    optimizer = optimizer_of(
        config, *trainee.parameters_by_decay(), batches.device, captured=captured
    )
    module, optimizer = fabric.setup(trainee, optimizer)
    progress = store.restore(trainee, optimizer)
    if fabric.broadcast(interrupted()) and progress.epoch < epochs:
        return Stopped("interrupt")  # no epoch has begun, so none has to be finished
    steps = TrainingSteps(
        trainee, module, optimizer, config=config, fabric=fabric, taken=progress.step
    )
    take = steps.take
    if captured:
        take = steps.captured(otherwise=note_or_raise(config, monitor.note))
    began, first_epoch = time.monotonic(), progress.epoch
    for epoch in range(progress.epoch, epochs):
        epoch_began = time.monotonic()
        steps.begin_epoch()
        for pieces in batches.epoch(epoch):
            rate = learning_rate(config.recipe, step=progress.step, steps_an_epoch=batches.steps)
            take(pieces, rate, number=progress.step)
            trainee.after_step()
            progress.step += 1
        losses = steps.mean_losses(batches.steps)
        refuse_divergence(trainee, losses, epoch)
        trainee.after_epoch()
        progress.epoch = epoch + 1
        measured = is_measured(config, epoch + 1)
        asked = trackers if measured else {}
        rates = {name: one.rates(trainee.model, trainee.classes) for name, one in asked.items()}
        rows = _history_rows(epoch, rate, losses, rates, trainee.count)
        if measured:
            progress.add(rows)
        progress.timing.append(_timing(epoch, epoch_began, batches, trainee.count))
        reason = fabric.broadcast(stop_reason(deadline))
        ends = progress.epoch == epochs
        if fabric.is_global_zero:
            store.save(trainee, optimizer, progress, at_once=ends or reason is not None)
            left = (time.monotonic() - began) / (epoch + 1 - first_epoch) * (epochs - epoch - 1)
            monitor.epoch(epoch + 1, epochs, rows, progress.timing[-1], left)
        if reason is not None and not ends:
            return Stopped(reason)
    return progress


class TrainingSteps:
    """Takes optimizer steps, and adds up their losses over an epoch."""

    def __init__(
        self,
        trainee: Trainee,
        module: Any,  # the trainee as the fabric calls it
        optimizer: Any,
        *,
        config: Config,
        fabric: Any,
        taken: int,  # steps taken before
    ) -> None:
        self._trainee, self._module, self._optimizer = trainee, module, optimizer
        self._clip, self._fabric = config.recipe.clip, fabric
        self._sums: LossParts = {}  # sums of the losses over the steps of an epoch
        self._device = next(trainee.parameters()).device
        self._taken = taken

    def begin_epoch(self) -> None:
        """Set the sums of losses to zero."""
        for total in self._sums.values():
            total.zero_()
        self._module.train()

    def take(self, pieces: Iterable[Batch], rate: float | Tensor, *, number: int | Tensor) -> None:
        """Take one step."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        for batch in pieces:
            self._seed(batch)
            losses: LossParts = self._module(batch.inputs, batch.target, batch.indices, number)
            total: Any = sum(losses.values())
            # The losses of all models are summed, so each model gets the gradient of its loss
            # alone. Gradients are averaged over processes, so each process multiplies by their
            # number.
            self._fabric.backward(total.sum() * (batch.share * self._fabric.world_size))
            self._trainee.add_losses(self._sums, losses, batch.share)
        if self._clip is not None:
            unscale(self._fabric, self._optimizer)
            self._trainee.clip(self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def captured(self, *, otherwise: Callable[[str], None] | None) -> Callable[..., None]:
        """Return a function that takes a step as `take` does, but captures and replays it.

        If a step cannot be captured, call `otherwise` with why, or raise if it is None.
        """
        # A replayed step reads these tensors, so they must keep their addresses.
        own_rate = torch.zeros((), device=self._device)
        own_number = torch.tensor(self._taken, device=self._device)

        def step(inputs: Tensor, target: Tensor, indices: Tensor | None = None) -> None:
            # A capture that failed may have left gradients that were never computed.
            self._optimizer.zero_grad()
            batch = Batch(
                inputs=inputs, target=target, indices=indices, share=1.0, dropout_seed=None
            )
            self.take([batch], own_rate, number=own_number)
            own_number.add_(1)

        captured = CapturedStep(step, otherwise=otherwise)

        def take(pieces: Iterable[Batch], rate: float, *, number: int) -> None:  # noqa: ARG001
            (batch,) = pieces
            own_rate.fill_(rate)
            self._seed(batch)
            assert isinstance(batch.inputs, Tensor)  # texts are not replayed
            given = (batch.inputs, batch.target)
            captured(*given, *(() if batch.indices is None else (batch.indices,)))

        return take

    def mean_losses(self, count: int) -> dict[str, list[float]]:
        """Return the mean of each part of the loss over the steps of the epoch, for each model."""
        return {
            name: self._fabric.all_reduce(total / count, reduce_op="sum").tolist()
            for name, total in self._sums.items()
        }

    def _seed(self, batch: Batch) -> None:
        if batch.dropout_seed is not None:
            seed_dropout(batch.dropout_seed, self._device)


def refuse_divergence(trainee: Trainee, losses: Mapping[str, list[float]], epoch: int) -> None:
    """Raise if losses or weights are not finite, and name the models that they belong to."""
    finite = [
        whole and all(math.isfinite(values[index]) for values in losses.values())
        for index, whole in enumerate(trainee.finite())
    ]
    if all(finite):
        return
    # In a fused network one model can make others non-finite, so all of these are named.
    bad = [index for index, whole in enumerate(finite) if not whole]
    parts = {name: values[bad[0]] for name, values in losses.items()}
    what = [f"{name} = {value}" for name, value in parts.items() if not math.isfinite(value)]
    found, lower = (what or ["weights that are not"])[0], "the learning rate"
    if trainee.count > 1:
        names = ", ".join(str(index + 1) for index in bad)
        found += f" of member{'s' * (len(bad) > 1)} {names}"
    else:
        lower += " or the weight of the term"
    kept = " (the checkpoint of the epoch before is unchanged)" if epoch > 0 else ""
    raise DivergedError(
        f"Expected finite losses and weights, but got {found} in epoch {epoch + 1}; lower {lower}"
        f"{kept}."
    )


def _history_rows(
    epoch: int,
    rate: float,
    losses: Mapping[str, list[float]],
    rates: Mapping[str, list[dict[str, Any]]],  # by split; empty if the epoch was not measured
    count: int,
) -> list[dict[str, Any]]:
    """Return the history row of an epoch for each model."""
    return [
        {
            "epoch": epoch + 1,
            "learning_rate": rate,
            "losses": {name: values[index] for name, values in losses.items()},
            **{split: each[index] for split, each in rates.items()},
        }
        for index in range(count)
    ]


def _timing(epoch: int, began: float, batches: EpochBatches, count: int) -> dict[str, Any]:
    """Return each model's share of the time of an epoch, and the memory of all."""
    seconds = time.monotonic() - began
    return {
        "epoch": epoch + 1,
        "seconds": round(seconds / count, 3),
        "samples_a_second": round(batches.samples * count / seconds),
        "memory_mib": round(peak_memory(batches.device) / 2**20),
    }
