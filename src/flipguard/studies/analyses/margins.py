"""Margins: by how much the first probability of a model is above its second."""

from __future__ import annotations

import numpy as np

from flipguard.studies.analyses.base import Analysed, histogram, updates_of
from flipguard.studies.planning import Plan
from flipguard.studies.predictions import predictions_of

EDGES = np.linspace(0.0, 1.0, 21)


def margins_of_new(plan: Plan) -> dict[int, Analysed]:
    """Histograms of the margins of new over the test samples."""
    wanted = plan.study.histogram
    assert wanted is not None
    found = {}
    for place in wanted.places:
        margins = []
        for update in updates_of(plan, place):
            shares = np.sort(predictions_of(update.sides[1]).probabilities, axis=1)
            margins.append(shares[:, -1] - shares[:, -2])
        if margins:
            found[place] = Analysed(histogram=histogram("margin", EDGES, {"test samples": margins}))
    return found
