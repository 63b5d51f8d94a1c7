"""How far the logits of a sample move, by what became of the sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.comparison import Comparison
from flipguard.engines.expressions import NEW, OLD, TARGET
from flipguard.engines.labelled import COLUMNS
from flipguard.engines.local import with_control_labels
from flipguard.engines.plan import RowCounts
from flipguard.engines.scored import ScoredCounting

FloatArray = npt.NDArray[np.float64]
OUTCOMES = ("stay right", "break", "are mended", "stay wrong", "wrong to other wrong")
BINS = 30
# Beyond this another look at all scores would take longer than a reader waits.
MOST_NUMBERS = 400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The distances of the samples of one outcome."""

    outcome: str
    n: int
    mean: float
    median: float
    upper: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """All outcomes on one scale: `edges` are those of the bins that shares are of."""

    edges: tuple[float, ...]
    moved: tuple[Moved, ...]


def displacement_of(result: Comparison) -> Displacement | None:
    """The distances by outcome; None without logits and targets, or where it would take long."""
    plan = result.plan
    if plan is None or not (result.layout.has_logits and result.layout.has_target):
        return None
    if result.counts.labelled == 0:
        return None
    scored = ScoredCounting(with_control_labels(plan))
    if result.n * sum(scored.widths) > MOST_NUMBERS:
        return None
    distances: list[FloatArray] = []
    outcomes: list[npt.NDArray[np.int8]] = []
    for block in scored.blocks(COLUMNS - {"id", "cuts"}, [RowCounts(matched=0)]):
        if block.pair is None or block.pair.distance is None:
            return None
        distances.append(block.pair.distance)
        outcomes.append(block.table.select(_outcome())["outcome"].to_numpy())
    return displaced(np.concatenate(distances), np.concatenate(outcomes))


def _outcome() -> pl.Expr:
    """The place of a row's outcome in `OUTCOMES`; -1 where the target is unknown."""
    old, new, target = pl.col(OLD), pl.col(NEW), pl.col(TARGET)
    return (
        pl.when(target.is_null())
        .then(-1)
        .when((old == target) & (new == target))
        .then(0)
        .when(old == target)
        .then(1)
        .when(new == target)
        .then(2)
        .when(old == new)
        .then(3)
        .otherwise(4)
        .cast(pl.Int8)
        .alias("outcome")
    )


def displaced(
    distances: FloatArray, outcomes: Sequence[int] | npt.NDArray[np.int8]
) -> Displacement:
    """The distribution of distances within each outcome."""
    places = np.asarray(outcomes)
    # The farthest few would press all others into one corner; they count in the last bin.
    end = float(np.quantile(distances, 0.995)) or 1.0
    # Few flips in narrow bins would be nothing but noise.
    flips = int(np.isin(places, (1, 2)).sum())
    edges = np.linspace(0.0, end, int(np.clip(np.sqrt(flips), 8, BINS)) + 1)
    moved = []
    for place, outcome in enumerate(OUTCOMES):
        found = distances[places == place]
        if len(found):
            shares = np.histogram(np.minimum(found, end), bins=edges)[0] / len(found)
            moved.append(
                Moved(
                    outcome=outcome,
                    n=len(found),
                    mean=float(found.mean()),
                    median=float(np.median(found)),
                    upper=float(np.quantile(found, 0.9)),
                    shares=tuple(float(share) for share in shares),
                )
            )
    return Displacement(edges=tuple(float(edge) for edge in edges), moved=tuple(moved))
