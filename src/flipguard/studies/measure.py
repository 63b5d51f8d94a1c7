"""The library's own metrics of two finished runs, with numpy alone.

`flipguard compare` says the same of their prediction files; that needs a table library, which a
machine that trains may not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.counts import BINS, DISTANCE_UNIT, SIDES, UNIT, FlipCounts, Layout, Side, bin_name
from flipguard.engines.kernel import SideRows, match_classes, side_and_pair_rows
from flipguard.metrics import METRICS
from flipguard.studies.predictions import Predictions, joined, predictions_of

Array = npt.NDArray[Any]


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
    statistics = _cells(said[0], said[1], target)
    for side, rows, label in zip(SIDES, (first, second), said, strict=True):
        statistics |= _side(side, rows, label == target)
    statistics |= {"surrogate": _fixed(pair.surrogate, UNIT)}
    if pair.distance is not None:
        statistics |= {"distance": _fixed(pair.distance, DISTANCE_UNIT)}
    layout = Layout(has_target=True, scored=frozenset({"old", "new"}), has_logits=True)
    return FlipCounts.of(layout, **statistics)


def _cells(old: Array, new: Array, target: Array) -> dict[str, int]:
    was, now, same = old == target, new == target, old == new
    masks = {
        "both_right": was & now,
        "negative_flip": was & ~now,
        "positive_flip": ~was & now,
        "wrong_same": ~was & ~now & same,
        "wrong_different": ~was & ~now & ~same,
    }
    return {name: int(mask.sum()) for name, mask in masks.items()}


def _side(side: Side, rows: SideRows, right: npt.NDArray[np.bool_]) -> dict[str, int]:
    """Confidence of one model, and its calibration bin by bin."""
    confidence = np.minimum(rows.confidence, 1.0)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    found = {f"{side}_margin": _fixed(rows.margin, UNIT)}
    for index in range(BINS):
        inside = bins == index
        found[bin_name(side, index, "n")] = int(inside.sum())
        found[bin_name(side, index, "right")] = int(right[inside].sum())
        found[bin_name(side, index, "confidence")] = _fixed(confidence[inside], UNIT)
    return found


def _fixed(values: Array, step: float) -> int:
    """A sum in whole units, rounded once a row, as counts are kept."""
    return int(np.rint(values / step).astype(np.int64).sum())
