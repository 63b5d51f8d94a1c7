"""Whether a row keeps its promise, and which row of a metric is the worst."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from designs.row import Promise, Row

# How far a coverage may lie below the confidence, not counting the random error of the draws.
COVERAGE_POINTS = 0.02
# A wrong pass is an error on one side: 2.5 % at a confidence of 0.95, and up to 4 % is accepted.
WRONG_PASSES = 1.6
STANDARD_ERRORS = 2
# Of these metrics, which must not fall, a wrong pass is an interval wholly above the truth.
HIGHER_IS_BETTER = ("accuracy_gain", "macro_f1_gain", "precision", "recall", "f1")
# Confidences from here on come from a correction for many groups. Their rows are judged by the
# family-wise error, because a coverage of 99.995 % minus 2 points would prove nothing.
CORRECTED = 0.991


def bound(row: Row) -> float:
    """The share that a row must reach (coverage, decided) or may not exceed (errors)."""
    if row["promise"] == "wrong pass":
        return WRONG_PASSES * (1 - row["confidence"]) / 2
    if row["promise"] == "family-wise error":
        return row["nominal"]
    return row["nominal"] - COVERAGE_POINTS


def is_error(promise: Promise) -> bool:
    """Whether the promise is that something is rare."""
    return promise in ("wrong pass", "family-wise error")


def shortfall(row: Row) -> float:
    """By how much a row misses its bound, as a share; negative if it keeps it."""
    beyond = row["measured"] - bound(row)
    return beyond if is_error(row["promise"]) else -beyond


def holds(row: Row) -> bool:
    """Whether the promise is kept, with a tolerance of two standard errors of the draws."""
    share = min(max(bound(row), 0.0), 1.0)
    error = 0.0 if row.get("exact") else math.sqrt(share * (1 - share) / row["draws"])
    return shortfall(row) <= STANDARD_ERRORS * error + 1e-12


def promises(row: Row) -> Iterator[Row]:
    """The row, and the second promise that follows from an interval's two sides.

    The wrong pass of a rate that must stay low is an interval wholly below the truth; that of a
    metric that must not fall is an interval wholly above it.
    """
    yield row
    above, below = row["above"], row["below"]
    if above is None or below is None or row["confidence"] >= CORRECTED:
        return
    if row["promise"] == "coverage":
        wrong = above if row["metric"].startswith(HIGHER_IS_BETTER) else below
        tail = (1 - row["confidence"]) / 2
        yield row | {"promise": "wrong pass", "nominal": tail, "measured": wrong, "rivals": {}}
    elif row["promise"] == "wrong pass":
        covered = 1 - above - below
        yield row | {
            "promise": "coverage",
            "nominal": row["confidence"],
            "measured": covered,
            "rivals": {},
        }


def all_promises(rows: Iterable[Row]) -> list[Row]:
    return [promise for row in rows for promise in promises(row)]


def worst(rows: Iterable[Row]) -> list[Row]:
    """Per metric and promise, the row that misses its bound by most or keeps it by least."""
    found: dict[tuple[str, str], Row] = {}
    for row in all_promises(rows):
        key = row["metric"], row["promise"]
        if key not in found or _badness(row) > _badness(found[key]):
            found[key] = row
    return list(found.values())


def _badness(row: Row) -> tuple[bool, float]:
    # Errors at different confidences are compared by their ratio to the accepted error.
    share = shortfall(row) / bound(row) if is_error(row["promise"]) else shortfall(row)
    return not holds(row), share
