"""What a method is: a row with all that is known of it, and an objective that is built for a run.

Rows are read where torch is not installed, so modules of methods import torch in functions only.
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
    # With this value the option is no part of the key of a run. Of a new option: the value that
    # says what runs did before. It never changes, even if the default does.
    key_default: Scalar
    sentence: str
    choices: tuple[str, ...] = ()
    printed: Printed | None = None
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
    key_default=None,
    sentence="Use the paper's value for every option that is not given, if the paper states one.",
    choices=("paper",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train: all that is known of it, and the function that builds its objective."""

    name: str
    sentence: str
    paper: str
    build: Callable[[BuildContext], Objective] | None  # None: the result is the mean of its members
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
    views: Callable[[Options, int], ViewOptions | None] = lambda *_: None
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

    def objective(self, setting: BuildContext) -> Objective:
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


def format_value(value: Scalar) -> str:
    """A value as it is written in a configuration, and behind ``--set options.NAME=``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _said(value: Scalar) -> str:
    return "none" if value is None else format_value(value)


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
            f"{format_value(default)}, but got {listed([value])}."
        )
    return value


def _is_below_nothing(value: Scalar) -> bool:
    """Whether it is a number that no weight, count, temperature or share can be."""
    return isinstance(value, int | float) and not (math.isfinite(value) and value >= 0)


WEIGHT = Option(
    name="weight",
    default=1.0,
    key_default=1.0,
    sentence="Weight of the term next to the task's loss.",
)
