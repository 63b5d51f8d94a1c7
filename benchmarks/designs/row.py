"""The row of one measured promise of an interval or a verdict."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Promise = Literal["coverage", "wrong pass", "family-wise error", "decided"]


class Rival(TypedDict):
    """A method that was measured on the same draws but not chosen."""

    measured: float
    width: float | None


class Row(TypedDict):
    """One design: a simulated world with a known true value, and what was measured in it."""

    metric: str
    design: str
    n: int
    confidence: float
    draws: int
    # Shares are exact sums over all tables, without random error; `draws` is the number of tables.
    exact: NotRequired[bool]
    promise: Promise
    nominal: float
    measured: float
    # Shares of the draws whose interval lies wholly above or wholly below the truth.
    above: float | None
    below: float | None
    # Median width of the intervals that are defined.
    width: float | None
    # Share of the draws that have no interval.
    undefined: float
    rivals: dict[str, Rival]
    # What flipguard prints in this case, if the promise is not kept.
    printed: str | None
