"""The models that one loop trains, a student or several members, and their optimizer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.errors import DivergedError
from flipguard.fusion import Fused
from flipguard.methods import Objective, Step
from flipguard.models import Inputs, classify, head_of, with_features
from flipguard.runs.config import Config, Recipe
from flipguard.training.evaluate import classes_of

LARGEST = 3e38  # about as much as float32 holds

LossParts: TypeAlias = dict[str, Tensor]
"""The parts of the loss by name, each with one value per model: [m]."""

# These contain models, but are not models.
CONTAINERS = (nn.ModuleDict, nn.ModuleList)

# Settings of kernels: those of this machine, not of the machine where a run was started.
KERNELS = ("capturable", "fused", "foreach")


def learning_rate(recipe: Recipe, *, step: int, steps_an_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0; raise if it is too large.

    >>> recipe = Recipe(schedule="cosine", learning_rate=1.0, epochs=10, warmup=1.0)
    >>> [round(learning_rate(recipe, step=s, steps_an_epoch=2), 3) for s in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.008]
    """
    try:
        rate = _rate(recipe, step, steps_an_epoch)
    except OverflowError:
        rate = math.inf
    # In its first step AdamW divides it by 0.1.
    largest = LARGEST / 10 if recipe.optimizer == "adamw" else LARGEST
    if rate > largest:
        raise DivergedError(
            f"Expected a learning rate of at most {largest:g} at every step, but got {rate:g} at "
            f"step {step}; lower `recipe.learning_rate`, or check `recipe.linear_scaling`."
        )
    return rate


def _rate(recipe: Recipe, step: int, steps_an_epoch: int) -> float:
    peak = recipe.learning_rate
    if recipe.linear_scaling is not None:
        peak *= recipe.batch_size * recipe.accumulate / recipe.linear_scaling
    warmup = recipe.warmup * steps_an_epoch
    if step < warmup:
        return peak * (step + 1) / warmup
    total = recipe.epochs * steps_an_epoch
    done = (step - warmup) / max(total - warmup, 1)
    if recipe.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    if recipe.schedule == "linear":
        return peak * (1 - done)
    if recipe.schedule == "steps":
        passed = sum(step >= epoch * steps_an_epoch for epoch in recipe.milestones)
        return peak * recipe.decay**passed
    return peak


class Trainee(nn.Module, ABC):
    """The m >= 1 models that one loop trains, as one module that returns the parts of their loss.

    One module, so that several processes average all gradients, and one forward pass, so that
    precision is set in one place. The loop minimises the sum of all values of all parts, which
    gives each model the gradient of only that model's loss.
    """

    count: int

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The models, without other modules that are trained along with them."""

    @abstractmethod
    def forward(
        self, inputs: Inputs, target: Tensor, indices: Tensor | None, step: int | Tensor
    ) -> LossParts:
        """Return the parts of the loss for a batch.

        `step` counts the steps taken before; it is a tensor if steps are replayed.
        """

    @abstractmethod
    def classes(self, inputs: Inputs) -> Tensor:
        """Return the classes that each model predicts: [m, n]."""

    @abstractmethod
    def parameters_by_decay(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the trained parameters that always decay, and biases and norms."""

    @abstractmethod
    def clip(self, largest: float) -> None:
        """Scale each model's gradient to at most this norm, independently of the others."""

    @abstractmethod
    def finite(self) -> list[bool]:
        """Return whether all weights of each model are finite."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that changes in training, apart from the optimizer."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state from `state`."""

    def add_losses(self, sums: LossParts, losses: LossParts, share: float) -> None:
        """Add a share of the losses of a batch to their sums over the epoch."""
        for name, part in losses.items():
            if name not in sums:
                sums[name] = torch.zeros_like(part, requires_grad=False)
            sums[name].add_(part.detach(), alpha=share)

    def after_step(self) -> None:
        """Do what a method does after each step."""

    def after_epoch(self) -> None:
        """Do what a method does after each epoch."""


class StudentTrainee(Trainee):
    """A student, and the modules that its method trains along with it."""

    count = 1

    def __init__(self, student: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.student = student
        self.trained = objective.trained
        self._objective = objective
        self._head = head_of(student) if objective.needs_features else None

    @property
    def model(self) -> nn.Module:
        """The student."""
        return self.student

    def forward(
        self, inputs: Inputs, target: Tensor, indices: Tensor | None, step: int | Tensor
    ) -> LossParts:
        """Return the parts of the student's loss, as its method defines them."""
        assert indices is not None  # a single model's batches have them
        features: Tensor | None = None
        if self._head is not None:
            logits, features = with_features(self.student, head=self._head)(inputs)
        elif self._objective.forward is not None:
            logits = self._objective.forward(self.student, inputs)
        else:
            logits = classify(self.student, inputs)
        parts = self._objective.parts(
            Step(
                inputs=inputs,
                target=target,
                places=indices,
                logits=logits,
                features=features,
                number=step,
                model=self.student,
            )
        )
        return {name: part.unsqueeze(0) for name, part in parts.items()}

    def classes(self, inputs: Inputs) -> Tensor:
        """Return the classes that the student predicts: [1, n]."""
        return classes_of(self.student)(inputs)

    def parameters_by_decay(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the matrices, and the vectors, which are biases and norms."""
        trained = [p for p in self.parameters() if p.requires_grad]
        return [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() <= 1]

    def clip(self, largest: float) -> None:
        """Scale the gradient of the student, and of each model that is trained along with it."""
        clip(self.student, largest)
        clip(self.trained, largest)

    def finite(self) -> list[bool]:
        """Return whether all weights of the student are finite."""
        weights = torch.cat([p.detach().flatten() for p in self.student.parameters()])
        return [bool(weights.isfinite().all())]

    def state(self) -> dict[str, Any]:
        """Return the state of the student and of its method."""
        return {
            "student": self.student.state_dict(),
            "trained": self.trained.state_dict(),
            "objective": self._objective.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state of the student and of its method."""
        self.student.load_state_dict(state["student"])
        self.trained.load_state_dict(state["trained"])
        self._objective.restore(state["objective"])

    def after_step(self) -> None:
        """Do what the method does after each step."""
        self._objective.after_step()

    def after_epoch(self) -> None:
        """Do what the method does after each epoch."""
        self._objective.after_epoch()


class GroupTrainee(Trainee):
    """Several models as one network, each trained on the task alone, without a method."""

    def __init__(self, fused: Fused, label_smoothing: float) -> None:
        super().__init__()
        self.fused = fused
        self.count = fused.count
        self._smoothing = label_smoothing

    @property
    def model(self) -> nn.Module:
        """The fused network."""
        return self.fused

    def forward(
        self,
        inputs: Inputs,
        target: Tensor,
        indices: Tensor | None = None,  # noqa: ARG002
        step: int | Tensor = 0,  # noqa: ARG002
    ) -> LossParts:
        """Return each model's cross-entropy."""
        logits = self.fused(inputs)
        targets = target.expand(logits.shape[:2])
        each = F.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            label_smoothing=self._smoothing,
            reduction="none",
        )
        return {"task": each.view(logits.shape[:2]).mean(1)}

    def classes(self, inputs: Inputs) -> Tensor:
        """Return the classes that each model predicts: [m, n]."""
        assert isinstance(inputs, Tensor)  # texts cannot be fused
        # As many activations at once as one model alone would have.
        pieces = torch.split(inputs, max(len(inputs) // self.count, 1))
        # Not compiled: the pieces have many sizes.
        return torch.cat([self.fused.forward(piece).float().argmax(-1) for piece in pieces], 1)

    def parameters_by_decay(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the matrices of the models, and the vectors."""
        return self.fused.decaying()

    def clip(self, largest: float) -> None:
        """Scale each model's gradient to at most this norm, independently of the others."""
        clip(self.fused, largest)

    def finite(self) -> list[bool]:
        """Return whether all weights of each model are finite."""
        found: list[bool] = self.fused.finite().tolist()
        return found

    def state(self) -> dict[str, Any]:
        """Return the state of all models, stacked."""
        return {"members": self.fused.body.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state of all models."""
        self.fused.body.load_state_dict(state["members"])

    def add_losses(self, sums: LossParts, losses: LossParts, share: float) -> None:
        """Add a share of the losses of a batch to their sums over the epoch, in float32.

        The product is rounded before the sum, so that histories of groups keep their exact numbers.
        """
        for name, part in losses.items():
            if name not in sums:
                sums[name] = torch.zeros(self.count, device=part.device)
            sums[name].add_(part.detach() * share)


def clip(modules: nn.Module, largest: float) -> None:
    """Clip the gradient of a model, or of each model in a container, to a norm.

    A model must end with the weights that it would have if it were trained alone. So its norm must
    not include gradients of another model, such as a twin, another member or a projection. It is
    not checked whether gradients are finite, because the host would have to wait for the device.
    """
    if isinstance(modules, Fused):
        modules.clip(largest)
    elif isinstance(modules, CONTAINERS):
        for module in modules.children():
            clip(module, largest)
    else:
        nn.utils.clip_grad_norm_(list(modules.parameters()), largest)


def unscale(fabric: Any, optimizer: Any) -> None:
    """Undo the scaling of gradients in 16-mixed precision; do nothing in other precisions."""
    fabric.strategy.precision.unscale_gradients(getattr(optimizer, "optimizer", optimizer))


def optimizer_of(
    config: Config,
    decaying: Sequence[nn.Parameter],
    others: Sequence[nn.Parameter],
    device: torch.device,
    *,
    captured: bool = False,
) -> torch.optim.Optimizer:
    """Return the recipe's optimizer for weights that decay, and for biases and norms."""
    recipe = config.recipe
    of_others = recipe.weight_decay if recipe.decay_biases_and_norms else 0.0
    groups = [
        {"params": list(decaying), "weight_decay": recipe.weight_decay},
        {"params": list(others), "weight_decay": of_others},
    ]
    # One kernel for all weights; it does not fit scaled gradients, which are unscaled before.
    at_once = True if device.type == "cuda" and config.machine.precision != "16-mixed" else None
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(
            groups, lr=recipe.learning_rate, fused=at_once, capturable=captured
        )
    return torch.optim.SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        fused=at_once,
    )


def restore_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Load an optimizer's state, which may have been saved on another device."""
    for group in state["param_groups"]:
        group |= {name: optimizer.defaults[name] for name in KERNELS if name in group}
        group["lr"] = float(group["lr"])  # a tensor on the device if steps were replayed
    optimizer.load_state_dict(state)
