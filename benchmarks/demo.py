"""What `flipguard demo` shows, seed by seed.

    python benchmarks/demo.py --out benchmarks/results/demo.json

Its sizes and settings were chosen by looking at seeds 0 and 1, and at no other. Beside its three
updates, focal distillation is run with other weights: more of it breaks less, and learns less.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from flipguard.comparison import Comparison
from flipguard.demo.judging import POLICY, judged
from flipguard.demo.plan import CONTROL, OLD_OPTIONS, UPDATES, Task, tasks
from flipguard.demo.training import train_all
from flipguard.measuring import compare
from flipguard.predictions.read import read_predictions

WEIGHTS = (0.02, 0.1, 1.0)


def one_seed(seed: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        runs, policy = Path(folder) / "runs", Path(folder) / "gate.toml"
        policy.write_text(POLICY)
        plan = tasks(runs, seed=seed)
        train_all(plan, progress=lambda *_: None)
        updates = judged(runs, policy)
        rows = [
            {
                "seed": seed,
                "update": update.name,
                "options": UPDATES[update.name],
                **rates(update.comparison),
                "verdict": update.verdict.verdict,
            }
            for update in updates
        ]
        focal = next(task for task in plan if task.name == "fd-lm")
        others = [weighted(focal, weight) for weight in WEIGHTS]
        train_all(others, progress=lambda *_: None)
        for weight, task in zip(WEIGHTS, others, strict=True):
            result = compare(
                old=predictions(runs / "old"),
                new=predictions(task.folder),
                control=[predictions(runs / CONTROL)],
            )
            rows.append(
                {
                    "seed": seed,
                    "update": "fd-lm",
                    "options": {"weight": weight},
                    **rates(result),
                }
            )
    return rows


def weighted(task: Task, weight: float) -> Task:
    name = f"fd-lm-{weight}"
    config = dataclasses.replace(task.config, options={"weight": weight})
    return dataclasses.replace(
        task, name=name, folder=task.folder.with_name(name), config=config, after=frozenset()
    )


def predictions(run: Path) -> Any:
    return read_predictions(run / "predictions" / "test.npz")


def rates(result: Comparison) -> dict[str, float | None]:
    names = (
        *("error_rate_old", "error_rate_new", "negative_flip_rate"),
        *("relative_negative_flip_rate", "churn", "negative_flip_ratio"),
    )
    return {
        name: round(result[name].value, 4) if result[name].is_defined else None for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=11)
    given = parser.parse_args()
    import torch

    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        rows += one_seed(seed)
        for row in rows[-len(UPDATES) - len(WEIGHTS) :]:
            print(row, flush=True)
        document = {
            "command": f"python benchmarks/demo.py --out FILE --seeds {given.seeds}",
            "machine": {
                "device": f"{os.cpu_count()} cores",
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "old": OLD_OPTIONS,
            "rows": rows,
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
