"""Compute metrics of finished runs from their logits, with numpy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.archives import read_archive
from flipguard.counts import SIDES, FlipCounts, StatisticsLayout, flip_cells
from flipguard.engines.score_kernel import match_classes, side_and_pair_rows
from flipguard.engines.score_statistics import pair_statistics, side_statistics, sums_by_group
from flipguard.errors import InputError
from flipguard.metrics import METRICS
from flipguard.runs.folder import Run, predictions_path
from flipguard.runs.targets import class_indices

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogits:
    """The logits of some samples, with their ids, classes and targets by name."""

    ids: Array
    logits: Array
    targets: Array  # indices into the class names
    class_names: tuple[str, ...]

    @property
    def predicted(self) -> Array:
        """The predicted classes, by name."""
        found: Array = np.asarray(self.class_names)[self.logits.argmax(1)]
        return found

    @property
    def target(self) -> Array:
        """The true classes, by name."""
        return np.asarray(self.class_names)[self.targets]

    @property
    def probabilities(self) -> Array:
        """The softmax of the logits, in double precision."""
        logits = self.logits.astype(np.float64)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        found: Array = weights / weights.sum(1, keepdims=True)
        return found

    def at(self, places: Array) -> RunLogits:
        """Return the logits of some samples."""
        return dataclasses.replace(
            self, ids=self.ids[places], logits=self.logits[places], targets=self.targets[places]
        )


def read_run_logits(folders: Sequence[Path]) -> RunLogits:
    """Return the logits of a run, or the mean logits of several runs."""
    first = _read(folders[0])
    if len(folders) == 1:
        return first
    # One after the other, because the logits of many classes take much memory.
    total = first.logits.astype(np.float64)
    for folder in folders[1:]:
        total += _read(folder).logits
    return dataclasses.replace(first, logits=total / len(folders))


def member_folders(ensemble: Path) -> list[Path]:
    """Return the folders of an ensemble's members."""
    return [ensemble / place for place in Run.read(ensemble).document["members"]]


def align_on_ids(old: RunLogits, new: RunLogits) -> tuple[RunLogits, RunLogits]:
    """Return both on the samples that both have, in the same order."""
    if np.array_equal(old.ids, new.ids):
        return old, new
    _, first, second = np.intersect1d(old.ids, new.ids, assume_unique=True, return_indices=True)
    if not len(first):
        raise InputError("Expected two runs with test samples in common, but they have none.")
    return old.at(first), new.at(second)


def _read(folder: Path) -> RunLogits:
    # A run with a validation split is measured on it, so that the test split stays unused.
    path = predictions_path(folder, "validation")
    if not path.exists():
        path = predictions_path(folder, "test")
    found = read_archive(path, kind="NPZ", write="train the run again")
    names = tuple(str(name) for name in found["class_names"])
    return RunLogits(
        ids=found["ids"],
        logits=found["logits"],
        targets=class_indices(found["targets"], names),
        class_names=names,
    )


def accuracy(of: RunLogits) -> float:
    """Return the share of correct predictions."""
    return float((of.predicted == of.target).mean())


# Metrics of the new model alone that are not in the library.
OWN: dict[str, Callable[[RunLogits], float]] = {"accuracy": accuracy}


def measured(old: Sequence[Path], new: Sequence[Path], names: Sequence[str]) -> dict[str, float]:
    """Return metrics of an update from its runs' prediction files, on the common samples.

    A side of several runs is the mean of their logits.
    """
    first, second = align_on_ids(read_run_logits(old), read_run_logits(new))
    counts = counts_of(first, second)
    return {
        name: OWN[name](second) if name in OWN else float(METRICS[name].value(counts))
        for name in names
    }


def counts_of(old: RunLogits, new: RunLogits) -> FlipCounts:
    """Return the counts of two models' predictions on the same samples."""
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
    # Classes are compared by name, because their indices may change when classes are added.
    target = new.target
    predicted = [
        np.asarray(one.class_names)[side.top] for one, side in ((old, first), (new, second))
    ]
    known = np.ones(len(target), dtype=bool)
    per_row = list(pair_statistics(pair, len({*old.class_names, *new.class_names})))
    for side, rows, label in zip(SIDES, (first, second), predicted, strict=True):
        per_row += side_statistics(side, rows, right=label == target, known=known)
    sums = sums_by_group(per_row, np.zeros(len(target), dtype=np.int64), 1)
    cells = flip_cells(predicted[0], predicted[1], target)
    statistics = {name: int(rows.sum()) for name, rows in cells.items()}
    statistics |= {name: int(total[0]) for name, total in sums.items()}
    layout = StatisticsLayout(has_target=True, scored=frozenset(SIDES), has_logits=True)
    return FlipCounts.of(layout, **statistics)
