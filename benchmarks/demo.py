"""What `flipguard demo` shows, seed by seed.

    python benchmarks/demo.py --out benchmarks/results/demo.json

The settings of its methods were chosen on other data and other seeds: `demo_settings.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from flipguard.demo import (
    DATA,
    OLD_OPTIONS,
    POLICY,
    RECIPE,
    UPDATES,
    DemoResult,
    judge_updates,
    tasks,
    train_all,
)

RATES = (
    *("error_rate_old", "error_rate_new", "accuracy_gain", "negative_flip_rate"),
    *("relative_negative_flip_rate", "churn", "negative_flip_ratio"),
)


def one_seed(seed: int) -> list[dict[str, Any]]:
    """Return one row for each update of the demo with this seed."""
    with tempfile.TemporaryDirectory() as folder:
        runs, policy = Path(folder) / "runs", Path(folder) / "gate.toml"
        policy.write_text(POLICY)
        train_all(tasks(runs, seed=seed), progress=lambda *_: None)
        return [{"seed": seed, **row_of(update)} for update in judge_updates(runs, policy)]


def row_of(update: DemoResult) -> dict[str, Any]:
    row: dict[str, Any] = {"update": update.name, "options": UPDATES[update.name]}
    for name in RATES:
        estimate = update.comparison[name]
        row[name] = round(estimate.value, 6) if estimate.is_defined else None
    flips = update.comparison["negative_flip_rate"]
    return row | {
        "interval": [round(flips.low, 6), round(flips.high, 6)],
        "verdict": update.verdict.verdict,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=11)
    given = parser.parse_args()
    import torch

    from calibration import cpu

    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        began = time.monotonic()
        rows += one_seed(seed)
        print(f"seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
        for row in rows[-len(UPDATES) :]:
            print(row, flush=True)
        document = {
            "command": f"python benchmarks/demo.py --out FILE --seeds {seed + 1}",
            "machine": {
                "cpu": cpu(),
                "cores": os.cpu_count(),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "data": DATA,
            "recipe": RECIPE,
            "old": OLD_OPTIONS,
            "rows": rows,
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
