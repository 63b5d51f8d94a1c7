"""Where the class that new wrongly predicts stands among old's logits, of negative flips."""

from __future__ import annotations

import numpy as np

from flipguard.counts import flip_cells
from flipguard.studies.analyses.base import (
    Analysed,
    Array,
    histogram,
    mean,
    updates_of,
)
from flipguard.studies.planning import Plan
from flipguard.studies.predictions import Predictions, joined, predictions_of

# All further ranks are counted with the last one, which is then called "20 and more".
MOST_RANKS = 20


def ranks(plan: Plan) -> dict[int, Analysed]:
    """How high the wrong class of a negative flip ranked in old, which was right."""
    wanted = plan.study.histogram
    assert wanted is not None
    found = {}
    for place in wanted.places:
        updates = updates_of(plan, place)
        if not updates:
            continue
        of_seeds, classes = [], 0
        for update in updates:
            old, new = joined(*(predictions_of(side) for side in update.sides))
            of_seeds.append(ranks_of_flips(old, new))
            classes = len(old.class_names)
        edges = np.arange(min(classes, MOST_RANKS) + 1) + 0.5
        found[place] = Analysed(
            values={
                "flip_rank": [mean(one) for one in of_seeds],
                # Of a class drawn at random from all but the first, which is the right one.
                "flip_rank_by_chance": [(classes + 2) / 2 for _ in of_seeds],
                "flip_second": [mean(one == 2) for one in of_seeds],
            },
            histogram=histogram("rank", edges, {"negative flips": of_seeds}),
        )
    return found


def ranks_of_flips(old: Predictions, new: Predictions) -> Array:
    """The rank in old of new's wrong class, from 1 on, a number a negative flip."""
    said = new.said
    flips = flip_cells(old.said, said, new.target)["negative_flip"]
    place = {name: index for index, name in enumerate(old.class_names)}
    # A class that old does not know has no rank there.
    wrong = np.array([place.get(str(name), -1) for name in said[flips]], dtype=np.int64)
    logits, wrong = old.logits[flips][wrong >= 0], wrong[wrong >= 0]
    own = logits[np.arange(len(wrong)), wrong]
    found: Array = 1 + (logits > own[:, None]).sum(1)
    return found
