"""The settings that say which part of the data a run may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from flipguard.runs.key import keyed

OWN: Final = "own"  # the data's own validation split


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The part of the data that a run may see, for example all that existed for an old model."""

    samples: float = 1.0  # the share of the training samples
    classes: int | None = None  # how many classes
    # Chooses the validation split, the classes and the samples of the share, so runs with the same
    # seed share them.
    seed: int = 0
    class_choice: Literal["random", "first"] = keyed(
        "random", key_default="first", no_effect={"classes": None}
    )
    # True: the share of each class. False: each sample is drawn by its id, so the shares of classes
    # vary.
    per_class: bool = keyed(True, key_default=False, no_effect={"samples": 1.0})
    # The share of each class that is held out of training to measure on, or the data's own split.
    validation: float | Literal["own"] | None = keyed(None, key_default=None)
