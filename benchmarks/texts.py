"""An update of an intent classifier: MiniLM fine-tuned on Banking77, untreated and treated.

    python benchmarks/texts.py --model DIR --data DIR --out benchmarks/results/texts.json

`--model` is a folder of Transformers with MiniLM-L6 (22 million parameters), `--data` one with
Banking77 as train.jsonl.gz and test.jsonl.gz. Old saw half of the training samples; the updates see
all of them. Every seed has an old model of its own, untreated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.runs.config import from_dict
from flipguard.training import train

RECIPE = {
    "epochs": 10,
    "batch_size": 64,
    "optimizer": "adamw",
    "learning_rate": 2e-4,
    "weight_decay": 0.01,
    "schedule": "linear",
    "warmup": 1.0,
}
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "fd-lm": {},
    "elodi": {"members": 4},
}


def one_seed(
    seed: int, model: str, data: str, device: str, epochs: int, work: Path
) -> list[dict[str, Any]]:
    folder = work / str(seed)

    def run(name: str, method: str, options: dict[str, Any], **more: Any) -> float:
        values = {
            "method": method,
            "options": options,
            "model": f"hf:{model}",
            "pretrained": True,
            "data": data,
            "recipe": {**RECIPE, "epochs": epochs},
            "machine": {
                "device": device,
                "precision": "bf16-mixed" if device == "cuda" else "32-true",
            },
            **more,
        }
        began = time.monotonic()
        train(from_dict(values), folder / name, report=lambda _: None)
        return time.monotonic() - began

    half = {"scope": {"samples": 0.5, "per_class": False}, "seeds": {"seed": 1000 + seed}}
    run("old", "none", {}, **half)
    rows = []
    for name, options in METHODS.items():
        seconds = run(name, name, options, old=[str(folder / "old")], seeds={"seed": seed})
        was, now = (_labels(folder / one) for one in ("old", name))
        target = _targets(folder / name)
        rows.append(
            {
                "method": name,
                "options": options,
                "seed": seed,
                "error_rate_old": round(float((was != target).mean()), 4),
                "error_rate_new": round(float((now != target).mean()), 4),
                "negative_flip_rate": round(float(((was == target) & (now != target)).mean()), 4),
                "churn": round(float((was != now).mean()), 4),
                "seconds": round(seconds, 1),
            }
        )
        print(rows[-1], flush=True)
    shutil.rmtree(folder)
    return rows


def _labels(folder: Path) -> np.ndarray:
    return np.load(folder / "predictions" / "test.npz")["logits"].argmax(1)


def _targets(folder: Path) -> np.ndarray:
    return np.load(folder / "predictions" / "test.npz")["targets"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=RECIPE["epochs"])
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    own = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as work,
        ProcessPoolExecutor(given.at_once, mp_context=own) as pool,
    ):
        jobs = [
            pool.submit(
                one_seed, seed, given.model, given.data, given.device, given.epochs, Path(work)
            )
            for seed in range(given.seeds)
        ]
        rows = [row for job in jobs for row in job.result()]
    device = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor()
    document = {
        "command": "python benchmarks/texts.py --model DIR --data DIR --out FILE"
        f" --seeds {given.seeds} --epochs {given.epochs}",
        "machine": {
            "device": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "recipe": {**RECIPE, "epochs": given.epochs},
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
