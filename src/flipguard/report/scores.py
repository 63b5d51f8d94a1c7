"""Calibration of the scores, and the distance between old and new logits, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flipguard.comparison import Comparison
from flipguard.counts import BINS, SIDES, Side
from flipguard.render.numbers import Number

FloatArray = npt.NDArray[np.float64]
# In the order of `flipguard.counts.CELLS`.
OUTCOMES = ("stay right", "break", "are fixed", "stay wrong", "change to another wrong class")
DISTANCE_BINS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The samples whose confidence lies in one range."""

    low: float
    high: float
    n: int
    share: float
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """One model's accuracy per bin of confidence, its calibration error and its mean margin."""

    side: Side
    bins: tuple[Bin, ...]
    error: Number
    margin: Number


def reliabilities(result: Comparison) -> tuple[Reliability, ...]:
    """The reliability of each model that has scores; empty if no target is known."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeDistances:
    """The logit distances of the samples with one outcome."""

    outcome: str
    n: int
    mean: float
    median: float
    upper: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """The distances of every outcome; `edges` are the bin edges of all their `shares`."""

    edges: tuple[float, ...]
    moved: tuple[OutcomeDistances, ...]


def displacement_of(result: Comparison) -> Displacement | None:
    """The distances by outcome; None without logits or targets, or if there are too many."""
    if result.plan is None or not (result.layout.has_logits and result.layout.has_target):
        return None
    if result.counts.labelled == 0:
        return None
    distances = result.with_details(["distances"]).distances
    return None if distances is None else displaced(distances.values, distances.cells)


def displaced(
    distances: FloatArray, outcomes: Sequence[int] | npt.NDArray[np.int8]
) -> Displacement:
    """The distribution of distances within each outcome."""
    places = np.asarray(outcomes)
    # The largest 0.5 % would stretch the axis, so they are counted in the last bin.
    end = float(np.quantile(distances, 0.995)) or 1.0
    # With few flips narrow bins would show only noise.
    flips = int(np.isin(places, (1, 2)).sum())
    edges = np.linspace(0.0, end, int(np.clip(np.sqrt(flips), 8, DISTANCE_BINS)) + 1)
    moved = []
    for place, outcome in enumerate(OUTCOMES):
        found = distances[places == place]
        if len(found):
            shares = np.histogram(np.minimum(found, end), bins=edges)[0] / len(found)
            moved.append(
                OutcomeDistances(
                    outcome=outcome,
                    n=len(found),
                    mean=float(found.mean()),
                    median=float(np.median(found)),
                    upper=float(np.quantile(found, 0.9)),
                    shares=tuple(float(share) for share in shares),
                )
            )
    return Displacement(edges=tuple(float(edge) for edge in edges), moved=tuple(moved))
