"""Progress of a training: the interface of monitors, and one that reports lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from flipguard.formatting import format_percent
from flipguard.runs.history import measured_split

Report: TypeAlias = Callable[[str], None]


class Monitor(Protocol):
    """Receives the progress of a training."""

    def note(self, text: str) -> None:
        """Receive a sentence."""

    def epoch(
        self,
        done: int,
        of: int,
        rows: Sequence[Mapping[str, Any]],
        timing: Mapping[str, Any],
        seconds_left: float,
    ) -> None:
        """Receive the history rows of an epoch, one per model, and its timing."""


class LineMonitor:
    """Passes progress as lines to a function such as `print`."""

    def __init__(self, report: Report) -> None:
        self.note = report

    def epoch(
        self,
        done: int,
        of: int,
        rows: Sequence[Mapping[str, Any]],
        timing: Mapping[str, Any],
        seconds_left: float,
    ) -> None:
        """Report a line; for several models it shows their means."""
        losses = "".join(
            f"  {name} {_mean([row['losses'][name] for row in rows]):.3f}"
            for name in rows[0]["losses"]
        )
        self.note(
            f"{'  ' * (len(rows) > 1)}epoch {done}/{of}{losses}{_rates(rows)}"
            f"  {timing['samples_a_second']:,} samples/s  {timing['memory_mib']:,} MiB memory"
            f"  {seconds_left:.0f} s left"
        )


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    split = measured_split(rows[0])
    if split is None:  # this epoch was not measured
        return ""
    error = _mean([row[split]["error_rate"] for row in rows])
    if len(rows) > 1:
        return f"  {split} error {format_percent(error)} on average"
    flips = [rates["negative_flip_rate"] for rates in rows[0][split]["old"].values()]
    return f"  {split} error {format_percent(error)}" + "".join(
        f"  NFR {format_percent(rate)}" for rate in flips if rate is not None
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
