"""What a model may be told in its spec: ``name:key=value,key=value``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flipguard.errors import InputError, listed, nearest

Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOption:
    """One number that a model may be told; a whole one if its default is."""

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
    """A count or a size; one beyond all sense is refused before memory is asked for it."""
    return ModelOption(name=name, default=default, sentence=sentence, least=least, below=below)


def dropout_option(where: str) -> ModelOption:
    """The share of features that are dropped while training."""
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
