"""Two updates of one classifier, measured and judged, from nothing but their predictions.

The predictions are generated: ten classes of road signs, an old model, and two candidates that are
as accurate as each other. One was simply trained again; the other was trained to agree with the old
model. Averages cannot tell them apart. Their flips can.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from flipguard import Predictions, write_predictions

FOLDER = Path("road-signs")
SIGNS = (
    "stop", "yield", "speed_30", "speed_50", "no_entry",
    "priority", "crossing", "roundabout", "one_way", "parking",
)  # fmt: skip
SAMPLES = 8_000

POLICY = """\
# What an update of the sign classifier may do.
confidence = 0.95

[[rule]]                      # of all signs, at most 3 % may break
metric = "negative_flip_rate"
max = 0.03

[[rule]]                      # accuracy may drop by half a point at most
metric = "accuracy_gain"
min = -0.005

[[rule]]                      # no single sign may lose more than 6 %
metric = "negative_flip_rate"
by = "target"
max = 0.06
min_n = 100
correction = "holm"
"""


def generate() -> None:
    """Old, a plain retrain, and a candidate that was kept close to old."""
    rng = np.random.default_rng(2021)
    target = rng.integers(0, len(SIGNS), SAMPLES)
    weather = rng.choice(["clear", "rain", "night"], SAMPLES, p=[0.6, 0.25, 0.15])
    clarity = np.where(weather == "clear", 4.6, np.where(weather == "rain", 3.4, 2.8))
    image = rng.standard_normal((SAMPLES, len(SIGNS)))
    image[np.arange(SAMPLES), target] += clarity
    habit = rng.standard_normal((2, SAMPLES, len(SIGNS)))

    def model(habits: np.ndarray, skill: float) -> np.ndarray:
        logits = image + 0.9 * habits
        logits[np.arange(SAMPLES), target] += skill
        return logits.astype(np.float32)

    models = {
        "old": model(habit[0], 0.00),
        "retrained": model(habit[1], 0.12),
        "congruent": model(0.92 * habit[0] + np.sqrt(1 - 0.92**2) * habit[1], 0.12),
    }
    for name, logits in models.items():
        predictions = Predictions.from_arrays(
            ids=[f"frame-{i:05d}" for i in range(SAMPLES)],
            targets=[SIGNS[i] for i in target],
            logits=logits,
            class_names=SIGNS,
            slices={"weather": weather},
        )
        write_predictions(predictions, FOLDER / f"{name}.parquet")
    (FOLDER / "gate.toml").write_text(POLICY)


def run(*arguments: str) -> int:
    """Runs a flipguard command as it would be typed."""
    print(f"\n$ flipguard {shlex.join(arguments)}\n", flush=True)
    command = [sys.executable, "-m", "flipguard", *arguments]
    return subprocess.run(command, cwd=FOLDER, check=False).returncode


def main() -> None:
    """Generates, compares, judges, and says where everything lies."""
    FOLDER.mkdir(exist_ok=True)
    generate()
    codes = [
        run("compare", "old.parquet", "retrained.parquet", "--by", "target", "--by", "weather",
            "--flips", "flips.csv"),
        run("gate", "old.parquet", "retrained.parquet", "--policy", "gate.toml",
            "--json", "retrained.json", "--markdown", "retrained.md"),
        run("gate", "old.parquet", "congruent.parquet", "--policy", "gate.toml",
            "--control", "retrained.parquet", "--json", "congruent.json"),
    ]  # fmt: skip
    if codes != [0, 1, 0]:
        sys.exit(f"This example expected exit codes 0, 1 and 0, but got {codes}.")
    print(
        f"\nBoth candidates are more accurate than the old model. The plain retrain was refused "
        f"(exit code 1),\nthe other may ship (exit code 0). Everything lies in {FOLDER}/: "
        "predictions, flips.csv (worst first),\nthe policy, and the verdicts as JSON and Markdown."
    )


if __name__ == "__main__":
    main()
