"""One measured promise: what an interval or a verdict says, and how often that held."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Promise = Literal["coverage", "wrong pass", "family-wise error", "decided"]


class Rival(TypedDict):
    """A method that was measured on the same draws and not chosen."""

    measured: float
    width: float | None


class Row(TypedDict):
    """One design: a world that was drawn many times, and what came out."""

    metric: str
    design: str
    n: int
    confidence: float
    draws: int
    # The shares are sums over all tables and free of the error of draws; `draws` counts the tables.
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
    # What the product prints in this case, where the promise is not kept.
    printed: str | None
