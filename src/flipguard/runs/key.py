"""The key of a run: a hash of every setting that decides what the run becomes.

A setting that equals its `key_default` is left out. That value is stored with the setting, and it
stays as it is when the default changes. So a new setting renames no run, as long as its
`key_default` is what runs did before, and two different runs never share a key because a default
has changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flipguard.errors import InputError, printable
from flipguard.files import sha256_of

if TYPE_CHECKING:
    from flipguard.runs.config import Config

T = TypeVar("T")
KEY_DEFAULT = "key_default"
NO_EFFECT = "no_effect"
# The metadata of a dataclass field whose value is no part of the key.
NO_KEY: Mapping[str, Any] = {"no_key": True}


def keyed(default: T, *, key_default: T, no_effect: Mapping[str, Any] | None = None) -> T:
    """Return a dataclass field that is part of the key unless it equals `key_default`.

    A field without this or `unkeyed` is always part of the key.

    Args:
        default: The value that a run has if the setting is not given.
        key_default: The value that runs had before there was the setting.
        no_effect: A value of another setting of the same table, with which this one has no effect.
    """
    return dataclasses.field(
        default=default, metadata={KEY_DEFAULT: key_default, NO_EFFECT: no_effect or {}}
    )


def unkeyed(default: T) -> T:
    """Return a dataclass field that is no part of the key, such as where a run is trained."""
    return dataclasses.field(default=default, metadata=NO_KEY)


def key_settings(config: Config, *, option_defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide what a run becomes, without its old runs and guides.

    Args:
        config: The settings of the run, with all options of its method.
        option_defaults: The `key_default` of each option of the method.
    """
    options = {
        f"options.{name}": value
        for name, value in config.options.items()
        if name not in option_defaults or value != option_defaults[name]
    }
    return {**dict(_settings(config)), **options, **_weights(config)}


def _weights(config: Config) -> dict[str, str]:
    """Return the digest of the file that a model starts from, or the name of its weights."""
    if config.weights is None:
        return {}
    path = Path(config.weights)
    # A text without a suffix is the name of published weights, such as IMAGENET1K_V1.
    if not path.suffix and not path.exists():
        return {"weights": config.weights}
    try:
        return {"weights": sha256_of(path)}
    except OSError as problem:
        raise InputError(
            f"Expected the weights {printable(config.weights)}, which `weights` names, but they "
            f"cannot be read ({problem.strerror}); restore the file, or check its path."
        ) from problem


def run_key(
    config: Config,
    *,
    option_defaults: Mapping[str, Any],
    key_of_run: Callable[[str], str],
    formula: int = 0,
) -> str:
    """Return 16 hex digits of everything that decides what a run becomes.

    Args:
        config: The settings of the run, with all options of its method.
        option_defaults: The `key_default` of each option of the method.
        key_of_run: Returns the key of an old run or guide, so that its path does not count.
        formula: How often the method's formula has changed for such a run.
    """
    values = key_settings(config, option_defaults=option_defaults)
    for name, runs in (("old", config.old), ("guides", config.guides)):
        if runs:
            values[name] = [key_of_run(run) for run in runs]
    if formula:
        values["formula"] = formula
    return digest_of(values)


def digest_of(values: Any) -> str:
    """Return 16 hex digits of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _settings(table: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for entry in dataclasses.fields(table):
        value = getattr(table, entry.name)
        if NO_KEY.keys() <= entry.metadata.keys():
            continue
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{prefix}{entry.name}.")
        elif KEY_DEFAULT not in entry.metadata or not (
            value == entry.metadata[KEY_DEFAULT] or _has_no_effect(table, entry.metadata)
        ):
            yield f"{prefix}{entry.name}", value


def _has_no_effect(table: Any, metadata: Mapping[str, Any]) -> bool:
    return any(getattr(table, name) == value for name, value in metadata[NO_EFFECT].items())


def with_recorded_defaults(values: Any, table: Any) -> Any:
    """Return recorded settings, with those that did not exist then at their `key_default`.

    Args:
        values: The settings that a run was trained with, as plain values.
        table: A configuration, or a table of one, whose fields name all settings.
    """
    if not isinstance(values, Mapping):
        return values  # which is refused later
    found = dict(values)
    for entry in dataclasses.fields(table):
        inner = getattr(table, entry.name)
        if dataclasses.is_dataclass(inner):
            found[entry.name] = with_recorded_defaults(values.get(entry.name, {}), inner)
        elif KEY_DEFAULT in entry.metadata:
            found.setdefault(entry.name, entry.metadata[KEY_DEFAULT])
    return found
