"""Format numbers for the pages of results."""

from __future__ import annotations


def percent(value: float, decimals: int = 1) -> str:
    return f"{100 * value:.{decimals}f} %"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def with_range(values: list[float], decimals: int = 1) -> str:
    """Format a mean over seeds in percent, with the lowest and the highest."""
    low, high = (f"{100 * value:.{decimals}f}" for value in (min(values), max(values)))
    return f"{percent(mean(values), decimals)} ({low}–{high})"


def signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")
