"""What an analysis returns: its data, and the claims of the papers, checked on these data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from flipguard.formatting import finite_or_none, json_text

SCHEMA = "flipguard.analysis/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedClaim:
    """A sentence of a paper with its number on these data.

    `low` and `high` are the ends of a 95 % interval. `holds` is None if the data cannot tell.
    """

    text: str
    value: float
    low: float
    high: float
    holds: bool | None

    @classmethod
    def above(cls, text: str, value: tuple[float, float, float], limit: float) -> CheckedClaim:
        """Return a claim that a number, given as value, low and high, is above a limit."""
        _, low, high = value
        holds = True if low > limit else False if high <= limit else None
        return cls(text=text, value=value[0], low=low, high=high, holds=holds)

    @classmethod
    def below(cls, text: str, value: tuple[float, float, float], limit: float) -> CheckedClaim:
        """Return a claim that a number, given as value, low and high, is below a limit."""
        _, low, high = value
        holds = True if high < limit else False if low >= limit else None
        return cls(text=text, value=value[0], low=low, high=high, holds=holds)

    @classmethod
    def between(
        cls, text: str, value: tuple[float, float, float], limits: tuple[float, float]
    ) -> CheckedClaim:
        """Return a claim that a number, given as value, low and high, is between two limits."""
        _, low, high = value
        inside = limits[0] <= low and high <= limits[1]
        outside = high < limits[0] or low > limits[1]
        holds = True if inside else False if outside else None
        return cls(text=text, value=value[0], low=low, high=high, holds=holds)


Data = TypeVar("Data", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(Generic[Data]):
    """An analysis of n samples: its data, one sentence made from them, and the checked claims."""

    name: str
    n: int
    data: Data
    sentence: str
    claims: tuple[CheckedClaim, ...]

    def as_dict(self) -> dict[str, Any]:
        """The analysis as a dictionary for JSON."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "n": self.n,
            "data": {"sentence": self.sentence, **plain(self.data)},
            "claims": [plain(claim) for claim in self.claims],
        }

    def to_json(self) -> str:
        """The analysis as a JSON document."""
        return json_text(self.as_dict())


def plain(value: Any) -> Any:
    """Return a value as JSON can write it: None where a number is undefined.

    >>> plain((1.5, float("nan"), np.arange(2), {3: "a"}))
    [1.5, None, [0, 1], {'3': 'a'}]
    """
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return finite_or_none(value) if isinstance(value, float) else value


def in_percent(value: float, *, decimals: int = 2) -> str:
    """Return a share in percent for a sentence, or "undefined".

    >>> in_percent(0.0625), in_percent(float("nan"))
    ('6.25 %', 'undefined')
    """
    return f"{100 * value:.{decimals}f} %" if math.isfinite(value) else "undefined"
