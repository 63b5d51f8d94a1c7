"""What the analyses cost: 16 models per group, 10,000 samples, 1,000 classes.

    python benchmarks/analysis.py [--quick] [--out benchmarks/results/analysis.json]

The members are made up: their logits are a common part, a shift between the groups, and normal
deviations that samples share, such that single models are right on about three samples of four.
Each analysis runs as the command does, in its own process, from 32 NPZ files to JSON and a
picture; its time and its peak memory are those of that process. The committed rows were measured
next to many other programs, so `seconds` is several times that of an idle machine, and
`processor_seconds` is the number to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SAMPLES, CLASSES, MODELS, DIRECTIONS = 10_000, 1_000, 16, 24
SEED = 11
ANALYSES = ("sizes", "law", "rank", "uncertainty")


def make_members(folder: Path, *, samples: int, classes: int) -> None:
    """Two groups of members, and a treated model, as NPZ files of float32 logits."""
    random = np.random.default_rng(SEED)
    targets = random.integers(0, classes, samples)
    every = np.arange(samples)
    common = random.standard_normal((samples, classes), dtype=np.float32)
    common[every, targets] += random.gamma(2.0, 3.2, samples).astype(np.float32)
    deviations = random.standard_normal((DIRECTIONS, classes), dtype=np.float32)
    for role, shift in (("old", 0.0), ("new", 0.5)):
        moved = common + shift * random.standard_normal((samples, classes), dtype=np.float32)
        # Each sample mixes the directions in its own way, which all models of a group share.
        mixing = random.standard_normal((samples, DIRECTIONS), dtype=np.float32)
        for model in range(MODELS):
            own = mixing * random.standard_normal(DIRECTIONS, dtype=np.float32)
            logits = moved + own @ deviations / np.float32(np.sqrt(DIRECTIONS))
            write(folder / f"{role}-{model:02}.npz", logits, targets)
            if role == "new" and model == 0:
                write(folder / "treated.npz", (logits + common) / 2, targets)


def write(path: Path, logits: np.ndarray, targets: np.ndarray) -> None:
    names = np.array([f"class {i}" for i in range(logits.shape[1])])
    np.savez(path, ids=np.arange(len(targets)), targets=names[targets], logits=logits,
             class_names=names)  # fmt: skip


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Run one analysis in its own process, and return its time, memory and claims."""
    command = [
        *(sys.executable, "-m", "flipguard", "analyze", name),
        *("--old", str(folder / "old-*.npz"), "--new", str(folder / "new-*.npz")),
        *("--json", str(folder / f"{name}.json"), "--plot", str(folder / f"{name}.png")),
    ]
    if name == "uncertainty":
        command += ["--treated", str(folder / "treated.npz")]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} failed with exit code {process.returncode}")
    found = json.loads((folder / f"{name}.json").read_text())
    row = {
        "analysis": name,
        "seconds": round(seconds, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gib": round(usage.ru_maxrss / 2**20, 2),
        "holds": [claim["holds"] for claim in found["claims"]],
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples and classes")
    parser.add_argument("--only", action="append", choices=ANALYSES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size = {"samples": 500, "classes": 50} if options.quick else {
        "samples": SAMPLES, "classes": CLASSES
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_members(folder, **size)
        rows = [measured(one, folder) for one in options.only or ANALYSES]
    if options.only and options.out is not None and options.out.exists():
        # The others' rows stay.
        before = json.loads(options.out.read_text())["rows"]
        rows = [row for row in before if row["analysis"] not in options.only] + rows
    document = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(),
                    "numpy": np.__version__},
        "members": {**size, "models_per_group": MODELS, "type": "float32"},
        "rows": rows,
    }  # fmt: skip
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
