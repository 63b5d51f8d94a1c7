"""The classes that describe a method and its options.

Descriptions are read where torch is not installed, so the modules of this package import torch
inside functions only. Objectives, which a method builds for a run, belong to
`flipguard.methods.objective`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from flipguard.errors import InputError, listed, nearest
from flipguard.methods.needs import Needs, RunFacts

if TYPE_CHECKING:
    from flipguard.methods.elodi import ViewOptions
    from flipguard.methods.objective import BuildContext, Objective

Scalar: TypeAlias = bool | int | float | str | None
Options: TypeAlias = Mapping[str, Scalar]

NEEDS: Mapping[str, str] = {
    "old": "an old run",
    "one_old": "exactly one",
    "same_classes": "the same classes as the old model",
    "same_layout": "the same architecture as the old model",
    "members": "ensemble members, which it trains",
    "held_out": "some training samples, which are held out",
}

# The kind of value that an option must have, by the type of its default.
KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
}


HELD_OUT = 0.1
"""Share of the training samples that is held out for methods that need held-out samples."""

FORWARD = 1 / 3  # cost of a forward pass, as a share of a training step


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The paper's value of an option, and what any other value changes."""

    value: Scalar
    words: str | None = None
    # How a weight of the paper is written with another value.
    weight: str | None = None
    formula: bool = False  # whether another value changes the equation, not just a strength
    only: tuple[str, Scalar] | None = None  # applies only if this other option has this value


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting of a method: a number, a word or a truth value."""

    name: str
    default: Scalar
    # An option with this value is left out of a run's key. For a new option, it is the value that
    # describes what earlier runs did. It never changes, even if the default does.
    key_default: Scalar
    sentence: str
    choices: tuple[str, ...] = ()
    printed: Printed | None = None
    # What the option counts, if a study's scale limits it.
    counts: Literal["members", "classes"] | None = None
    is_weight: bool = False  # whether it weighs a term of the loss

    def of(self, options: Options) -> Scalar:
        """Return this option's value in `options`, or its default if it is not given."""
        return options.get(self.name, self.default)

    def whole(self, options: Options) -> int:
        """Return this option's value as a whole number."""
        value = self.of(options)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f"Expected `{self.name}` to be a whole number, but got {listed([value])}."
            )
        return value


PRESET = Option(
    name="preset",
    default=None,
    key_default=None,
    sentence="Use the paper's value for every option that is not given, if the paper states one.",
    choices=("paper",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method: its description, its options, and how its objective is built."""

    name: str
    sentence: str
    paper: str
    build: Callable[[BuildContext], Objective]
    # Whether the result is the mean of the members, so that no other model is trained.
    is_mean: bool = False
    options: tuple[Option, ...] = ()
    needs: Callable[[Options], Needs] = lambda _: Needs()
    # Raises an error for settings that this method cannot use, before data are read.
    check: Callable[[Options, RunFacts], None] = lambda *_: None
    # Takes the model, the options given, and all options. Returns the model and options of the run.
    model_spec: Callable[[str, Options, Options], tuple[str, Options]] = lambda model, _, options: (
        model,
        options,
    )
    # The stored views of the samples, from the options and the number of classes.
    views: Callable[[Options, int], ViewOptions | None] = lambda *_: None
    # Cost of a training step, in steps of an untreated model, from the options and the number of
    # other models that the step calls.
    cost: Callable[[Options, int], float] = lambda _, others: 1 + FORWARD * others
    unlike: tuple[str, ...] = ()  # differences from the paper that no option changes
    revisions: tuple[Revision, ...] = ()  # changes of its formula, oldest first
    # Removed options, with the only value that a run may still have. They stay part of a run's
    # name, so that the names of earlier runs do not change.
    retired: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def settable(self) -> tuple[Option, ...]:
        """All options that a user may set, with the preset if there are any."""
        return (*self.options, PRESET) if self.options else ()

    def default_needs(self) -> Needs:
        """Return what the method needs if no option is given."""
        return self.needs(self.complete({}))

    def needed(self) -> str:
        """Return what the method needs, in words; an empty string if it needs nothing."""
        return ", ".join(NEEDS[name] for name in self.default_needs().names)

    def asked_members(self, options: Options) -> int | None:
        """Return the number of members that the options ask for, or None if they do not set it."""
        for option in self.options:
            if option.counts == "members" and option.name in options:
                return option.whole(options)
        return None

    def at_most(self, options: Options, *, members: int, classes: int) -> dict[str, Scalar]:
        """Return the options with at most `members` members.

        A number of classes that is not below `classes` becomes None, which means all classes.
        """
        found = dict(options)
        for option in self.options:
            value = found.get(option.name)
            if option.counts is None or not isinstance(value, int):
                continue
            if option.counts == "members":
                found[option.name] = min(value, members)
            elif value >= classes:
                found[option.name] = None  # all classes
        return found

    @property
    def printed_formula(self) -> dict[str, Scalar]:
        """The paper's values of the options that change an equation, not just a strength."""
        return {
            option.name: option.printed.value
            for option in self.options
            if option.printed is not None and option.printed.formula
        }

    @property
    def key_defaults(self) -> dict[str, Scalar]:
        """The values at which options are left out of a run's key."""
        return {option.name: option.key_default for option in self.options}

    def complete(self, given: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return all options: the given ones, checked, and the preset or default for the others.

        The preset itself is left out, because it only stands for the values of other options.

        >>> from flipguard.methods import METHODS
        >>> METHODS["fd-lm"].complete({"preset": "paper"})["class_reduction"]
        'sum'
        """
        known = {option.name: option for option in self.settable}
        unknown = [name for name in given if name not in known]
        if unknown:
            if not known:
                raise InputError(
                    f"Expected no options, because `{self.name}` has none, but got "
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
        """Yield a sentence for each difference from the paper that these options make.

        With `formula_only`, yield only the differences that change an equation.

        >>> from flipguard.methods import METHODS
        >>> skl = METHODS["skl"]
        >>> list(skl.departures(skl.complete({"preset": "paper"})))
        []
        """
        for option, printed in self._departing(options):
            if formula_only and not printed.formula:
                continue
            value = _as_text(options[option.name])
            because = f": {printed.words}" if printed.words else ""
            theirs = _as_text(printed.value)
            yield f"{option.name} = {value}, {theirs} in the paper{because}"
        if self.needs(options).held_out:
            yield f"holds out {HELD_OUT:.0%} of the training samples"
        yield from self.unlike

    def default_departures(self, named: Mapping[str, Scalar] | None = None) -> list[str]:
        """Return the differences from the paper with no options except those of the name."""
        return list(self.departures(self.complete(named or {})))

    def default_weights(self, named: Mapping[str, Scalar] | None = None) -> list[str]:
        """Return how a weight of the paper is written with our defaults; empty without weights.

        >>> from flipguard.methods import METHODS
        >>> METHODS["fd-lm"].default_weights()
        ['weight = C w for w in the paper, with C classes']
        >>> METHODS["entropy"].default_weights()
        ['alpha as in the paper']
        """
        departing = self._departing(self.complete(named or {}))
        if found := [printed.weight for _, printed in departing if printed.weight]:
            return found
        names = " and ".join(one.name for one in self.options if one.is_weight)
        return [f"{names} as in the paper"] if names else []

    def _departing(self, options: Mapping[str, Scalar]) -> Iterator[tuple[Option, Printed]]:
        """Yield the options that have another value than the paper's."""
        for option in self.options:
            printed = option.printed
            if printed is None or options[option.name] == printed.value:
                continue
            if printed.only is None or options[printed.only[0]] == printed.only[1]:
                yield option, printed

    def changes(self, facts: Set[Fact]) -> tuple[str, ...]:
        """Return the changes of the formula for runs with these facts, oldest first."""
        return tuple(one.words for one in self.revisions if one.where <= facts)

    def formula(self, facts: Set[Fact]) -> int:
        """Return the number of changes of the formula for runs with these facts."""
        return len(self.changes(facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A change of a method's formula, after which earlier results are out of date."""

    words: str  # what the change was
    where: frozenset[Fact]  # only runs with all of these facts change


Fact: TypeAlias = Literal["clip", "new_classes", "other_model"]
"""A property of a run that decides whether a revision applies to it."""


def format_value(value: Scalar) -> str:
    """Return a value as written in a configuration and after ``--set options.NAME=``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_text(value: Scalar) -> str:
    return "none" if value is None else format_value(value)


def _checked(
    method: str, option: Option, given: Mapping[str, Scalar], *, printed: bool = False
) -> Scalar:
    if option.name not in given:
        of_paper = option.printed if printed else None
        return option.default if of_paper is None else of_paper.value
    value, default = given[option.name], option.default
    if value == "none" and value not in option.choices:  # "none" on the command line means None
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
            f"Expected `{option.name}` of `{method}` to be a finite number of at least 0, but got "
            f"{listed([value])}."
        )
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and value is not None and type(value) is not type(default):
        raise InputError(
            f"Expected `{option.name}` of `{method}` to be {KINDS[type(default)]}, such as "
            f"{format_value(default)}, but got {listed([value])}."
        )
    return value


def _is_below_nothing(value: Scalar) -> bool:
    """Whether a value is a number that is negative, infinite or not a number."""
    return isinstance(value, int | float) and not (math.isfinite(value) and value >= 0)


WEIGHT = Option(
    name="weight",
    default=1.0,
    key_default=1.0,
    sentence="Weight of the method's term, which is added to the task's loss.",
    is_weight=True,
)
