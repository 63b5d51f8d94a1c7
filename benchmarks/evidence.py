"""How long counting takes, beside the same counts in bare Polars, pandas and numpy.

    python benchmarks/evidence.py [--quick] [--out benchmarks/results/evidence.json]

Every case runs in a process of its own, so that its peak memory is its own. Times are the best of
several runs in that process, on a warm disk; ratios are between rows of one run of this program.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics as stats
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / ".data" / "bench"
SEED = 7


# -- data ----------------------------------------------------------------------------------------


def make_aligned(rows: int) -> tuple[Path, Path]:
    """Rising integer ids, integer classes, two files in the same order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = (DATA / f"aligned-old-{rows}.parquet", DATA / f"aligned-new-{rows}.parquet")
    if all(path.exists() for path in paths):
        return paths
    schema = pa.schema([("id", pa.int64()), ("target", pa.int32()), ("label", pa.int32())])
    rng = np.random.default_rng(SEED)
    with pq.ParquetWriter(paths[0], schema) as old, pq.ParquetWriter(paths[1], schema) as new:
        for start in range(0, rows, 2_000_000):
            n = min(2_000_000, rows - start)
            target = rng.integers(0, 100, n, dtype=np.int32)
            columns = {"id": np.arange(start, start + n), "target": target}
            for writer, right in ((old, 0.80), (new, 0.83)):
                other = rng.integers(0, 100, n, dtype=np.int32)
                label = np.where(rng.random(n) < right, target, other).astype(np.int32)
                writer.write_table(pa.table({**columns, "label": label}, schema=schema))
    return paths


def make_shuffled(rows: int) -> tuple[Path, Path]:
    """Text ids, the second file in another order."""
    import numpy as np
    import polars as pl

    paths = (DATA / f"shuffled-old-{rows}.parquet", DATA / f"shuffled-new-{rows}.parquet")
    if all(path.exists() for path in paths):
        return paths
    rng = np.random.default_rng(SEED)
    number = pl.Series("id", rng.permutation(rows))
    ids = pl.select(pl.format("sample-{}", number.cast(pl.String).str.zfill(9))).to_series()
    target = rng.integers(0, 100, rows, dtype=np.int32)
    for path, right in zip(paths, (0.80, 0.83), strict=True):
        other = rng.integers(0, 100, rows, dtype=np.int32)
        label = np.where(rng.random(rows) < right, target, other).astype(np.int32)
        frame = pl.DataFrame({"id": ids, "target": target, "label": label})
        if path is paths[1]:
            frame = frame[rng.permutation(rows)]
        frame.write_parquet(path)
    return paths


def make_scores(rows: int, classes: int) -> tuple[Any, Any, Any]:
    import numpy as np

    rng = np.random.default_rng(SEED)
    target = rng.integers(0, classes, rows)
    old = rng.standard_normal((rows, classes), dtype=np.float32) * 3
    old[np.arange(rows), target] += 6
    new = old + rng.standard_normal((rows, classes), dtype=np.float32)
    return target, old, new


def make_streamed_scores(rows: int, classes: int) -> tuple[Path, Path]:
    """Lists of logits in Parquet, written in pieces."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = (DATA / f"scores-old-{rows}.parquet", DATA / f"scores-new-{rows}.parquet")
    if all(path.exists() for path in paths):
        return paths
    schema = pa.schema(
        [("id", pa.int64()), ("target", pa.int32()), ("logits", pa.list_(pa.float32(), classes))]
    )
    rng = np.random.default_rng(SEED)
    with pq.ParquetWriter(paths[0], schema) as old, pq.ParquetWriter(paths[1], schema) as new:
        for start in range(0, rows, 50_000):
            n = min(50_000, rows - start)
            target = rng.integers(0, classes, n, dtype=np.int32)
            logits = rng.standard_normal((n, classes), dtype=np.float32) * 3
            for writer in (old, new):
                logits = logits + rng.standard_normal((n, classes), dtype=np.float32)
                values = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), classes)
                ids = np.arange(start, start + n)
                columns = {"id": ids, "target": target, "logits": values}
                writer.write_table(pa.table(columns, schema=schema))
    return paths


# -- cases: each returns what one timed run does -------------------------------------------------


def polars_counts() -> list[Any]:
    import polars as pl

    old, new, target = pl.col("label"), pl.col("new_label"), pl.col("target")
    return [
        ((old == target) & (new == target)).sum().alias("both_right"),
        ((old == target) & (new != target)).sum().alias("negative_flip"),
        ((old != target) & (new == target)).sum().alias("positive_flip"),
        ((old != target) & (new != target) & (old == new)).sum().alias("wrong_same"),
        ((old != target) & (new != target) & (old != new)).sum().alias("wrong_different"),
    ]


def aligned_polars(rows: int, *, with_ids: bool) -> Callable[[], Any]:
    import polars as pl

    old, new = (pl.scan_parquet(path) for path in make_aligned(rows))
    extra = [(pl.col("id") == pl.col("new_id")).all().alias("same_ids")] if with_ids else []
    columns = ["target", "label", *(["id"] if with_ids else [])]
    other = {"new_label": "label", **({"new_id": "id"} if with_ids else {})}
    frame = pl.concat([old.select(columns), new.select(**other)], how="horizontal")
    query = frame.select(*polars_counts(), *extra)
    return lambda: query.collect(engine="streaming").row(0)[:5]


def aligned_pandas(rows: int, *, merge: bool) -> Callable[[], Any]:
    import pandas as pd

    paths = make_aligned(rows)

    def run() -> Any:
        old = pd.read_parquet(paths[0])
        new = pd.read_parquet(paths[1], columns=["id", "label"])
        if merge:
            both = old.merge(new, on="id", suffixes=("", "_new"), validate="one_to_one")
        else:
            if not (old["id"].to_numpy() == new["id"].to_numpy()).all():
                raise SystemExit("not aligned")
            both = old.assign(label_new=new["label"])
        right, now = both["label"] == both["target"], both["label_new"] == both["target"]
        same = both["label"] == both["label_new"]
        return (
            int((right & now).sum()),
            int((right & ~now).sum()),
            int((~right & now).sum()),
            int((~right & ~now & same).sum()),
            int((~right & ~now & ~same).sum()),
        )

    return run


def ours(paths: tuple[Path, Path]) -> Callable[[], Any]:
    import flipguard as fg

    def run() -> Any:
        result = fg.compare(old=fg.read_predictions(paths[0]), new=fg.read_predictions(paths[1]))
        names = ("both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different")
        return tuple(int(result.counts[name]) for name in names)

    return run


def shuffled_polars(rows: int) -> Callable[[], Any]:
    import polars as pl

    old, new = (pl.scan_parquet(path) for path in make_shuffled(rows))
    joined = old.join(new.select("id", new_label="label"), on="id")
    query = joined.select(polars_counts())
    return lambda: query.collect(engine="streaming").row(0)


def scores_argmax(rows: int, classes: int) -> Callable[[], Any]:
    _, old, new = make_scores(rows, classes)
    return lambda: (old.argmax(axis=1).sum(), new.argmax(axis=1).sum())


def scores_numpy(rows: int, classes: int) -> Callable[[], Any]:
    """The same quantities as one would write them down, without care for memory."""
    import numpy as np

    _, old, new = make_scores(rows, classes)

    def softmax(z: Any) -> Any:
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def run() -> Any:
        p, q = softmax(old), softmax(new)
        top_p, top_q = np.sort(p, axis=1)[:, -2:], np.sort(q, axis=1)[:, -2:]
        ratio_p, ratio_q = p / top_p[:, 1:], q / top_q[:, 1:]
        return (
            p.argmax(axis=1).sum(),
            q.argmax(axis=1).sum(),
            (top_p[:, 1] - top_p[:, 0]).mean(),
            (top_q[:, 1] - top_q[:, 0]).mean(),
            0.5 * np.abs(ratio_p - ratio_q).sum(axis=1).mean(),
            np.linalg.norm(new - old, axis=1).mean(),
        )

    return run


def scores_ours(rows: int, classes: int) -> Callable[[], Any]:
    import flipguard as fg

    target, old, new = make_scores(rows, classes)

    def run() -> Any:
        result = fg.compare(
            old=fg.Predictions.from_arrays(logits=old, targets=target),
            new=fg.Predictions.from_arrays(logits=new),
        )
        return (result["surrogate_churn"].value, result["logit_displacement"].value)

    return run


def command(arguments: list[str]) -> Callable[[], Any]:
    def run() -> Any:
        subprocess.run(arguments, check=True, capture_output=True, cwd=DATA)
        return None

    return run


def small_files() -> tuple[str, str]:
    import polars as pl

    for name, shift in (("old", 0), ("new", 1)):
        rows = range(1_000)
        frame = pl.DataFrame(
            {
                "id": [f"s{i}" for i in rows],
                "target": [i % 7 for i in rows],
                "label": [(i + shift * (i % 13 == 0)) % 7 for i in rows],
            }
        )
        frame.write_csv(DATA / f"small-{name}.csv")
    return "small-old.csv", "small-new.csv"


def cases(quick: bool) -> dict[str, tuple[str, Callable[[], Callable[[], Any]], int]]:
    """name -> (section, set-up that returns the timed run, repeats)."""
    many, joined = (1_000_000, 100_000) if quick else (100_000_000, 10_000_000)
    rows, classes = (5_000, 100) if quick else (50_000, 1_000)
    stream = 20_000 if quick else 2_000_000
    python = sys.executable
    a = f"{many:,} label rows, aligned"
    b = f"{joined:,} text ids, shuffled"
    c = f"{rows:,} x {classes:,} float32 logits a side, in memory"
    d = f"{stream:,} x 100 float32 logits a side, streamed from Parquet"
    e = "starting up"
    return {
        "aligned: bare Polars, ids not read": (a, lambda: aligned_polars(many, with_ids=False), 5),
        "aligned: bare Polars, ids compared": (a, lambda: aligned_polars(many, with_ids=True), 5),
        "aligned: flipguard": (a, lambda: ours(make_aligned(many)), 5),
        "aligned: pandas, ids compared": (a, lambda: aligned_pandas(many, merge=False), 1),
        "aligned: pandas, merged on id": (a, lambda: aligned_pandas(many, merge=True), 1),
        "shuffled: bare Polars join": (b, lambda: shuffled_polars(joined), 3),
        "shuffled: flipguard": (b, lambda: ours(make_shuffled(joined)), 3),
        "scores: argmax of both": (c, lambda: scores_argmax(rows, classes), 7),
        "scores: flipguard, all metrics": (c, lambda: scores_ours(rows, classes), 7),
        "scores: plain numpy, the same": (c, lambda: scores_numpy(rows, classes), 1),
        "streamed scores: flipguard": (d, lambda: ours(make_streamed_scores(stream, 100)), 1),
        "start: python -c pass": (e, lambda: command([python, "-c", "pass"]), 7),
        "start: import flipguard": (e, lambda: command([python, "-c", "import flipguard"]), 7),
        "start: flipguard compare, 1,000 rows": (
            e,
            lambda: command([python, "-m", "flipguard", "compare", *small_files()]),
            7,
        ),
    }


# -- running -------------------------------------------------------------------------------------


def run_case(name: str, quick: bool) -> dict[str, Any]:
    """One case in this process."""
    section, set_up, repeats = cases(quick)[name]
    run = set_up()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, answer = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        answer = run()
        times.append(time.perf_counter() - start)
    who = resource.RUSAGE_CHILDREN if section == "starting up" else resource.RUSAGE_SELF
    return {
        "section": section,
        "case": name,
        "seconds": min(times),
        "seconds_median": stats.median(times),
        "repeats": repeats,
        "peak_mib": round(resource.getrusage(who).ru_maxrss / 1024),
        "peak_before_mib": round(before / 1024),
        "answer": [float(x) for x in answer] if answer is not None else None,
    }


RATIOS = (
    ("aligned: flipguard", "aligned: bare Polars, ids compared"),
    ("aligned: flipguard", "aligned: bare Polars, ids not read"),
    ("aligned: pandas, ids compared", "aligned: flipguard"),
    ("aligned: pandas, merged on id", "aligned: flipguard"),
    ("shuffled: flipguard", "shuffled: bare Polars join"),
    ("scores: flipguard, all metrics", "scores: argmax of both"),
    ("scores: plain numpy, the same", "scores: flipguard, all metrics"),
)


def machine() -> dict[str, Any]:
    import importlib.metadata as metadata

    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    packages = ("flipguard", "numpy", "scipy", "polars", "pyarrow", "pandas")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "evidence.json")
    options = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    if options.case:
        print(json.dumps(run_case(options.case, options.quick)))
        return
    rows = []
    for name in cases(options.quick):
        arguments = [sys.executable, __file__, "--case", name]
        done = subprocess.run(
            [*arguments, *(["--quick"] if options.quick else [])], capture_output=True, text=True
        )
        if done.returncode:
            rows.append({"case": name, "failed": done.stderr.strip().splitlines()[-1:]})
            print(f"{name:42s} failed ({done.returncode})")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        print(f"{name:42s} {row['seconds']:9.3f} s  {row['peak_mib']:7,} MiB", flush=True)
    seconds = {row["case"]: row["seconds"] for row in rows if "seconds" in row}
    ratios = [
        {"of": a, "to": b, "ratio": seconds[a] / seconds[b]}
        for a, b in RATIOS
        if a in seconds and b in seconds
    ]
    print()
    for row in ratios:
        print(f"{row['ratio']:8.2f}  {row['of']}  /  {row['to']}")
    if not options.quick:
        document = {
            "command": "python benchmarks/evidence.py",
            "seed": SEED,
            "machine": machine(),
            "rows": rows,
            "ratios": ratios,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
