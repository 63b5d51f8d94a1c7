"""The configuration of a run: what is trained, on which data, how, and with which seeds.

Reading and writing a run's folder belongs to `folder`, its identity to `key`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from flipguard.errors import InputError, listed, nearest, printable
from flipguard.methods import METHODS, method_of
from flipguard.methods.needs import Needs
from flipguard.runs.image_settings import ImageSettings
from flipguard.runs.key import NO_KEY, key_settings, keyed, unkeyed
from flipguard.runs.presets import PRESETS
from flipguard.runs.scope import Scope

Source: TypeAlias = Literal["init", "order", "augment", "dropout"]
SOURCES: tuple[Source, ...] = get_args(Source)
# A source without a seed: a GPU adds numbers in an order that varies.
HARDWARE = "hardware"
# The seed of a fixed source, in all runs.
FIXED = 0

Scalar: TypeAlias = bool | int | float | str | None
NONE = "none"  # how a file or a flag says that there is no value, because TOML has no null
RETIRED: Mapping[str, Scalar] = {
    "machine.widen": "off",
    **{f"options.{name}": kept for row in METHODS.values() for name, kept in row.retired.items()},
}
"""Settings that were removed, each with the value that equals today's behaviour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """One seed for all sources of randomness, or one for each.

    >>> Seeds(seed=3).of("init") == Seeds(seed=3).of("order")
    False
    >>> Seeds(seed=3, init=0).of("init") == Seeds(seed=4, init=0).of("init")
    True
    """

    seed: int = 0
    init: int | None = None
    order: int | None = None
    augment: int | None = None
    dropout: int | None = None

    def of(self, source: Source, *place: int) -> int:
        """Return the seed of a source, for numbers such as an epoch and a step."""
        chosen: int | None = getattr(self, source)
        return derive_seed(self.seed if chosen is None else chosen, source, *place)


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a seed of 63 bits that depends only on the arguments.

    >>> derive_seed(0, "member", 1)
    8629476636568601313
    """
    text = "/".join(str(name) for name in (seed, *names))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class RetiredError(InputError):
    """Raised if a configuration sets a removed setting to a value that is no longer possible."""

    def __init__(self, setting: str, value: object) -> None:
        self.told = printable(f"`{setting} = {value!r}`")
        super().__init__(
            f"Expected a configuration without `{setting}`, which was removed, but got "
            f"{listed([value])}; leave it out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is optimised."""

    # The recipe of `PRESETS` from which a file or flags took the values that they do not set. In
    # Python it is a note: write `Recipe(**PRESETS[name])`.
    preset: str | None = unkeyed(None)
    epochs: int = 30
    batch_size: int = 100
    optimizer: Literal["sgd", "adamw"] = "adamw"
    learning_rate: float = 5e-3
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-2
    # Whether biases and the weights of norms decay too, as in PyTorch's ImageNet example.
    decay_biases_and_norms: bool = keyed(False, key_default=False)
    schedule: Literal["constant", "cosine", "linear", "steps"] = "cosine"
    milestones: tuple[int, ...] = ()  # epochs at which "steps" multiplies by `decay`
    decay: float = 0.1
    warmup: float = 0.0  # epochs of linear growth from 0
    label_smoothing: float = 0.0
    augment: str = "none"
    accumulate: int = 1  # batches per step
    linear_scaling: int | None = None  # the batch size that `learning_rate` is meant for
    clip: float | None = None  # the largest norm of a gradient
    # "shared": all members of an ensemble see the same batches, which costs less.
    member_order: Literal["own", "shared"] = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where and for how long a run is trained."""

    device: str = unkeyed("auto")
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = keyed(
        "32-true", key_default="32-true"
    )
    processes: int = unkeyed(1)
    threads: int | None = unkeyed(None)
    # torch.compile: the operations between convolutions, in seconds, or the whole, in minutes.
    compile: Literal["off", "parts", "whole"] = unkeyed("off")
    # Steps are captured once and replayed, on a GPU if possible.
    cuda_graphs: Literal["auto", "on", "off"] = unkeyed("auto")
    # Less memory: activations are computed again for the gradient.
    checkpointing: bool = unkeyed(False)
    # Members of an ensemble. "on": as one network; "off": one after the other; "auto": as one
    # network on a GPU if that is faster, and on a CPU in several processes with one thread each.
    fuse: Literal["auto", "on", "off"] = unkeyed("auto")
    fuse_chunk: int | None = unkeyed(None)  # the most members that are trained at once
    # GPU streams, each with a network of some of the members. None: one stream, or several if a
    # single member nearly fills the GPU.
    streams: int | None = unkeyed(None)
    # The same bytes in every run, also on a GPU.
    deterministic: bool = keyed(False, key_default=False)
    save_seconds: float = unkeyed(5.0)  # between two checkpoints; 0 saves one after every epoch
    minutes: float | None = unkeyed(None)  # stop after this time, with a checkpoint to resume from
    # Epochs between two rows of the history; the last epoch always has one.
    measure_every: int = unkeyed(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that decides what a run becomes."""

    method: str = "none"
    options: Mapping[str, Scalar] = field(default_factory=dict, metadata=NO_KEY)
    data: str = "mnist1d"
    data_root: str | None = unkeyed(None)
    model: str = "mlp"
    # Start from the weights that timm or torchvision publishes, or those in a Transformers folder.
    pretrained: bool = False
    # Start from a file with a state dict, or from torchvision's weights of this name. The key has
    # the digest of the file in place of its path.
    weights: str | None = unkeyed(None)
    old: tuple[str, ...] = unkeyed(())
    # Finished runs that are used as the ensemble instead of new members.
    guides: tuple[str, ...] = unkeyed(())
    fine_tune: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    scope: Scope = field(default_factory=Scope)
    preprocessing: ImageSettings = field(default_factory=ImageSettings)
    seeds: Seeds = field(default_factory=Seeds)
    machine: Machine = field(default_factory=Machine)


def needs_of(config: Config) -> Needs:
    """Return the needs of a run's method with these options.

    >>> needs_of(Config(method="elodi", options={"members": 3})).members.count
    3
    """
    return method_of(config.method)[0].needs(config.options)


def is_measured(config: Config, epoch: int) -> bool:
    """Return whether the rates after an epoch, counted from 1, are measured.

    >>> [epoch for epoch in range(1, 31) if is_measured(from_dict({}), epoch)] == [*range(1, 31)]
    True
    """
    return epoch % config.machine.measure_every == 0 or epoch == config.recipe.epochs


def as_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as plain values for JSON.

    >>> as_dict(Seeds(seed=1))["seed"]
    1
    """
    return dataclasses.asdict(config)


def decisive(config: Config) -> dict[str, Any]:
    """Return the settings that decide what a run becomes, without its old runs and guides.

    >>> decisive(Config(machine=Machine(threads=4, precision="64-true")))["machine.precision"]
    '64-true'
    """
    return key_settings(config, option_defaults=method_of(config.method)[0].key_defaults)


def from_dict(values: Mapping[str, Any]) -> Config:
    """Return the configuration that plain values describe; raise on unknown keys.

    A removed setting is ignored if its value equals today's behaviour.

    >>> from_dict({"recipe": {"preset": "churn-cifar", "epochs": 3}}).recipe.batch_size
    1024
    """
    given = values.get("recipe") if isinstance(values, Mapping) else None
    preset = given.get("preset") if isinstance(given, Mapping) else None
    if isinstance(given, Mapping) and preset not in (None, NONE):
        if not isinstance(preset, str) or preset not in PRESETS:
            raise InputError(
                f"Expected `recipe.preset` to be one of {', '.join(PRESETS)}, but got "
                f"{listed([preset])}."
            )
        values = {**values, "recipe": {**PRESETS[preset], **given}}
    config: Config = _built(Config, _without_retired(values), "")
    return config


def from_run(values: Mapping[str, Any]) -> Config:
    """Return the configuration in a `run.json`, where all values of a preset are written down.

    A value that is not there is newer than the run, which was trained without it. So it does not
    come from the preset.

    >>> from_run({"preset": "churn-cifar", "recipe": {"epochs": 3}}).recipe.decay_biases_and_norms
    False
    """
    if isinstance(values, Mapping) and "preset" in values:  # earlier a setting next to the recipe
        values = with_entries(values, "recipe", {"preset": values["preset"]})
        values = {name: value for name, value in values.items() if name != "preset"}
    config: Config = _built(Config, _without_retired(values), "")
    return config


def _without_retired(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for setting, kept in RETIRED.items():
        table, _, name = setting.partition(".")
        inner = values.get(table) if isinstance(values, Mapping) else None
        if not isinstance(inner, Mapping) or name not in inner:
            continue
        if inner[name] != kept:
            raise RetiredError(setting, inner[name])
        values = {**values, table: {key: one for key, one in inner.items() if key != name}}
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values in a configuration file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected the configuration {path}, but there is no such file."
        ) from problem
    except (ValueError, RecursionError, OSError) as problem:
        text = printable(str(problem)).rstrip(".")
        raise InputError(
            f"Expected {printable(str(path))} to be a TOML file, but it cannot be read: {text}."
        ) from problem


def set_values(values: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return values with settings applied, each ``key=value`` or ``table.key=value``.

    >>> set_values({"recipe": {"epochs": 3}}, ["recipe.learning_rate=0.1", "model=lenet5"])
    {'recipe': {'epochs': 3, 'learning_rate': 0.1}, 'model': 'lenet5'}
    """
    result = {key: dict(v) if isinstance(v, Mapping) else v for key, v in values.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise InputError(f"Expected `settings=` to be key=value, but got {listed([setting])}.")
        table, dot, name = key.partition(".")
        if dot:
            result = with_entries(result, table, {name: _scalar(text)})
        else:
            result[key] = _scalar(text)
    return result


def with_entries(
    values: Mapping[str, Any], table: str, entries: Mapping[str, Any]
) -> dict[str, Any]:
    """Return values with entries set in one of their tables.

    >>> with_entries({"seeds": {"seed": 1, "init": 2}}, "seeds", {"seed": 3})
    {'seeds': {'seed': 3, 'init': 2}}
    """
    inner = values.get(table, {})
    if not isinstance(inner, Mapping):
        raise InputError(f"Expected {listed([table])} to be a table, but it is {listed([inner])}.")
    return {**values, table: {**inner, **entries}}


def fix_randomness(values: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return values with some sources of randomness fixed, the same for runs with any seed."""
    known = (*SOURCES, HARDWARE)
    unknown = [source for source in sources if source not in known]
    if unknown:
        raise InputError(
            f"Expected `sources=` to name sources of randomness ({', '.join(known)}), but got "
            f"{listed(unknown)}."
        )
    seeded = [source for source in sources if source != HARDWARE]
    result = with_entries(values, "seeds", dict.fromkeys(seeded, FIXED))
    if HARDWARE in sources:
        result = with_entries(result, "machine", {"deterministic": True})
    return result


def _scalar(text: str) -> Any:
    """Return a value as TOML reads it, or the text if TOML cannot read it as one value."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if set(found) == {"value"} else text


def _built(kind: Any, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise InputError(
            f"Expected `{where or 'the configuration'}` to be a table, but got {listed([values])}."
        )
    hints = typing.get_type_hints(kind)
    known = [entry.name for entry in dataclasses.fields(kind)]
    unknown = [f"{where}{key}" for key in values if key not in known]
    if unknown:
        inner = [f"{where}{name}." for name in known if unknown[0] in _names(hints[name])]
        method = values.get("method")
        if kind is Config and isinstance(method, str) and method in METHODS:
            options = METHODS[method].settable
            inner += ["options."] if unknown[0] in [option.name for option in options] else []
        every = ", ".join(f"{where}{name}" for name in known)
        hint = nearest(unknown[0].removeprefix(where), known, all_in=f"there are {every}")
        if inner:
            hint = f"write {inner[0]}{unknown[0]}."
        raise InputError(
            f"Expected the configuration to have known keys, but got {listed(unknown)}; {hint}"
        )
    return kind(
        **{name: _value(hints[name], value, f"{where}{name}") for name, value in values.items()}
    )


def _names(kind: Any) -> list[str]:
    """Return the names in a table of the configuration; none if it is no table."""
    return [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _value(hint: Any, value: Any, where: str) -> Any:
    """Return a value converted to its type; raise if it does not fit."""
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _built(hint, value, f"{where}.")
    if origin in (types.UnionType, typing.Union):
        kinds = typing.get_args(hint)
        if value in (None, NONE) and type(None) in kinds:
            return None
        possible = [kind for kind in kinds if kind is not type(None)]
        words = [kind for kind in possible if typing.get_origin(kind) is Literal]
        others = [kind for kind in possible if kind not in words]
        # With both, such as a number or a word, text is a word.
        return _value((words if isinstance(value, str) and words else others)[0], value, where)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            known = ", ".join(map(repr, choices))
            raise InputError(f"Expected `{where}` to be one of {known}, but got {listed([value])}.")
        return value
    if origin is tuple:
        (kind, _) = typing.get_args(hint)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InputError(f"Expected `{where}` to be a list, but got {listed([value])}.")
        return tuple(_value(kind, one, where) for one in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InputError(f"Expected `{where}` to be a table, but got {listed([value])}.")
        for name, one in value.items():
            if one is not None:
                _plain(_scalar_type(one), one, f"{where}.{name}")
        return dict(value)
    return _plain(hint, value, where)


def _plain(hint: type, value: Any, where: str) -> Any:
    text = printable(f"`{where}`")
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    is_right = type(value) is hint or (hint is float and type(value) is int)
    if not is_right:
        raise InputError(f"Expected {text} to be {names[hint]}, but got {listed([value])}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"Expected {text} to be {names[hint]} of 64 bits, but got a larger one.")
    if isinstance(value, str) and not _can_be_a_name(value):
        raise InputError(
            f"Expected {text} to be text that is valid in a path, but got {listed([value])}."
        )
    return float(value) if hint is float else value


def _scalar_type(value: Any) -> type:
    """Return the type of a plain value, or `str` for anything else, which is then refused."""
    return type(value) if type(value) in (bool, int, float) else str


def _can_be_a_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
