"""What a training step minimises: the loss parts of a method, and what they are built from.

The rows that describe methods belong to `flipguard.methods.base`.
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
"""The parts of a loss by name, weighted: their sum is what is minimised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldModelInfo:
    """An old model, and which of its classes are which of new's."""

    name: str
    reference: OldModel
    model: nn.Module
    classes: SharedClasses | None  # None if both know the same, in the same order


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What an objective is built from."""

    options: Mapping[str, Scalar]
    model: nn.Module
    olds: tuple[OldModelInfo, ...]
    classes: int
    steps: int  # of the whole training
    label_smoothing: float
    new_model: Callable[[str], nn.Module]  # another model like the student, by a name of its own
    members: Callable[[], Reference] | None = None  # the ensemble that guides the student
    stored: Callable[[Reference], StoredLogits] | None = None  # of the samples as they are
    views: StoredViews | None = None  # of augmented samples, if the options ask for them
    held_out: Callable[[], Iterator[tuple[Inputs, Tensor]]] | None = None

    def number(self, name: str) -> float:
        """An option that is a number."""
        return number_in(self.options, name)

    def word(self, name: str) -> Any:
        """An option that is a word, one of its choices."""
        return self.options[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch, as the student has just seen it."""

    inputs: Inputs
    target: Tensor
    # Where the samples stand among the training samples; with stored views, among those of all
    # views one after the other.
    places: Tensor
    logits: Tensor
    features: Tensor | None
    number: int | Tensor  # of steps taken before; a tensor where steps are replayed
    model: nn.Module

    def call(self, model: nn.Module | Reference) -> Tensor:
        """Another model's logits on the same inputs, augmented as the student's."""
        from torch import nn

        from flipguard.models import classify

        if isinstance(model, nn.Module):
            return classify(model, self.inputs)
        return model(**self.inputs) if isinstance(self.inputs, dict) else model(self.inputs)


@dataclass(slots=True, kw_only=True)
class Objective:
    """What is minimised, and what has to be trained, stepped and saved along with it."""

    parts: Callable[[Step], LossParts]
    # What the method trains along with the student: one model, or a container of several.
    trained: nn.Module = field(default_factory=lambda: _nothing())
    after_step: Callable[[], None] = lambda: None
    after_epoch: Callable[[], None] = lambda: None
    state: Callable[[], dict[str, Any]] = dict
    restore: Callable[[dict[str, Any]], None] = lambda _: None
    needs_features: bool = False
    # How the student is called, if not plainly.
    forward: Callable[[nn.Module, Inputs], Tensor] | None = None
    # Whether a step may be captured and replayed: what it decides must not be Python's decision.
    replayable: bool = True
    # After how many epochs inputs are augmented as in the first one; never if None.
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
    """Return the option `k`: how many of the highest classes count, or None for all."""
    k = options["k"]
    if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
        raise InputError(f"Expected `k` to be a whole number or none, but got {k!r}.")
    return k


def task_loss(setting: BuildContext, logits: Tensor, target: Tensor) -> Tensor:
    """The task's own loss."""
    import torch.nn.functional as F

    return F.cross_entropy(logits, target, label_smoothing=setting.label_smoothing)


def task_plus_term(setting: BuildContext, name: str, term: Callable[[Step], Tensor]) -> Objective:
    """Cross-entropy and one more term, weighted by the option `weight`."""
    weight = setting.number("weight")

    def parts(step: Step) -> LossParts:
        return {"task": task_loss(setting, step.logits, step.target), name: weight * term(step)}

    return Objective(parts=parts)


def mean_over_old_models(
    setting: BuildContext, term: Callable[[Step, OldModelInfo], Tensor]
) -> Callable[[Step], Tensor]:
    """The mean of a term over all old models: one in an update, several in a chain of them."""

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
    """The task, and a loss of what new and each old model say about the same inputs.

    The losses are built here, once, so that their options are refused before any work.
    """
    losses = {old.name: loss(old) for old in setting.olds}

    def term(step: Step, old: OldModelInfo) -> Tensor:
        answers = {"new": step.logits, "old": step.call(old.reference), "target": step.target}
        found: Tensor = losses[old.name](**answers)
        return found

    return task_plus_term(setting, name, mean_over_old_models(setting, term))
