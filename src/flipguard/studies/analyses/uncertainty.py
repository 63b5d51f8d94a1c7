"""Negative flips by the uncertainty of their samples, as an ensemble beside old and new sees it.

The uncertainty of a sample is the standard deviation, over the members, of the probability of the
class that they predict together: 0 if they agree to the digit, and at most a half.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flipguard.studies.analyses.base import (
    Analysed,
    Array,
    counted,
    histogram,
    mean,
    updates_of,
)
from flipguard.studies.planning import Plan, Update
from flipguard.studies.predictions import joined, members_of, predictions_of

EDGES = np.linspace(0.0, 0.5, 26)
FLIPPED, OTHERS = "negative flips", "other samples"


def uncertainties(plan: Plan) -> dict[int, Analysed]:
    """How uncertain flipped samples are, and how well uncertainty tells them from others."""
    wanted = plan.study.histogram
    assert wanted is not None
    # Once a seed, though several lines are judged by it.
    judged = {seed: uncertainty_of(judge) for seed, judge in plan.judges.items()}
    found = {}
    for place in wanted.places:
        seen = [_seen(update, *judged[update.seed]) for update in updates_of(plan, place)]
        if seen:
            found[place] = _analysed(seen)
    return found


def uncertainty_of(ensemble: Path) -> tuple[Array, Array]:
    """The ids of the test samples, and how uncertain each of them is."""
    members = members_of(ensemble)
    ids = predictions_of(members[:1]).ids
    # Read twice and added up, since the probabilities of many classes take much memory.
    together = sum(predictions_of([member]).probabilities for member in members)
    top = np.asarray(together).argmax(1)
    every = np.arange(len(top))
    shares = [predictions_of([member]).probabilities[every, top] for member in members]
    return ids, np.std(shares, axis=0)


def _seen(update: Update, ids: Array, uncertainty: Array) -> tuple[Array, Array]:
    """The uncertainty of every sample, and whether it is a negative flip."""
    old, new = joined(*(predictions_of(side) for side in update.sides))
    order = np.argsort(ids)
    places = order[np.searchsorted(ids, new.ids, sorter=order)]
    flipped = (old.said == old.target) & (new.said != new.target)
    return uncertainty[places], flipped


def _analysed(seen: list[tuple[Array, Array]]) -> Analysed:
    values: dict[str, list[float]] = {}
    for uncertainty, flipped in seen:
        sure = uncertainty <= np.median(uncertainty)
        of_seed = {
            "flip_rate_sure": mean(flipped[sure]),
            "flip_rate_unsure": mean(flipped[~sure]),
            "uncertainty_flipped": mean(uncertainty[flipped]),
            "uncertainty_others": mean(uncertainty[~flipped]),
            "flips_told_apart": told_apart(uncertainty, flipped),
        }
        for name, value in of_seed.items():
            values.setdefault(name, []).append(value)
    counts = {
        FLIPPED: [counted(uncertainty[flipped], EDGES) for uncertainty, flipped in seen],
        OTHERS: [counted(uncertainty[~flipped], EDGES) for uncertainty, flipped in seen],
    }
    return Analysed(values=values, histogram=histogram("uncertainty", EDGES, counts))


def told_apart(values: Array, marked: Array) -> float:
    """The chance that a marked sample has a higher value than another: a half is no difference.

    >>> told_apart(np.array([1.0, 2.0, 3.0]), np.array([False, False, True]))
    1.0
    """
    if not marked.any() or marked.all():
        return float("nan")
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # equal values share their ranks
    most = int(marked.sum())
    above = rank[marked].sum() - most * (most + 1) / 2
    return float(above / (most * (len(values) - most)))
