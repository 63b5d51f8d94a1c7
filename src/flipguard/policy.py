"""Gate policies: rules read from TOML, and checked before anything is counted.

Judging by them belongs to `flipguard.gate`.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flipguard.errors import PolicyError, listed, nearest
from flipguard.metric import Metric
from flipguard.metric_kinds import PValueKind
from flipguard.metrics import METRICS

Judge = Literal["interval", "point"]
CORRECTIONS = ("none", "holm", "benjamini-hochberg")
Level = Literal["blocking", "advisory"]
LEVELS: tuple[Level, ...] = ("blocking", "advisory")
RULE_KEYS = (
    "metric",
    "min",
    "max",
    "by",
    "only",
    "require",
    "min_n",
    "correction",
    "judge",
    "level",
)
POLICY_KEYS = ("confidence", "correction", "rule", "pinned")
PINNED_KEYS = ("ids",)
MOST_BYTES = 50_000_000
# Some shares can exceed 1, but a limit above 5 is meant as 5 %.
LARGEST_SHARE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit on one metric, for all samples or for the groups of a column.

    An advisory rule is judged and reported, but the verdict does not depend on it. Groups in
    `require` must be there and large enough to be judged.
    """

    metric: str
    min: float | None = None
    max: float | None = None
    by: str | None = None
    only: tuple[str, ...] | None = None
    require: tuple[str, ...] | None = None
    min_n: int = 0
    correction: str = "none"
    judge: Judge = "interval"
    level: Level = "blocking"

    def __post_init__(self) -> None:
        metric = _metric(self.metric)
        for key, limit in self.limit.items():
            object.__setattr__(self, key, _number(limit, f"Rule: {key}"))
        _check_limits(self, metric)
        _check_groups(self)
        for key in ("only", "require"):
            given = getattr(self, key)
            if given is not None:
                # A group that is given twice, as 0 and as "0", is judged once.
                groups = dict.fromkeys(str(group) for group in given)
                object.__setattr__(self, key, tuple(groups))
        _check_required(self)
        _check_judge(self, metric)
        if self.level not in LEVELS:
            raise PolicyError(
                f"Rule: expected `level` to be {' or '.join(LEVELS)}, but got {_shown(self.level)}."
            )

    @property
    def limit(self) -> dict[str, float]:
        """The limits that were given, by name."""
        given = {"min": self.min, "max": self.max}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value that the limits allow."""
        return (
            self.min if self.min is not None else -math.inf,
            self.max if self.max is not None else math.inf,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules for an update, and optionally samples that may never flip.

    >>> policy = Policy.from_dict({"rule": [{"metric": "negative_flip_rate", "max": 0.02}]})
    >>> policy.rules[0].limit
    {'max': 0.02}
    """

    rules: tuple[Rule, ...]
    confidence: float = 0.95
    correction: str = "none"
    pinned: Path | None = None
    name: str = "policy"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a TOML file; paths in it are relative to the file."""
        if not isinstance(path, str | os.PathLike):
            raise PolicyError(
                f"Expected `path` to be the path of a policy, but got {type(path).__name__}; give "
                "a str or a Path."
            )
        file = Path(path)
        try:
            with file.open("rb") as stream:
                content = stream.read(MOST_BYTES + 1)  # a device may be endless
            if len(content) > MOST_BYTES:
                raise PolicyError(
                    f"{path} is too large for a policy (more than {MOST_BYTES / 1e6:g} MB); check "
                    "the path."
                )
            document = tomllib.loads(content.decode("utf-8"))
        except FileNotFoundError as problem:
            raise PolicyError(f"{path} does not exist; check the path of the policy.") from problem
        except (OSError, UnicodeDecodeError) as problem:
            raise PolicyError(
                f"{path} cannot be read as a policy ({problem}); check the path and its encoding, "
                "which must be UTF-8."
            ) from problem
        except ValueError as problem:
            # Not only TOMLDecodeError: Python refuses to parse a number of 5,000 digits.
            raise PolicyError(f"{path} is not valid TOML ({problem}); correct it.") from problem
        except RecursionError as problem:
            raise PolicyError(
                f"{path} is nested too deeply to be a policy; write [[rule]] tables of plain "
                "values."
            ) from problem
        return cls.from_dict(document, name=str(path), folder=file.parent)

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], *, name: str = "policy", folder: Path | None = None
    ) -> Policy:
        """Build a policy from the values that the TOML would contain."""
        if not isinstance(document, Mapping):
            raise PolicyError(
                f"Expected `document` to be a dict with the keys of a policy, but got "
                f"{type(document).__name__}; read a file with Policy.read(path)."
            )
        _known(document, POLICY_KEYS, name)
        given = document.get("rule", [])
        if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
            raise PolicyError(f"{name}: expected rules as [[rule]] tables; write two brackets.")
        return cls(
            rules=tuple(_rule(rule, f"{name}: rule {i}") for i, rule in enumerate(given, start=1)),
            confidence=document.get("confidence", 0.95),
            correction=document.get("correction", "none"),
            pinned=_pinned(document.get("pinned"), name, folder or Path()),
            name=name,
        )

    def __post_init__(self) -> None:
        confidence = _number(self.confidence, f"{self.name}: confidence")
        if not 0.0 < confidence < 1.0:
            raise PolicyError(
                f"{self.name}: expected `confidence` to be between 0 and 1, but got "
                f"{confidence:.10g}{_in_percent(confidence)}."
            )
        object.__setattr__(self, "confidence", confidence)
        rules = tuple(self.rules) if isinstance(self.rules, Iterable) else (self.rules,)
        if not all(isinstance(rule, Rule) for rule in rules):
            raise PolicyError(
                f"{self.name}: expected `rules` to hold Rule objects only; make them with "
                'Rule(metric="negative_flip_rate", max=0.02), or use Policy.from_dict.'
            )
        object.__setattr__(self, "rules", rules)
        self._check_correction()
        self._check_levels()
        if self.pinned is not None:
            if not isinstance(self.pinned, str | os.PathLike):
                raise PolicyError(
                    f"{self.name}: expected `pinned` to be the path of a file of ids, but got "
                    f"{type(self.pinned).__name__}."
                )
            object.__setattr__(self, "pinned", Path(self.pinned))
        if not rules and self.pinned is None:
            raise PolicyError(
                f"{self.name} has no [[rule]] and no [pinned] ids, so it would pass anything; "
                'add a rule, such as metric = "negative_flip_rate" with max = 0.02.'
            )

    def _check_levels(self) -> None:
        if self.rules and self.pinned is None and not self.blocking:
            raise PolicyError(
                f"{self.name} has only advisory rules, so it would pass anything; remove "
                '`level = "advisory"` from at least one rule.'
            )

    @property
    def blocking(self) -> tuple[Rule, ...]:
        """The rules that decide the verdict."""
        return tuple(rule for rule in self.rules if rule.level == "blocking")

    def _check_correction(self) -> None:
        _known_correction(self.correction, self.name)
        if self.correction != "none" and all(rule.judge == "point" for rule in self.rules):
            raise PolicyError(
                f"{self.name}: `correction` widens intervals, but no rule is judged by its "
                "interval; remove it."
            )

    def correction_of(self, rule: Rule) -> str:
        """Return the correction over the groups of a rule: its own, or that of the policy."""
        return self.correction if rule.correction == "none" else rule.correction

    @property
    def by(self) -> tuple[str, ...]:
        """The group-by columns of the rules."""
        asked = (
            "target" if "classes" in METRICS[rule.metric].needs else rule.by for rule in self.rules
        )
        return tuple(dict.fromkeys(by for by in asked if by is not None))


def _rule(given: Mapping[str, Any], where: str) -> Rule:
    _known(given, RULE_KEYS, where)
    try:
        return Rule(**{"metric": None, **given})
    except PolicyError as problem:
        raise PolicyError(f"{where}: {str(problem).removeprefix('Rule: ')}") from problem


def _metric(name: object) -> Metric:
    if isinstance(name, str) and name in METRICS:
        return METRICS[name]
    close = difflib.get_close_matches(name, METRICS, n=1) if isinstance(name, str) else []
    meant = f" (did you mean '{close[0]}'?)" if close else ""
    raise PolicyError(
        f"Rule: there is no metric {_shown(name)}{meant}; known are {', '.join(METRICS)}."
    )


def _check_limits(rule: Rule, metric: Metric) -> None:
    if not rule.limit:
        raise PolicyError(f"Rule: there is no limit on {metric.name}; set min, max or both.")
    if rule.min is not None and rule.max is not None and rule.min > rule.max:
        raise PolicyError(
            f"Rule: min {rule.min} is above max {rule.max}, so no value can pass; swap them."
        )
    for key, limit in rule.limit.items():
        _within_reach(metric, key, limit)
    least, most = metric.range
    if (rule.min is None or rule.min <= least) and (rule.max is None or rule.max >= most):
        text = " and ".join(f"{key} = {limit:g}" for key, limit in rule.limit.items())
        raise PolicyError(
            f"Rule: {metric.name} is always {_reach(least, most)}, so {text} would pass anything; "
            "give a limit inside that range."
        )
    _check_direction(rule, metric)


def _check_direction(rule: Rule, metric: Metric) -> None:
    """Refuse a rule whose only limit would let any worse update pass."""
    wrong, right = {"lower": ("min", "max"), "higher": ("max", "min")}.get(
        metric.better, (None, None)
    )
    if list(rule.limit) == [wrong]:
        raise PolicyError(
            f"Rule: {metric.name} is better when {metric.better}, so a rule with only "
            f"`{wrong}` would pass an update that is worse; write `{right}`, or both for a range."
        )


def _check_groups(rule: Rule) -> None:
    by, min_n = rule.by, rule.min_n
    if by is not None and (not isinstance(by, str) or not by):
        raise PolicyError(
            f"Rule: expected `by` to be the name of one column, but got {_shown(by)}."
        )
    lists = {"only": rule.only, "require": rule.require}
    for key, given in lists.items():
        if given is not None and not (
            isinstance(given, list | tuple)
            and given
            and all(isinstance(group, str | int) for group in given)
        ):
            raise PolicyError(
                f"Rule: expected `{key}` to be a list of groups, but got {_shown(given)}."
            )
    if not isinstance(min_n, int) or isinstance(min_n, bool) or min_n < 0:
        raise PolicyError(f"Rule: expected `min_n` to be 0 or more, but got {_shown(min_n)}.")
    _known_correction(rule.correction, "Rule")
    needs_by = {key: given is not None for key, given in lists.items()}
    for key, is_given in (needs_by | {"correction": rule.correction != "none"}).items():
        if is_given and by is None:
            raise PolicyError(f"Rule: `{key}` applies to groups; name their column with `by`.")


def _check_required(rule: Rule) -> None:
    if rule.only is not None and rule.require is not None:
        outside = [group for group in rule.require if group not in rule.only]
        if outside:
            raise PolicyError(
                f"Rule: `require` names {listed(outside)}, which `only` leaves out; add it to "
                "`only`, or remove it."
            )


def _known_correction(given: object, where: str) -> None:
    if given not in CORRECTIONS:
        raise PolicyError(
            f"{where}: expected `correction` to be one of {', '.join(CORRECTIONS)}, "
            f"but got {_shown(given)}."
        )


def _check_judge(rule: Rule, metric: Metric) -> None:
    if rule.judge not in ("interval", "point"):
        raise PolicyError(
            f"Rule: expected `judge` to be interval or point, but got {_shown(rule.judge)}."
        )
    if isinstance(metric.kind, PValueKind) and rule.judge == "interval":
        raise PolicyError(f'Rule: {metric.name} has no interval; add judge = "point".')
    if rule.judge == "point" and rule.correction != "none":
        raise PolicyError(
            'Rule: `correction` widens intervals, but judge = "point" uses none; remove one of '
            "the two."
        )


def _pinned(given: Any, name: str, folder: Path) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise PolicyError(
            f"{name}: expected [pinned] to be a table; write [pinned] with `ids` below it."
        )
    _known(given, PINNED_KEYS, f"{name}: [pinned]")
    ids = given.get("ids")
    if not isinstance(ids, str) or not ids:
        raise PolicyError(
            f"{name}: [pinned] has no `ids`; set it to the file of samples that may not flip."
        )
    return folder / ids


def _known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = [key for key in given if key not in keys]
    if unknown:
        word = "key" if len(unknown) == 1 else "keys"
        hint = nearest(str(unknown[0]), keys, all_in=f"use {', '.join(keys)}")
        raise PolicyError(f"{where}: unknown {word} {listed(unknown)}; {hint}")


def _within_reach(metric: Metric, key: str, limit: float) -> None:
    """Refuse a limit that no value can reach, such as `max = 2` for 2 %: it passes anything."""
    least, most = metric.range
    if metric.percent:
        most = min(most, LARGEST_SHARE)
    if not least <= limit <= most:
        raise PolicyError(
            f"Rule: expected `{key}` of {metric.name} to be {_reach(least, most)}, but got "
            f"{limit:g}{_in_percent(limit) if metric.percent else ''}."
        )


def _reach(least: float, most: float) -> str:
    return f"{least:g} or more" if math.isinf(most) else f"from {least:g} to {most:g}"


def _in_percent(value: float) -> str:
    """Return how to write a number that may have been meant in percent; empty otherwise."""
    return f"; {value:g} % is written {value / 100:g}" if 1.0 < abs(value) <= 100.0 else ""


def _number(value: object, where: str) -> float:
    # An integer too large for a float is refused, as infinity is.
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not -1e300 < value < 1e300:  # type: ignore[operator]
        raise PolicyError(f"{where} must be a finite number, but is {_shown(value)}.")
    return float(value)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    return listed([value])
