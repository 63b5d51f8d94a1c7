"""How many training steps several processes make together on one GPU, each with a net of its own.

    nvidia-cuda-mps-control -d
    python benchmarks/processes.py --model resnet9:width=32 --processes 1 4 8 --out FILE

Every process replays the captured steps of one net, all of them begin at once, and each is timed
for some seconds. Without NVIDIA's MPS daemon they take turns on the GPU; with it their kernels run
side by side.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from pathlib import Path
from typing import Any

import torch

from ensembles import Bench

SECONDS = 3.0
PATIENCE = 120.0


def settings(device: str, batch: int, steps: int) -> argparse.Namespace:
    """What the steps of `ensembles.py` are measured with."""
    return argparse.Namespace(
        device=device, members=1, batch=batch, warm_up=3, rounds=1, steps=steps, epochs=1, views=1
    )


def work(model: str, device: str, batch: int, together: Any, told: Any) -> None:
    """One process: some steps to know how many fill the time, then those, with the others."""
    times = []
    for steps in (20, 0):
        count = steps or max(int(1e3 * SECONDS / times[0]), 2)
        bench = Bench(model, settings(device, batch, count))
        bench.since = time.perf_counter()
        if not steps:
            together.wait()
        times.append(bench.student(None))
    told.put(times[-1])


def measured(model: str, count: int, device: str, batch: int) -> dict[str, Any]:
    """Milliseconds of a step in each of so many processes, and of a step of any of them."""
    own = multiprocessing.get_context("spawn")
    together, told = own.Barrier(count), own.Queue()
    workers = [
        own.Process(target=work, args=(model, device, batch, together, told)) for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    each = [told.get(timeout=PATIENCE) for _ in workers]
    for worker in workers:
        worker.join()
    return {
        "model": model,
        "processes": count,
        "milliseconds_each": [round(one, 2) for one in each],
        "milliseconds_together": round(1 / sum(1 / one for one in each), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet9:width=32")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    for count in given.processes:
        rows.append(measured(given.model, count, given.device, given.batch))
        print(rows[-1], flush=True)
    document = {
        "command": f"python benchmarks/processes.py --model {given.model} --processes "
        f"{' '.join(map(str, given.processes))} --batch {given.batch} --out FILE",
        "machine": {
            "device": torch.cuda.get_device_name() if given.device == "cuda" else "CPU",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
