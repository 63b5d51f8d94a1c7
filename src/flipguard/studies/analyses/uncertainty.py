"""Negative flips by the uncertainty of their samples, as an ensemble beside old and new sees it.

The uncertainty of a sample is the standard deviation, over the members, of the probability of the
class that they predict together: 0 if they agree to the digit, and at most a half.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np

from flipguard.counts import flip_cells
from flipguard.studies.analyses.base import (
    Analysed,
    Array,
    histogram,
    mean,
    updates_of,
)
from flipguard.studies.planning import Plan, Update
from flipguard.studies.predictions import joined, members_of, predictions_of

EDGES = np.linspace(0.0, 0.5, 26)
FLIPPED, OTHERS = "negative flips", "other samples"
# How uncertain every sample is, and whether it is a negative flip.
Seen: TypeAlias = tuple[Array, Array]


def uncertainties(plan: Plan) -> dict[int, Analysed]:
    """How uncertain flipped samples are, and how well uncertainty tells them from others."""
    wanted = plan.study.histogram
    assert wanted is not None
    # Once a seed, though several lines are judged by it.
    judged = {seed: uncertainty_of(judge) for seed, judge in plan.judges.items()}
    seen = {
        place: [_seen(update, *judged[update.seed]) for update in updates_of(plan, place)]
        for place in wanted.places
    }
    found = {}
    for place, of_seeds in seen.items():
        control = plan.study.control_of(place)
        beside = seen.get(control, []) if control is not None and control != place else []
        if of_seeds:
            found[place] = _analysed(of_seeds, beside)
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


def _seen(update: Update, ids: Array, uncertainty: Array) -> Seen:
    """The uncertainty of every sample, and whether it is a negative flip."""
    old, new = joined(*(predictions_of(side) for side in update.sides))
    order = np.argsort(ids)
    places = order[np.searchsorted(ids, new.ids, sorter=order)]
    flipped = flip_cells(old.said, new.said, new.target)["negative_flip"]
    return uncertainty[places], flipped


def _analysed(seen: list[Seen], control: list[Seen]) -> Analysed:
    """By seed, also against the untreated update where there is one beside this."""
    values: dict[str, list[float]] = {}
    for number, (uncertainty, flipped) in enumerate(seen):
        sure, unsure = rates_of_halves(uncertainty, flipped)
        of_seed = {
            "flip_rate_sure": sure,
            "flip_rate_unsure": unsure,
            "uncertainty_flipped": mean(uncertainty[flipped]),
            "uncertainty_others": mean(uncertainty[~flipped]),
            "flips_told_apart": told_apart(uncertainty, flipped),
        }
        if control:
            was_sure, was_unsure = rates_of_halves(*control[number])
            # Of a half without flips, nothing can be left.
            left = [
                now / was if was else float("nan")
                for now, was in ((sure, was_sure), (unsure, was_unsure))
            ]
            of_seed["flips_left_sure"], of_seed["flips_left_unsure"] = left
            of_seed["flips_left_apart"] = left[1] - left[0]
        for name, value in of_seed.items():
            values.setdefault(name, []).append(value)
    samples = {
        FLIPPED: [uncertainty[flipped] for uncertainty, flipped in seen],
        OTHERS: [uncertainty[~flipped] for uncertainty, flipped in seen],
    }
    return Analysed(values=values, histogram=histogram("uncertainty", EDGES, samples))


def rates_of_halves(uncertainty: Array, flipped: Array) -> tuple[float, float]:
    """The share of flips in the surer half of the samples, and in the other one."""
    sure = uncertainty <= np.median(uncertainty)
    return mean(flipped[sure]), mean(flipped[~sure])


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
