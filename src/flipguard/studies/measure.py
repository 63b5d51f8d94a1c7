"""The library's own metrics of two finished runs, with numpy alone.

`flipguard compare` says the same of their prediction files; that needs a table library, which a
machine that trains may not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.archives import read_archive
from flipguard.counts import BINS, DISTANCE_UNIT, SIDES, UNIT, FlipCounts, Layout, Side, bin_name
from flipguard.engines.kernel import SideRows, match_classes, side_and_pair_rows
from flipguard.errors import InputError
from flipguard.metrics import METRICS

Array = npt.NDArray[Any]

ACCURACY = "accuracy"
"""The churn paper's word for one less the error of new; no metric of its own."""


def measured(old: Path, new: Path, names: Sequence[str]) -> dict[str, float]:
    """Metrics of an update from the prediction files of two runs, on the samples both know."""
    counts = counts_of(_predictions(old), _predictions(new))
    found = {}
    for name in names:
        of = "error_rate_new" if name == ACCURACY else name
        value = float(METRICS[of].value(counts))
        found[name] = 1.0 - value if name == ACCURACY else value
    return found


def counts_of(old: dict[str, Array], new: dict[str, Array]) -> FlipCounts:
    """What two prediction files have in common, counted."""
    places_old, places_new = _joined(old["ids"], new["ids"])
    if not len(places_old):
        raise InputError("Expected two runs with test samples in common, but they have none.")
    names = [[str(n) for n in one["class_names"]] for one in (old, new)]
    scores = (old["logits"][places_old], new["logits"][places_new])
    first, second, pair = side_and_pair_rows(
        *scores, kinds=("logits", "logits"), matching=match_classes(*names), exponent=1.0
    )
    assert first is not None
    assert second is not None
    assert pair is not None
    # All by name, because a class may have another place once there are more of them.
    target = np.asarray(names[1])[new["targets"][places_new]]
    said = [np.asarray(names[i])[side.top] for i, side in enumerate((first, second))]
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


def _joined(old: Array, new: Array) -> tuple[Array, Array]:
    """Where the samples that both files have are in each of them."""
    if np.array_equal(old, new):
        every = np.arange(len(old))
        return every, every
    _, first, second = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return first, second


def _predictions(folder: Path) -> dict[str, Array]:
    path = folder / "predictions" / "test.npz"
    return read_archive(path, kind="NPZ", write="train the run again")
