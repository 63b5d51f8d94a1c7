"""How sure the two models are, and how right that is: from counts that were kept anyway."""

from __future__ import annotations

from dataclasses import dataclass

from flipguard.comparison import Comparison
from flipguard.counts import BINS, SIDES, Side
from flipguard.report.content import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The samples whose top probability lies in one range."""

    low: float
    high: float
    n: int
    share: float
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """One model's confidence beside its accuracy."""

    side: Side
    bins: tuple[Bin, ...]
    error: Number
    margin: Number


def reliabilities(result: Comparison) -> tuple[Reliability, ...]:
    """Of each model that has scores; none where no target is known."""
    if not result.layout.has_target or result.counts.labelled == 0:
        return ()
    return tuple(_reliability(result, side) for side in SIDES if side in result.layout.scored)


def _reliability(result: Comparison, side: Side) -> Reliability:
    n, right, confidence = (result.counts.bins(side, part) for part in ("n", "right", "confidence"))
    total = float(n.sum())
    error, margin = f"expected_calibration_error_{side}", f"margin_{side}"
    return Reliability(
        side=side,
        bins=tuple(
            Bin(
                low=b / BINS,
                high=(b + 1) / BINS,
                n=int(n[b]),
                share=float(n[b]) / total,
                confidence=float(confidence[b] / n[b]),
                accuracy=float(right[b] / n[b]),
            )
            for b in range(BINS)
            if n[b] > 0
        ),
        error=Number.of(error, result[error]),
        margin=Number.of(margin, result[margin]),
    )
