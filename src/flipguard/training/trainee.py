"""What one loop trains: a student with its objective, or several models fused into one network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.fusion import Fused
from flipguard.methods import Objective, Step
from flipguard.models import Inputs, classify, head_of, with_features
from flipguard.training.clipping import clip
from flipguard.training.evaluate import classes_of

LossParts: TypeAlias = dict[str, Tensor]
"""The parts of the loss by name, each with one value per model: [m]."""


class Trainee(nn.Module, ABC):
    """The m >= 1 models that one loop trains, as one module that returns the parts of their loss.

    One module, so that several processes average all gradients, and one forward pass, so that
    precision is set in one place. The loop minimises the sum of all values of all parts, which
    gives each model the gradient of its own loss.
    """

    count: int

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The models themselves, without what is trained along with them."""

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
        """Return the trained parameters that decay, and biases and norms, which do not."""

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
        """Go back to a state."""

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
    """A student, and what its method trains along with it."""

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
        """Return the matrices, which decay, and the vectors, which do not."""
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
        """Go back to a state of the student and of its method."""
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
    """Untreated models as one network; each learns the task alone."""

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
        """Return what is a matrix in each model, and what is a vector, which does not decay."""
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
        """Go back to a state of all models."""
        self.fused.body.load_state_dict(state["members"])

    def add_losses(self, sums: LossParts, losses: LossParts, share: float) -> None:
        """Add a share of the losses of a batch to their sums over the epoch, in float32.

        Rounded as in every history of a group: the product by itself, in any precision of training.
        """
        for name, part in losses.items():
            if name not in sums:
                sums[name] = torch.zeros(self.count, device=part.device)
            sums[name].add_(part.detach() * share)
