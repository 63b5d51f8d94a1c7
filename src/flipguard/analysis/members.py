"""Groups of models on the same samples: their class scores, read in blocks of rows.

Numbers only: reading files belongs to `flipguard.analysis.reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from flipguard.errors import InputError, listed

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
# The scores of some rows by every model of each group, of shape (models, rows, classes).
Block: TypeAlias = dict[str, Array]

BYTES_PER_BLOCK = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MemberScores:
    """The class scores of groups of models, such as `old` and `new`, on the same samples.

    `names` are the models of each group, and `targets` are indices into `class_names`.
    `left_out` is the number of samples that not all models have, or whose class not all know.
    """

    names: Mapping[str, tuple[str, ...]]
    kind: Literal["logits", "probabilities"]
    class_names: tuple[str, ...]
    targets: IntArray
    ids: tuple[object, ...]
    read: Callable[[], Iterator[Block]]
    left_out: int = 0

    def __repr__(self) -> str:
        groups = ", ".join(f"{len(names)} {role}" for role, names in self.names.items())
        return f"<MemberScores: {groups}, n={self.n:,}, {len(self.class_names):,} classes>"

    @classmethod
    def from_arrays(
        cls,
        groups: Mapping[str, Array | Sequence[Array]],
        *,
        targets: Sequence[int] | Array,
        class_names: Sequence[object] | None = None,
        ids: Sequence[object] | None = None,
        kind: Literal["logits", "probabilities"] = "logits",
    ) -> MemberScores:
        """Members from arrays of shape (models, samples, classes), by the name of their group.

        >>> MemberScores.from_arrays({"old": np.zeros((2, 5, 3))}, targets=[0, 1, 2, 0, 1])
        <MemberScores: 2 old, n=5, 3 classes>
        """
        given = {role: np.asarray(scores) for role, scores in groups.items()}
        shapes = {scores.shape[1:] for scores in given.values()}
        if len(shapes) != 1 or any(scores.ndim != 3 for scores in given.values()):
            raise InputError(
                "Expected `groups` to be arrays of shape (models, samples, classes) with the same "
                f"samples and classes, but got {listed([one.shape for one in given.values()])}."
            )
        n, classes = next(iter(shapes))
        if len(targets) != n:
            raise InputError(
                f"Expected `targets` to be {n:,} indices of classes, one per sample, but got "
                f"{len(targets):,}."
            )

        def read() -> Iterator[Block]:
            models = sum(len(scores) for scores in given.values())
            step = rows_per_block(models, classes, next(iter(given.values())).itemsize)
            for start in range(0, n, step):
                yield {role: scores[:, start : start + step] for role, scores in given.items()}

        return cls(
            names={
                role: tuple(f"{role} {i}" for i in range(1, len(scores) + 1))
                for role, scores in given.items()
            },
            kind=kind,
            class_names=tuple(map(str, range(classes) if class_names is None else class_names)),
            targets=np.asarray(targets, dtype=np.int64),
            ids=tuple(range(n) if ids is None else ids),
            read=read,
        )

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.targets)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Return all scores a block of rows at a time, with the place of the block."""
        start = 0
        for block in self.read():
            stop = start + next(iter(block.values())).shape[1]
            yield slice(start, stop), block
            start = stop

    def count(self, role: str) -> int:
        """Return the number of models of a group; 0 if it was not given."""
        return len(self.names.get(role, ()))

    def probabilities(self, scores: Array) -> Array:
        """Return scores as probabilities in double precision."""
        values = scores.astype(np.float64)
        if self.kind == "probabilities":
            return values
        values -= values.max(axis=-1, keepdims=True)
        np.exp(values, out=values)
        values /= values.sum(axis=-1, keepdims=True)
        return values


def rows_per_block(models: int, classes: int, item_size: int = 4) -> int:
    """Return how many rows of all models' scores make a block."""
    return max(16, BYTES_PER_BLOCK // (models * classes * item_size))


def mean_scores(scores: Array) -> Array:
    """Return the mean over models, summed in double precision."""
    found: Array = scores.mean(axis=0, dtype=np.float64)
    return found
