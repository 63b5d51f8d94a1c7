"""What finished runs said of the test samples, and several of them as one: the mean of logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.archives import read_archive
from flipguard.errors import InputError
from flipguard.training.folder import Run

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The logits of some samples, with their ids, classes and targets by name."""

    ids: Array
    logits: Array
    targets: Array  # places among the class names
    class_names: tuple[str, ...]

    @property
    def said(self) -> Array:
        """The class that is predicted, by name."""
        found: Array = np.asarray(self.class_names)[self.logits.argmax(1)]
        return found

    @property
    def target(self) -> Array:
        """The true class, by name."""
        return np.asarray(self.class_names)[self.targets]

    @property
    def probabilities(self) -> Array:
        """Softmax, in double precision."""
        logits = self.logits.astype(np.float64)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        found: Array = weights / weights.sum(1, keepdims=True)
        return found

    def at(self, places: Array) -> Predictions:
        """Those of some samples."""
        return dataclasses.replace(
            self, ids=self.ids[places], logits=self.logits[places], targets=self.targets[places]
        )


def predictions_of(folders: Sequence[Path]) -> Predictions:
    """What a run said; of several runs, the mean of their logits."""
    first = _read(folders[0])
    if len(folders) == 1:
        return first
    # One after the other, since those of many classes take much memory.
    total = first.logits.astype(np.float64)
    for folder in folders[1:]:
        total += _read(folder).logits
    return dataclasses.replace(first, logits=total / len(folders))


def members_of(ensemble: Path) -> list[Path]:
    """The runs that an ensemble is the mean of."""
    return [ensemble / place for place in Run.read(ensemble).document["members"]]


def joined(old: Predictions, new: Predictions) -> tuple[Predictions, Predictions]:
    """Both on the samples that both have, in one order."""
    if np.array_equal(old.ids, new.ids):
        return old, new
    _, first, second = np.intersect1d(old.ids, new.ids, assume_unique=True, return_indices=True)
    if not len(first):
        raise InputError("Expected two runs with test samples in common, but they have none.")
    return old.at(first), new.at(second)


def _read(folder: Path) -> Predictions:
    path = folder / "predictions" / "test.npz"
    found = read_archive(path, kind="NPZ", write="train the run again")
    return Predictions(
        ids=found["ids"],
        logits=found["logits"],
        targets=found["targets"],
        class_names=tuple(str(name) for name in found["class_names"]),
    )
