"""Do intervals and verdicts keep their promises? Every design of `designs/`, drawn many times.

    .venv/bin/python benchmarks/calibration.py [--quick] [--only MODULE] [--out FILE]

A design is a world with a known truth. It is drawn thousands of times, and a row says how often the
interval or the verdict was right. Each part of a module has its own seed, so that the rows depend
neither on the number of processes nor on the other modules.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import pkgutil
import platform
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path

import numpy as np
import scipy

import designs
from designs.judging import holds, promises, shortfall, worst
from designs.row import Row

DRAWS = 4_000
# A quick run tries every part, with few draws of the first designs of each.
QUICK_DRAWS, QUICK_ROWS = 20, 5
RESULT = Path(__file__).parent / "results" / "calibration.json"
Part = Callable[[np.random.Generator, int], Iterator[Row]]


def modules() -> list[str]:
    """The modules of `designs/` that have designs; the others are helpers."""
    names = sorted(module.name for module in pkgutil.iter_modules(designs.__path__))
    return [name for name in names if hasattr(importlib.import_module(f"designs.{name}"), "rows")]


def parts_of(name: str) -> dict[str, Part]:
    """The parts of a module that may run in parallel; the whole module if it names none."""
    module = importlib.import_module(f"designs.{name}")
    return module.parts() if hasattr(module, "parts") else {"": module.rows}


def run_part(name: str, part: str, seed: int, quick: bool) -> tuple[list[Row], float]:
    started = time.process_time()
    words = zlib.crc32(f"{name}/{part}".encode())
    rng = np.random.default_rng(np.random.SeedSequence([seed, words]))
    found = parts_of(name)[part](rng, QUICK_DRAWS if quick else DRAWS)
    rows = list(islice(found, QUICK_ROWS if quick else None))
    return rows, time.process_time() - started


def run(names: Sequence[str], *, seed: int, quick: bool, processes: int) -> dict[str, list[Row]]:
    """The rows of each module, in the order of its parts."""
    todo = {name: list(parts_of(name)) for name in names}
    found: dict[tuple[str, str], list[Row]] = {}
    seconds = dict.fromkeys(names, 0.0)
    with ProcessPoolExecutor(processes) as pool:
        waiting = {
            pool.submit(run_part, name, part, seed, quick): (name, part)
            for name, parts in todo.items()
            for part in parts
        }
        for done in as_completed(waiting):
            name, part = waiting[done]
            found[name, part], took = done.result()
            seconds[name] += took
            if all((name, part) in found for part in todo[name]):
                count = sum(len(found[name, part]) for part in todo[name])
                print(f"{name}: {count} rows, {seconds[name]:.0f} s", file=sys.stderr, flush=True)
    return {
        name: [row for part in parts for row in found[name, part]] for name, parts in todo.items()
    }


def judged(row: Row) -> dict[str, object]:
    """A row for the results: rounded, and marked with which of its promises are kept."""
    return {
        **_rounded(row),
        "kept": {
            one["promise"]: {
                "nominal": _digits(one["nominal"]),
                "measured": _digits(one["measured"]),
                "holds": holds(one),
                "short": _digits(max(shortfall(one), 0.0)),
            }
            for one in promises(row)
        },
    }


def _rounded(row: Row) -> dict[str, object]:
    rivals = {
        name: {key: _digits(value) for key, value in rival.items()}
        for name, rival in row["rivals"].items()
    }
    return {**{key: _digits(value) for key, value in row.items()}, "rivals": rivals}


def _digits(value: object) -> object:
    if not isinstance(value, float):
        return value
    # A corrected level is close to 1 and its errors are close to 0. JSON has no infinity.
    return float(f"{value:.6g}") if math.isfinite(value) else None


def print_worst(rows: Sequence[Row]) -> None:
    for row in worst(rows):
        mark = "holds" if holds(row) else f"FAILS by {100 * shortfall(row):.2f} points"
        width = "" if row["width"] is None else f"width {row['width']:.4f}"
        print(
            f"{row['metric']:44} {row['promise']:18} {100 * row['nominal']:6.2f} "
            f"{100 * row['measured']:6.2f}  {mark:24} {width:14} n = {row['n']}, {row['design']}"
        )


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few draws: does it run?")
    parser.add_argument("--only", action="append", help="only this module; may be repeated")
    parser.add_argument("--seed", type=int, default=20240607)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")
    arguments = parser.parse_args()
    known = modules()
    names = arguments.only or known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"--only: there is no module {', '.join(unknown)}; there are {known}")
    if arguments.out is None and not arguments.quick and not arguments.only:
        arguments.out = RESULT
    started = time.perf_counter()
    found = run(names, seed=arguments.seed, quick=arguments.quick, processes=arguments.processes)
    rows = [row for name in names for row in found[name]]
    print_worst(rows)
    if arguments.out is None:
        return
    record = {
        "schema": "flipguard.calibration/2",
        "command": " ".join(["python benchmarks/calibration.py", *sys.argv[1:]]),
        "seed": arguments.seed,
        "quick": arguments.quick,
        "draws": QUICK_DRAWS if arguments.quick else DRAWS,
        "seconds": round(time.perf_counter() - started),
        "processes": arguments.processes,
        "machine": {
            "cpu": cpu(),
            "system": platform.system(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "worst": [judged(row) | {"promise": row["promise"]} for row in worst(rows)],
        "rows": [judged(row) for row in rows],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
