"""The library's own metrics of two finished runs, with numpy alone.

`flipguard compare` says the same of their prediction files; that needs a table library, which a
machine that trains may not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flipguard.counts import SIDES, FlipCounts, Layout, flip_cells
from flipguard.engines.kernel import match_classes, side_and_pair_rows
from flipguard.engines.score_statistics import pair_statistics, side_statistics, sums_by_group
from flipguard.metrics import METRICS
from flipguard.studies.predictions import Predictions, joined, predictions_of


def entropy(of: Predictions) -> float:
    """The mean entropy of the predicted probabilities, in nats."""
    shares = of.probabilities
    return float(-(shares * np.log(np.maximum(shares, np.finfo(float).tiny))).sum(1).mean())


def accuracy(of: Predictions) -> float:
    """The share of samples that are right."""
    return float((of.said == of.target).mean())


# Of new alone, and no metrics of the library.
OWN: dict[str, Callable[[Predictions], float]] = {"accuracy": accuracy, "entropy_new": entropy}


def measured(old: Sequence[Path], new: Sequence[Path], names: Sequence[str]) -> dict[str, float]:
    """Metrics of an update from the prediction files of its runs, on the samples both know.

    A side of several runs is the mean of their logits.
    """
    first, second = joined(predictions_of(old), predictions_of(new))
    counts = counts_of(first, second)
    return {
        name: OWN[name](second) if name in OWN else float(METRICS[name].value(counts))
        for name in names
    }


def counts_of(old: Predictions, new: Predictions) -> FlipCounts:
    """What two models said of the same samples, counted."""
    first, second, pair = side_and_pair_rows(
        old.logits,
        new.logits,
        kinds=("logits", "logits"),
        matching=match_classes(list(old.class_names), list(new.class_names)),
        exponent=1.0,
    )
    assert first is not None
    assert second is not None
    assert pair is not None
    # All by name, because a class may have another place once there are more of them.
    target = new.target
    said = [np.asarray(one.class_names)[side.top] for one, side in ((old, first), (new, second))]
    known = np.ones(len(target), dtype=bool)
    per_row = list(pair_statistics(pair, len({*old.class_names, *new.class_names})))
    for side, rows, label in zip(SIDES, (first, second), said, strict=True):
        per_row += side_statistics(side, rows, right=label == target, known=known)
    sums = sums_by_group(per_row, np.zeros(len(target), dtype=np.int64), 1)
    cells = flip_cells(said[0], said[1], target)
    statistics = {name: int(rows.sum()) for name, rows in cells.items()}
    statistics |= {name: int(total[0]) for name, total in sums.items()}
    layout = Layout(has_target=True, scored=frozenset(SIDES), has_logits=True)
    return FlipCounts.of(layout, **statistics)
