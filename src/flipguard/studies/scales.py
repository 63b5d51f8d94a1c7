"""Scales of studies: data, models by role, recipe, and number of seeds."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from flipguard.errors import InputError, listed, nearest
from flipguard.methods import method_of
from flipguard.models.registry import check_spec
from flipguard.studies.study import Scalar

FILE = "scales.toml"
NO_VALUE = "none"
BLANK = re.compile(r"\{(\w+)\}")
# The settings of `scope` that a study's rows do not state.
SCOPE = ("validation", "seed", "class_choice", "per_class")
FORMS = (
    *("recipe.NAME", "machine.NAME", "preprocessing.NAME", "roles.NAME", "options.METHOD.NAME"),
    *("data", "data_root", "classes", *(f"scope.{name}" for name in SCOPE)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One size of all studies; `given` are the `settings`, as typed."""

    name: str
    sentence: str
    data: str
    classes: int
    stands_for: tuple[str, ...]
    members: int
    seeds: int
    roles: Mapping[str, str]
    # Time per epoch by role, and on what; where it is not known, a plan can time the models.
    seconds: Mapping[str, float] = field(default_factory=dict)
    timed_on: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    # How parts of the data are chosen. Without a seed, each seed of a study chooses its own part.
    scope: Mapping[str, Any] = field(default_factory=dict)
    papers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    studies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preset: str | None = None
    precision: str = "32-true"
    pretrained: bool = False
    # Torchvision's name of the weights that models start from, if they are not its newest ones.
    weights: str | None = None
    data_root: str | None = None
    # By role: several architectures of about the same accuracy, for ensembles of them.
    many: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Changes of the recipe for the models whose specs start with a text.
    families: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    # Roles whose models are not trained: they have the weights that their libraries publish.
    published: Sequence[str] = ()
    # Whether it is the papers' own: only tables of its data, with the equations as printed.
    exact: bool = False
    unlike: Sequence[str] = ()  # differences from the paper that no setting shows
    given: tuple[str, ...] = ()

    def of_study(self, paper: str, study: str) -> Scale:
        """Return the scale for a study of a paper; the user's settings come last."""
        tables = self.papers.get(paper, {}), self.studies.get(study, {})
        own: dict[str, Any] = {**tables[0], **tables[1]}
        unlike = [*self.unlike, *(one for table in tables for one in table.get("unlike", ()))]
        scale = dataclasses.replace(self, **{**own, "unlike": unlike}, papers={}, studies={})
        for text in self.given:
            if re.split(r"[.=]", text)[0] in own:
                scale = scale._set(text)
        return scale

    @property
    def given_without_paths(self) -> tuple[str, ...]:
        """The user's settings without the paths of files, which do not change results."""
        return tuple(text for text in self.given if not text.startswith("data_root="))

    def precision_on(self, device: str) -> dict[str, str]:
        """Return the precision as a machine setting; empty on a CPU, which does not use it."""
        return {} if device == "cpu" else {"precision": self.precision}

    def models(self, role: str) -> Sequence[str]:
        """Return the model or models of a role; empty if this scale lacks the role."""
        return self.many.get(role, [self.roles[role]] if role in self.roles else [])

    def check_filled(self, roles: Sequence[str]) -> None:
        """Raise if a model that the user has to name is missing."""
        blank = [name for role in roles for name in BLANK.findall(self.roles.get(role, ""))]
        if blank:
            raise InputError(
                f"Expected {blank[0]}=… in `settings=` at scale {self.name}, but it was not given; "
                "name a folder with a pretrained model of Transformers."
            )

    def recipe_of(self, spec: str) -> dict[str, Any]:
        """Return the recipe of a model: the scale's, with the changes for its family.

        The user's settings come last. A family with another optimizer keeps what it changes,
        because a learning rate for SGD does not suit AdamW.

        >>> scale_of("imagenet").recipe_of("timm:vgg13")["learning_rate"]
        0.01
        """
        told = {text.partition("=")[0].removeprefix("recipe.") for text in self.given}
        found = dict(self.recipe)
        for start, changes in self.families.items():
            if spec.startswith(start):
                keeps = "optimizer" in changes and "optimizer" not in told
                found |= {k: v for k, v in changes.items() if keeps or k not in told}
        return found

    def option(self, method: str, name: str, printed: Scalar) -> Scalar:
        """Return this scale's value of an option, which may replace the value in a paper's row."""
        ours = self.options.get(method, {}).get(name)
        if isinstance(ours, Mapping):
            return _value(
                ours.get(f"{printed:g}" if _is_number(printed) else str(printed), printed)
            )
        return printed if ours is None else _value(ours)

    def defaults(self, method: str) -> dict[str, Scalar]:
        """Return the options that this scale sets for all rows."""
        ours = self.options.get(method, {})
        return {name: _value(v) for name, v in ours.items() if not isinstance(v, Mapping)}

    def set(self, assignments: Sequence[str]) -> Scale:
        """Return the scale with assignments applied, each ``key=value`` or ``table.key=value``.

        >>> scale_of("mnist1d").set(["recipe.epochs=3", "roles.small=lenet5"]).roles["small"]
        'lenet5'
        """
        scale = self
        for text in assignments:
            scale = scale._set(text)
        return dataclasses.replace(scale, given=(*self.given, *assignments))

    def _set(self, assignment: str) -> Scale:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"Expected `settings=` to be key=value, but got {assignment!r}.")
        table, _, name = key.partition(".")
        blanks = {one for spec in self.roles.values() for one in BLANK.findall(spec)}
        if key in blanks:
            filled = {role: s.replace(f"{{{key}}}", text) for role, s in self.roles.items()}
            return dataclasses.replace(self, roles=filled)
        if key in ("data", "data_root"):
            changed: dict[str, Any] = {key: text}
            return dataclasses.replace(self, **changed)
        if key == "classes":
            if not text.isdecimal() or int(text) < 2:
                raise InputError(
                    "Expected classes in `settings=` to be a whole number from 2 on, but got "
                    f"{text!r}."
                )
            return dataclasses.replace(self, classes=int(text))
        if table == "roles" and name:
            _check_role(name)
            try:
                check_spec(text)
            except InputError as problem:
                raise InputError(f"`settings=`, {assignment}: {problem}") from problem
            return dataclasses.replace(self, roles={**self.roles, name: text})
        if table == "options" and "." in name:
            method, _, option = name.partition(".")
            _check_option(method, option)
            ours = {**self.options.get(method, {}), option: _parsed(text)}
            return dataclasses.replace(self, options={**self.options, method: ours})
        if table in ("recipe", "machine", "preprocessing") and name:
            changed = {table: {**getattr(self, table), name: _parsed(text)}}
            return dataclasses.replace(self, **changed)
        if table == "scope" and name in SCOPE:
            return dataclasses.replace(self, scope={**self.scope, name: _parsed(text)})
        known = [*FORMS, *sorted(blanks)]
        raise InputError(
            f"Expected `settings=` of a study to set {', '.join(known)}, but got {listed([key])}."
        )


@cache
def scales() -> Mapping[str, Scale]:
    """Return all scales by name."""
    text = files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return MappingProxyType(
        {
            name: Scale(**{**values, "name": name, "stands_for": tuple(values["stands_for"])})
            for name, values in tomllib.loads(text).items()
        }
    )


def scale_of(name: str) -> Scale:
    """Return the scale with a name."""
    if name not in scales():
        raise InputError(
            f"Expected `scale=` to be one of the scales, but got {listed([name])}; "
            + nearest(name, scales(), all_in=f"there are {', '.join(scales())}")
        )
    return scales()[name]


def _check_role(name: str) -> None:
    """Raise if no study has a role, because setting it would have no effect."""
    known = dict.fromkeys(role for scale in scales().values() for role in scale.roles)
    if name not in known:
        raise InputError(
            "Expected roles.NAME in `settings=` with a role of the studies, but got "
            f"{listed([name])}; there are {', '.join(known)}."
        )


def _check_option(method: str, option: str) -> None:
    """Raise if a method does not have an option."""
    base = method_of(method)[0]
    if base.name != method:
        raise InputError(
            f"Expected the options of a method, but got {listed([method])}, which has those of "
            f"{base.name}; set options.{base.name}.{option}."
        )
    known = {one.name for one in base.options}
    if option not in known:
        hint = nearest(option, known, all_in=f"`flipguard methods {method}` lists all")
        raise InputError(f"Expected the options of `{method}`, but got {listed([option])}; {hint}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(given: Any) -> Scalar:
    found: Scalar = None if given == NO_VALUE else given
    return found


def _parsed(text: str) -> Any:
    """Return a value as TOML reads it, or the text if TOML cannot read it."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
