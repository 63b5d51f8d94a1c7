"""What a method is: a row with all that is known of it, and an objective that is built for a run.

Rows are read where torch is not installed, so modules of methods import torch in functions only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flipguard.errors import InputError, listed, nearest
from flipguard.methods.needs import Needs, RunFacts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flipguard.losses import SharedClasses
    from flipguard.methods.views import Views
    from flipguard.models import Inputs
    from flipguard.references import OldModel, Reference, StoredLogits
    from flipguard.references.views import StoredViews

Scalar: TypeAlias = bool | int | float | str | None
Options: TypeAlias = Mapping[str, Scalar]
Parts: TypeAlias = "dict[str, Tensor]"
"""The parts of a loss by name, weighted: their sum is what is minimised."""

NEEDS: Mapping[str, str] = {
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

FORWARD = 1 / 3  # the share of a training step that a forward pass takes


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
    sentence: str
    choices: tuple[str, ...] = ()
    printed: Printed | None = None
    # Added after runs had been named: at its default it is not part of the name of a run.
    added: bool = False
    # What it is a number of, where it cannot be more than a study's scale has.
    counts: Literal["members", "classes"] | None = None

    def of(self, options: Options) -> Scalar:
        """Return its value among some options; the default if it is not among them."""
        return options.get(self.name, self.default)

    def whole(self, options: Options) -> int:
        """Return its value, a whole number."""
        value = self.of(options)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f"Expected `{self.name}` to be a whole number, but got {listed([value])}."
            )
        return value


PRESET = Option(
    name="preset",
    default=None,
    sentence="Use the paper's value for every option that is not given, if the paper states one.",
    choices=("paper",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train: all that is known of it, and the function that builds its objective."""

    name: str
    sentence: str
    paper: str
    build: Callable[[Setting], Objective] | None  # None: the result is the mean of its members
    options: tuple[Option, ...] = ()
    needs: Callable[[Options], Needs] = lambda _: Needs()
    # Refuses what only this method can refuse, before data are read.
    check: Callable[[Options, RunFacts], None] = lambda *_: None
    # The model and the options of a run, from its model, the options given, and all options.
    model_spec: Callable[[str, Options, Options], tuple[str, Options]] = lambda model, _, options: (
        model,
        options,
    )
    # Which views of the samples are stored, by the number of classes.
    views: Callable[[Options, int], Views | None] = lambda *_: None
    # How long a step takes in steps of an untreated model, by how many other models it asks.
    cost: Callable[[Options, int], float] = lambda _, others: 1 + FORWARD * others
    unlike: tuple[str, ...] = ()  # differences from the paper that no option changes
    # Differences from the paper that depend on the number of classes.
    unlike_at: Callable[[Options, int], tuple[str, ...]] = lambda *_: ()
    revisions: tuple[Revision, ...] = ()  # changes of its formula, oldest first
    # Options that were removed, with the only value that a run may still have. They stay part of
    # a run's name, so that earlier runs keep theirs.
    retired: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def settable(self) -> tuple[Option, ...]:
        """All options that a user may set, with the preset for them."""
        return (*self.options, PRESET) if self.options else ()

    @property
    def is_mean(self) -> bool:
        """Whether the result is the mean of its members, and nothing else is trained."""
        return self.build is None

    def objective(self, setting: Setting) -> Objective:
        """Build the objective of a run."""
        if self.build is None:
            raise InputError(
                f"Expected the members of `{self.name}` to be trained apart, as runs of `none`, "
                "but got one model to train."
            )
        return self.build(setting)

    def default_needs(self) -> Needs:
        """Return what it cannot do without if no option is given."""
        return self.needs(self.complete({}))

    def needed(self) -> str:
        """What it cannot do without, in words; nothing if it can do without all."""
        return ", ".join(NEEDS[name] for name in self.default_needs().names)

    def asked_members(self, options: Options) -> int | None:
        """Return how many members some of the options ask for; None if they do not say."""
        for option in self.options:
            if option.counts == "members" and option.name in options:
                return option.whole(options)
        return None

    def at_most(self, options: Options, *, members: int, classes: int) -> dict[str, Scalar]:
        """Return options that ask for no more members than that, and for all of fewer classes."""
        found = dict(options)
        for option in self.options:
            value = found.get(option.name)
            if option.counts is None or not isinstance(value, int):
                continue
            if option.counts == "members":
                found[option.name] = min(value, members)
            elif value >= classes:
                found[option.name] = None  # all of them
        return found

    def named(self, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the options that are part of the name of a run.

        Runs from before an option was added or removed keep their names: an option that was added
        later is left out if it has its default, and one that was removed has its last value.
        """
        usual = {option.name: option.default for option in self.options if option.added}
        kept = {n: v for n, v in options.items() if n not in usual or v != usual[n]}
        return {**self.retired, **kept}

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
        if self.needs(options).held_out:
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

    parts: Callable[[Step], Parts]
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


def task(setting: Setting, logits: Tensor, target: Tensor) -> Tensor:
    """The task's own loss."""
    import torch.nn.functional as F

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


WEIGHT = Option(name="weight", default=1.0, sentence="Weight of the term next to the task's loss.")
