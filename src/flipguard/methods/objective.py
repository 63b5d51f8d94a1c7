"""Objectives: what a training step minimises, and what an objective is built from.

The descriptions of methods belong to `flipguard.methods.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from flipguard.errors import InputError, listed
from flipguard.methods.base import Options, Scalar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flipguard.losses import SharedClasses
    from flipguard.models import Inputs
    from flipguard.references import OldModel, Reference, StoredLogits
    from flipguard.references.stored_logits import StoredViews


LossParts: TypeAlias = "dict[str, Tensor]"
"""The weighted parts of a loss, by name. Their sum is minimised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldModelInfo:
    """An old model, and how its classes map to the new model's."""

    name: str
    reference: OldModel
    model: nn.Module
    classes: SharedClasses | None  # None if both models have the same classes in the same order


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The models, options and data that an objective is built from."""

    options: Mapping[str, Scalar]
    model: nn.Module
    olds: tuple[OldModelInfo, ...]
    classes: int
    steps: int  # of the whole training
    label_smoothing: float
    new_model: Callable[[str], nn.Module]  # builds another model like the student, by name
    members: Callable[[], Reference] | None = None  # returns the ensemble
    stored: Callable[[Reference], StoredLogits] | None = None  # of samples without augmentation
    views: StoredViews | None = None  # of augmented samples, if the options ask for them
    held_out: Callable[[], Iterator[tuple[Inputs, Tensor]]] | None = None

    def number(self, name: str) -> float:
        """Return an option that is a number."""
        return number_in(self.options, name)

    def word(self, name: str) -> Any:
        """Return an option that is one of its choices."""
        return self.options[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch, with the student's outputs for it."""

    inputs: Inputs
    target: Tensor
    # Indices of the samples in the training set; with stored views, in the views placed one after
    # the other.
    places: Tensor
    logits: Tensor
    features: Tensor | None
    number: int | Tensor  # steps taken before this one; a tensor if steps are replayed
    model: nn.Module

    def call(self, model: nn.Module | Reference) -> Tensor:
        """Return another model's logits on the same augmented inputs."""
        from torch import nn

        from flipguard.models import classify

        if isinstance(model, nn.Module):
            return classify(model, self.inputs)
        return model(**self.inputs) if isinstance(self.inputs, dict) else model(self.inputs)


@dataclass(slots=True, kw_only=True)
class Objective:
    """What a run minimises, and what is trained, stepped and saved along with the student."""

    parts: Callable[[Step], LossParts]
    # What the method trains along with the student: one module, or a container of several.
    trained: nn.Module = field(default_factory=lambda: _nothing())
    after_step: Callable[[], None] = lambda: None
    after_epoch: Callable[[], None] = lambda: None
    state: Callable[[], dict[str, Any]] = dict
    restore: Callable[[dict[str, Any]], None] = lambda _: None
    needs_features: bool = False
    # How the student is called, if it is not called directly.
    forward: Callable[[nn.Module, Inputs], Tensor] | None = None
    # Whether a step may be captured and replayed. Its decisions must not be made in Python.
    replayable: bool = True
    # Number of epochs after which the augmentations repeat; None if they never repeat.
    views: int | None = None


def _nothing() -> nn.Module:
    from torch import nn

    return nn.ModuleDict()


def number_in(options: Options, name: str) -> float:
    """Return an option that is a number."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"Expected `{name}` to be a number, but got {listed([value])}.")
    return float(value)


def top_in(options: Options) -> int | None:
    """Return the option `k`: the number of highest classes to use, or None for all."""
    k = options["k"]
    if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
        raise InputError(f"Expected `k` to be a whole number or none, but got {k!r}.")
    return k


def task_loss(setting: BuildContext, logits: Tensor, target: Tensor) -> Tensor:
    """Return the task's loss, the cross-entropy."""
    import torch.nn.functional as F

    return F.cross_entropy(logits, target, label_smoothing=setting.label_smoothing)


def task_alone(setting: BuildContext) -> Objective:
    """Return an objective with the task's loss alone."""

    def parts(step: Step) -> LossParts:
        return {"task": task_loss(setting, step.logits, step.target)}

    return Objective(parts=parts)


def task_plus_term(setting: BuildContext, name: str, term: Callable[[Step], Tensor]) -> Objective:
    """Return an objective of the task's loss and one more term, with the option `weight`."""
    weight = setting.number("weight")

    def parts(step: Step) -> LossParts:
        return {"task": task_loss(setting, step.logits, step.target), name: weight * term(step)}

    return Objective(parts=parts)


def mean_over_old_models(
    setting: BuildContext, term: Callable[[Step, OldModelInfo], Tensor]
) -> Callable[[Step], Tensor]:
    """Return a function that takes the mean of a term over all old models.

    An update has one old model, and a chain of updates may have several.
    """

    def mean(step: Step) -> Tensor:
        terms = [term(step, old) for old in setting.olds]
        total = terms[0]
        for one in terms[1:]:
            total = total + one
        return total / len(terms)

    return mean


def pull_to_old(
    setting: BuildContext, name: str, loss: Callable[[OldModelInfo], nn.Module]
) -> Objective:
    """Return an objective of the task's loss and a loss between the new and the old models' logits.

    The losses are built once, here, so that bad options are refused before any work.
    """
    losses = {old.name: loss(old) for old in setting.olds}

    def term(step: Step, old: OldModelInfo) -> Tensor:
        answers = {"new": step.logits, "old": step.call(old.reference), "target": step.target}
        found: Tensor = losses[old.name](**answers)
        return found

    return task_plus_term(setting, name, mean_over_old_models(setting, term))
