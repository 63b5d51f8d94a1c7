"""True classes in a run's prediction files, as the reader of prediction tables takes them.

Integers are indices into the class names, except if all names are integers: then 2 is the class
that is called 2, whatever its index is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.formatting import is_integer

Array = npt.NDArray[Any]


def written_targets(indices: Array, class_names: Sequence[str]) -> Array:
    """Return class indices as a prediction file has them.

    >>> written_targets(np.array([0, 1]), ["3", "8"]), written_targets(np.array([0, 1]), ["a", "b"])
    (array([3, 8]), array([0, 1]))
    """
    if not all(is_integer(name) for name in class_names):
        return indices
    found: Array = np.array([int(name) for name in class_names], dtype=np.int64)[indices]
    return found


def class_indices(targets: Array, class_names: Sequence[str]) -> Array:
    """Return class indices from the targets of a prediction file.

    >>> class_indices(np.array([8, 3]), ["3", "8"])
    array([1, 0])
    """
    if not all(is_integer(name) for name in class_names):
        return targets
    names = np.array([int(name) for name in class_names], dtype=np.int64)
    order = names.argsort()
    found: Array = order[np.searchsorted(names, targets, sorter=order)]
    return found
