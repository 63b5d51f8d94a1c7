"""Members of two groups, for `flipguard analyze`: many trainings of two small classifiers.

    python examples/members.py       # writes members/*.npz

Each model is a ridge regression on random features. The models of a group differ by their seed
alone; the new group has more features. `treated.npz` is a new model that keeps the features of an
old one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import flipguard as fg

FOLDER = Path("members")
CLASSES = ["bus", "car", "bike", "tram", "van", "truck", "taxi", "train", "boat", "plane"]
MODELS, TRAIN, TEST, INPUTS = 16, 1_500, 1_500, 16
WIDTHS = {"old": 60, "new": 110}
PENALTY, SCALE = 20.0, 9.0


def make_data(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes: three clusters per class."""
    centres = random.normal(size=(len(CLASSES), 3, INPUTS))
    targets = random.integers(0, len(CLASSES), TRAIN + TEST)
    inputs = centres[targets, random.integers(0, 3, len(targets))]
    return inputs + 0.75 * random.normal(size=inputs.shape), targets


def train(wanted: np.ndarray, inputs: np.ndarray, *parts: tuple[int, int]) -> np.ndarray:
    """Fit a model with features of these widths and seeds; return logits of the test samples."""
    features = np.hstack([features_of(inputs, width, seed) for width, seed in parts])
    known, unknown = features[:TRAIN], features[TRAIN:]
    penalty = PENALTY * np.eye(features.shape[1])
    weights = np.linalg.solve(known.T @ known + penalty, known.T @ wanted)
    return (SCALE * (unknown @ weights)).astype(np.float32)


def features_of(inputs: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Random features: what makes one model differ from another."""
    random = np.random.default_rng(seed)
    return np.maximum(inputs @ random.normal(size=(INPUTS, width)) / INPUTS**0.5, 0)


def generate() -> None:
    """Train all models, and write their predictions on the test samples."""
    FOLDER.mkdir(exist_ok=True)
    inputs, targets = make_data(np.random.default_rng(3))
    right = np.eye(len(CLASSES))[targets[:TRAIN]]
    for number, (role, width) in enumerate(WIDTHS.items()):
        for i in range(MODELS):
            write(f"{role}-{i:02}", train(right, inputs, (width, 100 * number + i)), targets)
    # The treated model keeps the features of the first old one, and adds own ones.
    kept = (WIDTHS["old"], 0)
    added = (WIDTHS["new"] - WIDTHS["old"], 100)
    write("treated", train(right, inputs, kept, added), targets)


def write(name: str, logits: np.ndarray, targets: np.ndarray) -> None:
    """Write the predictions of one model."""
    predictions = fg.Predictions.from_arrays(
        ids=np.arange(TEST), targets=targets[TRAIN:], logits=logits, class_names=CLASSES
    )
    fg.write_predictions(predictions, FOLDER / f"{name}.npz")


if __name__ == "__main__":
    generate()
