"""One score per row: how a score of the positive class and a threshold are described.

How such scores become classes belongs to `flipguard.engines.binary`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flipguard.errors import InputError
from flipguard.predictions.names import class_name


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryScore:
    """A column of scores: a row is of the positive class if its score is at least the threshold.

    `positive` is the name of that class; None if the classes are 0 and 1, or false and true.
    """

    column: str
    threshold: float
    positive: str | None = None


def binary_score(column: str | None, threshold: object, positive: object) -> BinaryScore | None:
    """Return the description of a score; None if there is none, an error if a part is missing.

    >>> binary_score("score", 0.5, "fraud")
    BinaryScore(column='score', threshold=0.5, positive='fraud')
    """
    if column is None:
        for argument, given in (("threshold", threshold), ("positive", positive)):
            if given is not None:
                raise InputError(
                    f"Expected `positive_score=` with `{argument}=`: it names the column of scores "
                    "that are compared with the threshold."
                )
        return None
    if threshold is None:
        raise InputError(
            f"Expected `threshold=` with `positive_score=`: the score from which a row of column "
            f"'{column}' is positive."
        )
    name = None if positive is None else class_name(positive)
    return BinaryScore(column=column, threshold=checked_threshold(threshold), positive=name)


def checked_threshold(given: object, argument: str = "threshold") -> float:
    """Return a threshold as a float; raise if it is no finite number."""
    is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given):  # type: ignore[arg-type]
        raise InputError(f"Expected `{argument}=` to be a finite number, but got {given!r}.")
    return float(given)  # type: ignore[arg-type]


def refuse_two_predictions(name: str, others: Mapping[str, object]) -> None:
    """Raise if a table with a score of the positive class names other predictions too."""
    for argument, given in others.items():
        if given is not None:
            raise InputError(
                f"{name} has both a score of the positive class and `{argument}=`, and each says "
                f"what is predicted; give one of them."
            )
