"""What a method is: a row that describes it, and an objective that is built for a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.errors import InputError, listed, nearest
from flipguard.losses import SharedClasses
from flipguard.methods.companions import Companions
from flipguard.models import Inputs, classify
from flipguard.references import OldModel, Reference, StoredLogits
from flipguard.references.views import StoredViews

Scalar: TypeAlias = bool | int | float | str | None
Parts: TypeAlias = dict[str, Tensor]
"""The parts of a loss by name, weighted: their sum is what is minimised."""

Need: TypeAlias = Literal["old", "one_old", "same_classes", "same_layout", "members", "held_out"]
"""What a method cannot do without; a run that lacks it is refused before any work."""


NEEDS: Mapping[Need, str] = {
    "old": "an old run",
    "one_old": "exactly one",
    "same_classes": "old's classes",
    "same_layout": "old's architecture",
    "members": "members, which it trains",
    "held_out": "a part of the training samples to measure on",
}

# What an option must be, by what its default is.
KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
}


HELD_OUT = 0.1
"""The share of the training samples that is held out for a method that measures on samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The value of an option in the paper, and what another value changes."""

    value: Scalar
    words: str | None = None
    formula: bool = False  # whether another value changes the equation, not just a strength
    only: tuple[str, Scalar] | None = None  # another option, and the value of it that is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A number or word that a method may be told."""

    name: str
    default: Scalar
    # With this value the option is no part of the key of a run. Of a new option: the value that
    # says what runs did before. It never changes, even if the default does.
    key_default: Scalar
    sentence: str
    choices: tuple[str, ...] = ()
    printed: Printed | None = None


PRESET = Option(
    name="preset",
    default=None,
    key_default=None,
    sentence="Use the paper's value for every option that is not given, if the paper states one.",
    choices=("paper",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train: frozen data, and the function that builds its objective."""

    name: str
    sentence: str
    paper: str
    build: Callable[[Setting], Objective]
    options: tuple[Option, ...] = ()
    needs: frozenset[Need] = frozenset()
    unlike: tuple[str, ...] = ()  # differences from the paper that no option changes
    revisions: tuple[Revision, ...] = ()  # changes of its formula, oldest first

    @property
    def settable(self) -> tuple[Option, ...]:
        """All options that a user may set, with the preset for them."""
        return (*self.options, PRESET) if self.options else ()

    def needed(self) -> str:
        """What it cannot do without, in words; nothing if it can do without all."""
        return ", ".join(words for need, words in NEEDS.items() if need in self.needs)

    @property
    def key_defaults(self) -> dict[str, Scalar]:
        """The values with which options are no part of the key of a run."""
        return {option.name: option.key_default for option in self.options}

    def complete(self, given: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return all options: the given ones, checked, and the preset or defaults for the others.

        The preset itself is not among them, because it only stands for their values.

        >>> from flipguard.methods import METHODS
        >>> METHODS["fd-lm"].complete({"preset": "paper"})["class_reduction"]
        'sum'
        """
        known = {option.name: option for option in self.settable}
        unknown = [name for name in given if name not in known]
        if unknown:
            if not known:
                raise InputError(
                    f"Expected no options of `{self.name}`, which has none, but got "
                    f"{listed(unknown)}; leave them out."
                )
            where = f"`flipguard methods {self.name}` lists all"
            raise InputError(
                f"Expected the options of `{self.name}`, but got {listed(unknown)}; "
                + nearest(unknown[0], known, all_in=where)
            )
        printed = _checked(self.name, PRESET, given) == "paper"
        return {
            option.name: _checked(self.name, option, given, printed=printed)
            for option in self.options
        }

    def departures(
        self, options: Mapping[str, Scalar], *, formula_only: bool = False
    ) -> Iterator[str]:
        """Yield each difference from the paper with these options, in words.

        With `formula_only`, leave out differences that do not change an equation.

        >>> from flipguard.methods import METHODS
        >>> skl = METHODS["skl"]
        >>> list(skl.departures(skl.complete({"preset": "paper"})))
        []
        """
        for option in self.options:
            value, printed = options[option.name], option.printed
            if printed is None or value == printed.value:
                continue
            if printed.only is not None and options[printed.only[0]] != printed.only[1]:
                continue
            if formula_only and not printed.formula:
                continue
            because = f": {printed.words}" if printed.words else ""
            yield f"{option.name} = {_said(value)}, {_said(printed.value)} in the paper{because}"
        if "held_out" in self.needs or options.get("guide") == "calibrated":
            yield f"learns from {HELD_OUT:.0%} fewer samples, which are held out"
        yield from self.unlike

    def default_departures(self, named: Mapping[str, Scalar] | None = None) -> list[str]:
        """The differences from the paper if no option is given, except by the method's name."""
        return list(self.departures(self.complete(named or {})))

    def changes(self, facts: Set[Fact]) -> tuple[str, ...]:
        """How the formula has changed for runs with these facts, oldest change first."""
        return tuple(one.words for one in self.revisions if one.where <= facts)

    def formula(self, facts: Set[Fact]) -> int:
        """How often the formula has changed for runs with these facts."""
        return len(self.changes(facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A change of a method's formula, after which earlier results are not those of the method."""

    words: str  # what is different now
    where: frozenset[Fact]  # it changes only runs with all of these facts


Fact: TypeAlias = Literal["clip", "new_classes", "other_model"]
"""A property of a run that decides whether a change of a formula applies to it."""


def written(value: Scalar) -> str:
    """A value as it is written in a configuration, and behind ``--set options.NAME=``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _said(value: Scalar) -> str:
    return "none" if value is None else written(value)


def _checked(
    method: str, option: Option, given: Mapping[str, Scalar], *, printed: bool = False
) -> Scalar:
    if option.name not in given:
        of_paper = option.printed if printed else None
        return option.default if of_paper is None else of_paper.value
    value, default = given[option.name], option.default
    if value == "none" and value not in option.choices:  # as a person writes it
        value = None
    if value is None and default is None:
        return None
    if option.choices and value not in option.choices:
        raise InputError(
            f"Expected `{option.name}` of `{method}` to be one of {', '.join(option.choices)}, but "
            f"got {listed([value])}."
        )
    if _is_below_nothing(value):
        raise InputError(
            f"Expected `{option.name}` of `{method}` to be a number from 0 on, but got "
            f"{listed([value])}."
        )
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and value is not None and type(value) is not type(default):
        raise InputError(
            f"Expected `{option.name}` of `{method}` to be {KINDS[type(default)]}, such as "
            f"{written(default)}, but got {listed([value])}."
        )
    return value


def _is_below_nothing(value: Scalar) -> bool:
    """Whether it is a number that no weight, count, temperature or share can be."""
    return isinstance(value, int | float) and not (math.isfinite(value) and value >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """An old model, and which of its classes are which of new's."""

    name: str
    reference: OldModel
    model: nn.Module
    classes: SharedClasses | None  # None if both know the same, in the same order


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an objective is built from."""

    options: Mapping[str, Scalar]
    model: nn.Module
    olds: tuple[Old, ...]
    classes: int
    steps: int  # of the whole training
    label_smoothing: float
    new_model: Callable[[str], nn.Module]  # another model like the student, by a name of its own
    members: Callable[[], Reference] | None = None  # the ensemble that guides the student
    stored: Callable[[Reference], StoredLogits] | None = None  # of the samples as they are
    views: StoredViews | None = None  # of augmented samples, if the options ask for them
    held_out: Callable[[], Iterator[tuple[Inputs, Tensor]]] | None = None
    # So many more models like the student, to be trained in its loop.
    companions: Callable[[int], Companions] | None = None

    def number(self, name: str) -> float:
        """An option that is a number."""
        value = self.options[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"Expected `{name}` to be a number, but got {listed([value])}.")
        return float(value)

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
        if isinstance(model, nn.Module):
            return classify(model, self.inputs)
        return model(**self.inputs) if isinstance(self.inputs, dict) else model(self.inputs)


@dataclass(slots=True, kw_only=True)
class Objective:
    """What is minimised, and what has to be trained, stepped and saved along with it."""

    parts: Callable[[Step], Parts]
    # What the method trains along with the student: one model, or a container of several.
    trained: nn.Module = field(default_factory=lambda: nn.ModuleDict())
    after_step: Callable[[], None] = lambda: None
    after_epoch: Callable[[], None] = lambda: None
    state: Callable[[], dict[str, Any]] = dict
    restore: Callable[[dict[str, Any]], None] = lambda _: None
    needs_features: bool = False
    # How the student is called, if not plainly.
    forward: Callable[[nn.Module, Inputs], Tensor] | None = None
    # Which weights decay: not vectors, that is biases and norms.
    decays: Callable[[nn.Parameter], bool] = lambda parameter: parameter.dim() > 1
    facts: Mapping[str, Any] = field(default_factory=dict)  # what `run.json` says of it
    # Whether a step may be captured and replayed: what it decides must not be Python's decision.
    replayable: bool = True
    # After how many epochs inputs are augmented as in the first one; never if None.
    views: int | None = None


def task(setting: Setting, logits: Tensor, target: Tensor) -> Tensor:
    """The task's own loss."""
    return F.cross_entropy(logits, target, label_smoothing=setting.label_smoothing)


def with_task(setting: Setting, name: str, term: Callable[[Step], Tensor]) -> Objective:
    """Cross-entropy and one more term, weighted by the option `weight`."""
    weight = setting.number("weight")

    def parts(step: Step) -> Parts:
        return {"task": task(setting, step.logits, step.target), name: weight * term(step)}

    return Objective(parts=parts)


def over_olds(setting: Setting, term: Callable[[Step, Old], Tensor]) -> Callable[[Step], Tensor]:
    """The mean of a term over all old models: one in an update, several in a chain of them."""

    def mean(step: Step) -> Tensor:
        terms = [term(step, old) for old in setting.olds]
        total = terms[0]
        for one in terms[1:]:
            total = total + one
        return total / len(terms)

    return mean


def beside_old(setting: Setting, name: str, loss: Callable[[Old], nn.Module]) -> Objective:
    """The task, and a loss of what new and each old model say about the same inputs.

    The losses are built here, once, so that their options are refused before any work.
    """
    losses = {old.name: loss(old) for old in setting.olds}

    def term(step: Step, old: Old) -> Tensor:
        answers = {"new": step.logits, "old": step.call(old.reference), "target": step.target}
        found: Tensor = losses[old.name](**answers)
        return found

    return with_task(setting, name, over_olds(setting, term))


WEIGHT = Option(
    name="weight",
    default=1.0,
    key_default=1.0,
    sentence="Weight of the term next to the task's loss.",
)
