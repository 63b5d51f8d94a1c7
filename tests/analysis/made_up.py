"""Made-up members: groups of models whose logits share samples, classes and deviations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flipguard.analysis import MemberScores

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")


def made_up(
    *,
    models: int = 6,
    samples: int = 80,
    classes: int = 4,
    apart: float = 0.5,
    heavy: bool = False,
    seed: int = 0,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Logits by group, of shape (models, samples, classes), and targets.

    `apart` is how far the groups' mean logits are from each other; `heavy` models deviate much
    more seldom and farther than a normal law says.
    """
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, samples)
    mean = random.normal(size=(samples, classes))
    mean[np.arange(samples), targets] += 1.5
    directions = random.normal(size=(samples, 12, classes)) / np.sqrt(12)
    groups = {}
    for number, role in enumerate(("old", "new")):
        mixing = random.normal(size=(models, 12))
        if heavy:
            mixing *= random.standard_t(2.5, size=(models, 1))
        shift = number * apart * random.normal(size=(samples, classes))
        logits = mean + shift + np.einsum("mr,src->msc", mixing, directions)
        groups[role] = logits.astype(np.float32)
    return groups, targets


def members(**options: object) -> MemberScores:
    """The same, ready to be analyzed."""
    groups, targets = made_up(**options)  # type: ignore[arg-type]
    return MemberScores.from_arrays(groups, targets=targets)


def written(folder: Path, **options: object) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The same as files: old0.npz, …, new0.npz, …; returns what was written."""
    groups, targets = made_up(**options)  # type: ignore[arg-type]
    for role, logits in groups.items():
        for i, one in enumerate(logits):
            names = NAMES[: one.shape[1]]
            np.savez(
                folder / f"{role}{i}.npz",
                ids=np.arange(len(targets)),
                targets=np.array(names)[targets],
                logits=one,
                class_names=names,
            )
    return groups, targets
