"""Parse and check specs such as ``name:key=value,key=value``, and the keys of tables.

The meaning of the names belongs to the registries of data sets, augmentations and models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from flipguard.errors import InputError, listed, nearest

OPTIONS = re.compile(r"^(?P<name>.*?):(?P<options>[A-Za-z_]\w*=[^:]*)$", re.DOTALL)

Number = int | float


class Options:
    """The options of a spec; each is taken once, and `finish` raises if some were not taken.

    >>> options = Options.of("mnist1d:train=800,seed=3")
    >>> options.name, options.whole("train", 4000, least=1), options.whole("seed", 0)
    ('mnist1d', 800, 3)
    >>> options.finish()
    """

    def __init__(self, name: str, given: dict[str, str]) -> None:
        self.name = name
        self._given = dict(given)
        self._known: list[str] = []

    @classmethod
    def of(cls, spec: str) -> Options:
        """Parse a spec; a colon that is not followed by ``key=`` belongs to the name."""
        found = OPTIONS.match(spec)
        if found is None:
            return cls(spec, {})
        given: dict[str, str] = {}
        for item in found["options"].split(","):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not key or not equals or not value:
                raise InputError(
                    f"Expected the options of `{found['name']}` to be key=value, but got "
                    f"{listed([item])}; write them as name:key=value,key=value."
                )
            if key in given:
                raise InputError(
                    f"Expected every option of `{found['name']}` once, but got {key!r} more than "
                    "once; keep one of them."
                )
            given[key] = value
        return cls(found["name"], given)

    def whole(
        self, key: str, default: int, *, least: int | None = None, most: int = 2**63 - 1
    ) -> int:
        """A whole number from `least` to `most`."""
        text = self._take(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = None
        lowest = -(2**63) if least is None else least
        if value is None or not lowest <= value <= most:
            bound = "" if least is None else f" of at least {least}"
            if value is not None and value > most:
                bound = f" of at most {most}"
            raise self._refused(key, f"a whole number{bound}", text)
        return value

    def number(
        self, key: str, default: float, *, least: float = 0.0, most: float = math.inf
    ) -> float:
        """A finite number from `least` to `most`."""
        text = self._take(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most) or math.isinf(value):
            bound = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise self._refused(key, f"a number {bound}", text)
        return value

    def share(self, key: str, default: float) -> float:
        """A share of the samples, above 0 and below 1."""
        value = self.number(key, default, most=1.0)
        if value in (0.0, 1.0):
            raise self._refused(key, "a share above 0 and below 1", f"{value:g}")
        return value

    def one_of(self, key: str, default: str, known: tuple[str, ...]) -> str:
        """One of the given words."""
        text = self._take(key)
        if text is None:
            return default
        if text not in known:
            raise self._refused(key, "one of " + ", ".join(known), text)
        return text

    def text(self, key: str) -> str | None:
        """Any text, or None if the option is not given."""
        return self._take(key)

    def finish(self) -> None:
        """Raise if an option was not taken."""
        if self._given:
            known = ", ".join(self._known) if self._known else "none"
            raise InputError(
                f"Expected the options of `{self.name}` to be among {known}, but got "
                f"{listed(self._given)}; check its spelling."
            )

    def _take(self, key: str) -> str | None:
        self._known.append(key)
        return self._given.pop(key, None)

    def _refused(self, key: str, rule: str, text: str) -> InputError:
        return InputError(
            f"Expected `{key}` to be {rule}, but got {listed([text])}; change it in the options "
            f"of `{self.name}`."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOption:
    """A numeric option of a model; it takes whole numbers if its default is one."""

    name: str
    default: Number
    sentence: str
    least: Number
    below: Number = math.inf

    def read(self, text: str, *, owner: str) -> Number:
        """The number in a text, checked.

        >>> dropout_option("before the head").read("0.25", owner="resnet20")
        0.25
        """
        kind = type(self.default)
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not self.least <= value < self.below:
            what = "a whole number" if kind is int else "a number"
            top = "" if self.below == math.inf else f" and below {self.below:,}"
            raise InputError(
                f"Expected `{self.name}` of '{owner}' to be {what} of at least {self.least:g}{top}"
                f", but got {listed([text])}; its default is {self.default}."
            )
        return value


def whole_option(
    name: str, default: int, sentence: str, *, least: int = 1, below: int = 100_000
) -> ModelOption:
    """An option for a count or size; absurdly large values are refused before memory is used."""
    return ModelOption(name=name, default=default, sentence=sentence, least=least, below=below)


def dropout_option(where: str) -> ModelOption:
    """An option for the share of features that are dropped while training."""
    sentence = f"The share of features that are dropped in training, {where}."
    return ModelOption(name="dropout", default=0.0, sentence=sentence, least=0.0, below=1)


def read_options(text: str, known: tuple[ModelOption, ...], *, owner: str) -> Mapping[str, Number]:
    """All options of a model, by name: those in the text, and the defaults of the others.

    >>> read_options("depth=3", (whole_option("depth", 2, "Layers."),), owner="mlp")
    {'depth': 3}
    """
    values: dict[str, Number] = {option.name: option.default for option in known}
    by_name = {option.name: option for option in known}
    seen: set[str] = set()
    for part in text.split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(
                f"Expected the options of '{owner}' to be written key=value with commas between, "
                f"but got {listed([part])}; {_write(known, owner)}."
            )
        if key not in by_name:
            names = ", ".join(by_name) or "none"
            raise InputError(
                f"Expected the options of '{owner}' to be among {names}, but got {listed([key])}; "
                + nearest(key, by_name, all_in=_write(known, owner))
            )
        if key in seen:
            raise InputError(
                f"Expected each option of '{owner}' once, but got '{key}' twice; keep one of them."
            )
        seen.add(key)
        values[key] = by_name[key].read(value, owner=owner)
    return values


def _write(known: tuple[ModelOption, ...], owner: str) -> str:
    if not known:
        return f"write '{owner}' alone"
    return f"write for instance {owner}:{known[0].name}={known[0].default}"


def only(given: Mapping[str, Any], known: Set[str], place: str) -> None:
    """Raise if a table has unknown keys."""
    unknown = [key for key in given if key not in known]
    if unknown:
        raise InputError(
            f"{place}: expected {', '.join(sorted(known))}, but got {listed(unknown)}."
        )
