"""Gate policies: what an update may do, read from TOML and checked before anything is counted."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flipguard.errors import PolicyError, listed
from flipguard.metrics import (
    METRICS,
    CalibrationError,
    Metric,
    PairedDifference,
    ProbabilityOfChance,
    Proportion,
)

Judge = Literal["interval", "point"]
CORRECTIONS = ("none", "holm", "benjamini-hochberg")
RULE_KEYS = ("metric", "min", "max", "by", "only", "min_n", "correction", "judge")
POLICY_KEYS = ("confidence", "rule", "pinned")
PINNED_KEYS = ("ids",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit on one metric, for all samples or for the groups of a column."""

    metric: str
    min: float | None = None
    max: float | None = None
    by: str | None = None
    only: tuple[str, ...] | None = None
    min_n: int = 0
    correction: str = "none"
    judge: Judge = "interval"

    @property
    def limit(self) -> dict[str, float]:
        """The limits that were given."""
        given = {"min": self.min, "max": self.max}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an update may do: rules, and perhaps samples that may never flip.

    >>> policy = Policy.from_dict({"rule": [{"metric": "negative_flip_rate", "max": 0.02}]})
    >>> policy.rules[0].limit
    {'max': 0.02}
    """

    rules: tuple[Rule, ...]
    confidence: float = 0.95
    pinned: Path | None = None
    name: str = "policy"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """A policy from a TOML file; paths in it are relative to the file."""
        file = Path(path)
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as problem:
            raise PolicyError(f"{path} does not exist; check the path of the policy.") from problem
        except (OSError, UnicodeDecodeError) as problem:
            raise PolicyError(f"{path} cannot be read as a policy ({problem}).") from problem
        except tomllib.TOMLDecodeError as problem:
            raise PolicyError(f"{path} is not valid TOML: {problem}.") from problem
        return cls.from_dict(document, name=str(path), folder=file.parent)

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], *, name: str = "policy", folder: Path | None = None
    ) -> Policy:
        """A policy from the values that the TOML would hold."""
        _known(document, POLICY_KEYS, name)
        confidence = _number(document.get("confidence", 0.95), f"{name}: confidence")
        if not 0.0 < confidence < 1.0:
            raise PolicyError(
                f"{name}: expected `confidence` to be between 0 and 1, but got {confidence}."
            )
        given = document.get("rule", [])
        if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
            raise PolicyError(f"{name}: expected rules as [[rule]] tables, with two brackets.")
        rules = tuple(_rule(rule, f"{name}: rule {i}") for i, rule in enumerate(given, start=1))
        pinned = _pinned(document.get("pinned"), name, folder or Path())
        if not rules and pinned is None:
            raise PolicyError(
                f"{name} has no [[rule]] and no [pinned] ids, so it would pass anything; "
                'add a rule, such as metric = "negative_flip_rate" with max = 0.02.'
            )
        return cls(rules=rules, confidence=confidence, pinned=pinned, name=name)

    @property
    def by(self) -> tuple[str, ...]:
        """The columns that the rules group by."""
        return tuple(dict.fromkeys(rule.by for rule in self.rules if rule.by is not None))


def _rule(given: Mapping[str, Any], where: str) -> Rule:
    _known(given, RULE_KEYS, where)
    metric = given.get("metric")
    if not isinstance(metric, str) or metric not in METRICS:
        raise PolicyError(
            f"{where}: there is no metric {_shown(metric)}; known are {', '.join(METRICS)}."
        )
    limits = {k: _number(given[k], f"{where}: {k}") for k in ("min", "max") if k in given}
    if not limits:
        raise PolicyError(f"{where} sets no limit on {metric}; give it min, max or both.")
    if limits.get("min", -math.inf) > limits.get("max", math.inf):
        raise PolicyError(f"{where}: min {limits['min']} is above max {limits['max']}.")
    for key, limit in limits.items():
        _within_reach(METRICS[metric], key, limit, where)
    by, only = given.get("by"), given.get("only")
    if by is not None and not isinstance(by, str):
        raise PolicyError(f"{where}: expected `by` to be the name of one column, but got {by!r}.")
    if only is not None and not (
        isinstance(only, list) and only and all(isinstance(name, str | int) for name in only)
    ):
        raise PolicyError(f"{where}: expected `only` to be a list of groups, but got {only!r}.")
    min_n = given.get("min_n", 0)
    if not isinstance(min_n, int) or isinstance(min_n, bool) or min_n < 0:
        raise PolicyError(f"{where}: expected `min_n` to be 0 or more, but got {min_n!r}.")
    correction = given.get("correction", "none")
    if correction not in CORRECTIONS:
        raise PolicyError(
            f"{where}: expected `correction` to be one of {', '.join(CORRECTIONS)}, "
            f"but got {correction!r}."
        )
    for key in ("only", "correction"):
        if key in given and by is None:
            raise PolicyError(f"{where}: `{key}` is about groups; name their column with `by`.")
    judge = given.get("judge", "interval")
    if judge not in ("interval", "point"):
        raise PolicyError(f"{where}: expected `judge` to be interval or point, but got {judge!r}.")
    if isinstance(METRICS[metric].shape, ProbabilityOfChance) and judge == "interval":
        raise PolicyError(f'{where}: {metric} has no interval; add judge = "point".')
    if judge == "point" and correction != "none":
        raise PolicyError(
            f'{where}: a correction widens intervals, and judge = "point" looks at none; '
            "leave one of the two out."
        )
    return Rule(
        metric=metric,
        min=limits.get("min"),
        max=limits.get("max"),
        by=by,
        only=None if only is None else tuple(str(group) for group in only),
        min_n=min_n,
        correction=correction,
        judge=judge,
    )


def _pinned(given: Any, name: str, folder: Path) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise PolicyError(f"{name}: expected [pinned] to be a table with `ids`.")
    _known(given, PINNED_KEYS, f"{name}: [pinned]")
    ids = given.get("ids")
    if not isinstance(ids, str) or not ids:
        raise PolicyError(f"{name}: [pinned] expects `ids`, the file of samples that may not flip.")
    return folder / ids


def _known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = [key for key in given if key not in keys]
    if unknown:
        raise PolicyError(f"{where}: unknown {listed(unknown)}; known are {', '.join(keys)}.")


def _within_reach(metric: Metric, key: str, limit: float, where: str) -> None:
    """Refuses `max = 2` for 2 %: a limit that no value can reach would pass anything."""
    if isinstance(metric.shape, PairedDifference):
        least = -1.0
    elif isinstance(metric.shape, Proportion | CalibrationError | ProbabilityOfChance):
        least = 0.0
    else:
        return
    if not least <= limit <= 1.0:
        raise PolicyError(
            f"{where}: expected `{key}` of {metric.name} to be from {least:g} to 1, but got "
            f"{limit:g}; 2 % is written 0.02."
        )


def _number(value: object, where: str) -> float:
    # A whole number beyond all floats is as little a limit as infinity is.
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not -1e300 < value < 1e300:  # type: ignore[operator]
        raise PolicyError(f"{where} must be a number, but is {_shown(value)}.")
    return float(value)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    return listed([value])
