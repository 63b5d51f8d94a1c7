"""How sure models are: by how much their first probability is above their second."""

from __future__ import annotations

import numpy as np

from flipguard.studies.analyses.base import Analysed, histogram, updates_of
from flipguard.studies.planning import Plan
from flipguard.studies.predictions import predictions_of

EDGES = np.linspace(0.0, 1.0, 21)


def confidences(plan: Plan) -> dict[int, Analysed]:
    """How many test samples new is how sure of."""
    wanted = plan.study.histogram
    assert wanted is not None
    found = {}
    for place in wanted.places:
        margins = []
        for update in updates_of(plan, place):
            shares = np.sort(predictions_of(update.sides[1]).probabilities, axis=1)
            margins.append(shares[:, -1] - shares[:, -2])
        if margins:
            found[place] = Analysed(
                histogram=histogram("confidence", EDGES, {"test samples": margins})
            )
    return found
