"""How long counting takes, next to the same counts in bare Polars, DuckDB, pandas and numpy.

    python benchmarks/evidence.py [--quick] [--rounds 1] [--only TEXT]
                                  [--out benchmarks/results/evidence.json]

Every case runs in its own process, so that peak memory is per case. Times are the best of several
runs in that process, on a warm disk; ratios are between rows of one run of this program. With
several rounds all cases take turns, so that a machine that is busy for a while delays none alone.
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
from functools import partial
from importlib.util import find_spec
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


def make_shuffled(rows: int, *, integers: bool = False) -> tuple[Path, Path]:
    """Ids as text or as integers, the second file in another order."""
    import numpy as np
    import polars as pl

    kind = "integers" if integers else "shuffled"
    paths = (DATA / f"{kind}-old-{rows}.parquet", DATA / f"{kind}-new-{rows}.parquet")
    if all(path.exists() for path in paths):
        return paths
    rng = np.random.default_rng(SEED)
    number = pl.Series("id", rng.permutation(rows))
    text = pl.format("sample-{}", number.cast(pl.String).str.zfill(9))
    ids = number if integers else pl.select(text.alias("id")).to_series()
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


def make_update(rows: int, classes: int) -> tuple[Path, Path]:
    """Lists of logits of two models that mostly agree, as an update leaves them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = (DATA / f"update-old-{rows}.parquet", DATA / f"update-new-{rows}.parquet")
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
            logits[np.arange(n), target] += 10
            for writer in (old, new):
                noise = rng.standard_normal((n, classes), dtype=np.float32)
                values = (logits + 0.6 * noise).ravel()
                lists = pa.FixedSizeListArray.from_arrays(pa.array(values), classes)
                columns = {"id": np.arange(start, start + n), "target": target, "logits": lists}
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


def shuffled_polars(paths: tuple[Path, Path], *, unique: bool = False) -> Callable[[], Any]:
    """A join and the counts; `unique` makes sure that no id is there twice, as flipguard does."""
    import polars as pl

    old, new = (pl.scan_parquet(path) for path in paths)
    joined = old.join(new.select("id", new_label="label"), on="id")
    query = joined.select(polars_counts())
    ids = [side.select(n=pl.len(), different=pl.col("id").n_unique()) for side in (old, new)]

    def run() -> Any:
        for side in ids if unique else ():
            n, different = side.collect(engine="streaming").row(0)
            if n != different:
                raise SystemExit("an id is there twice")
        return query.collect(engine="streaming").row(0)

    return run


DUCKDB_COUNTS = """
    select count(*) filter (o.label = o.target and n.label = o.target),
           count(*) filter (o.label = o.target and n.label <> o.target),
           count(*) filter (o.label <> o.target and n.label = o.target),
           count(*) filter (o.label <> o.target and n.label <> o.target and o.label = n.label),
           count(*) filter (o.label <> o.target and n.label <> o.target and o.label <> n.label)
    from read_parquet(?) o join read_parquet(?) n using (id)
"""


def shuffled_duckdb(paths: tuple[Path, Path], *, unique: bool = False) -> Callable[[], Any]:
    """The same in DuckDB, with as many threads as there are cores."""
    import duckdb

    connection = duckdb.connect()
    places = [str(path) for path in paths]

    def run() -> Any:
        for place in places if unique else ():
            query = "select count(*), count(distinct id) from read_parquet(?)"
            n, different = connection.execute(query, [place]).fetchall()[0]
            if n != different:
                raise SystemExit("an id is there twice")
        return connection.execute(DUCKDB_COUNTS, places).fetchall()[0]

    return run


def scores_argmax(rows: int, classes: int) -> Callable[[], Any]:
    _, old, new = make_scores(rows, classes)
    return lambda: (old.argmax(axis=1).sum(), new.argmax(axis=1).sum())


def scores_numpy(rows: int, classes: int) -> Callable[[], Any]:
    """Most of these quantities as one would write them down, without care for memory."""
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


def compare(paths: tuple[Path, Path], *more: str) -> Callable[[], Any]:
    """The command with these outputs, and `--json`."""
    endings = {"--json": "json", "--flips": "csv", "--html": "html"}
    outputs = [part for flag in ("--json", *more) for part in (flag, f"out.{endings[flag]}")]
    files = [str(path) for path in paths]
    return command([sys.executable, "-m", "flipguard", "compare", *files, *outputs])


UNIQUE_POLARS = "integers: bare Polars join, ids checked to be unique"
UNIQUE_DUCKDB = "integers: bare DuckDB join, ids checked to be unique"
ALL_OUTPUTS = "outputs: the same with --flips --html"


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
    stream, update = (20_000, 10_000) if quick else (2_000_000, 1_000_000)
    python = sys.executable
    a = f"{many:,} label rows, aligned"
    b = f"{joined:,} text ids, shuffled"
    i = f"{joined:,} integer ids, shuffled"
    c = f"{rows:,} x {classes:,} float32 logits a side, in memory"
    d = f"{stream:,} x 100 float32 logits a side, streamed from Parquet"
    o = f"{update:,} x 100 float32 logits a side from Parquet, a whole command"
    e = "starting up"
    text, integers = partial(make_shuffled, joined), partial(make_shuffled, joined, integers=True)
    return {
        "aligned: bare Polars, ids not read": (a, lambda: aligned_polars(many, with_ids=False), 5),
        "aligned: bare Polars, ids compared": (a, lambda: aligned_polars(many, with_ids=True), 5),
        "aligned: flipguard": (a, lambda: ours(make_aligned(many)), 5),
        "aligned: pandas, ids compared": (a, lambda: aligned_pandas(many, merge=False), 1),
        "aligned: pandas, merged on id": (a, lambda: aligned_pandas(many, merge=True), 1),
        "shuffled: bare Polars join": (b, lambda: shuffled_polars(text()), 3),
        "shuffled: bare DuckDB join": (b, lambda: shuffled_duckdb(text()), 3),
        "shuffled: flipguard": (b, lambda: ours(text()), 3),
        "integers: bare Polars join": (i, lambda: shuffled_polars(integers()), 3),
        "integers: bare DuckDB join": (i, lambda: shuffled_duckdb(integers()), 3),
        UNIQUE_POLARS: (i, lambda: shuffled_polars(integers(), unique=True), 3),
        UNIQUE_DUCKDB: (i, lambda: shuffled_duckdb(integers(), unique=True), 3),
        "integers: flipguard": (i, lambda: ours(integers()), 3),
        "scores: argmax of both": (c, lambda: scores_argmax(rows, classes), 7),
        "scores: flipguard, all metrics": (c, lambda: scores_ours(rows, classes), 7),
        "scores: plain numpy, without entropies and KL": (
            c,
            lambda: scores_numpy(rows, classes),
            1,
        ),
        "streamed scores: flipguard": (d, lambda: ours(make_streamed_scores(stream, 100)), 1),
        "outputs: flipguard compare --json": (o, lambda: compare(make_update(update, 100)), 2),
        ALL_OUTPUTS: (o, lambda: compare(make_update(update, 100), "--flips", "--html"), 2),
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
    times, cpu, answer = [], [], None
    for _ in range(repeats):
        start, used = time.perf_counter(), cpu_seconds()
        answer = run()
        times.append(time.perf_counter() - start)
        cpu.append(cpu_seconds() - used)
    whole_command = section == "starting up" or section.endswith("command")
    who = resource.RUSAGE_CHILDREN if whole_command else resource.RUSAGE_SELF
    return {
        "section": section,
        "case": name,
        "seconds": min(times),
        "seconds_median": stats.median(times),
        "cpu_seconds": min(cpu),
        "repeats": repeats,
        "peak_mib": round(resource.getrusage(who).ru_maxrss / 1024),
        "peak_before_mib": round(before / 1024),
        "answer": [float(x) for x in answer] if answer is not None else None,
    }


def cpu_seconds() -> float:
    """The processor time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


RATIOS = (
    ("aligned: flipguard", "aligned: bare Polars, ids compared"),
    ("aligned: flipguard", "aligned: bare Polars, ids not read"),
    ("aligned: pandas, ids compared", "aligned: flipguard"),
    ("aligned: pandas, merged on id", "aligned: flipguard"),
    ("shuffled: flipguard", "shuffled: bare Polars join"),
    ("shuffled: flipguard", "shuffled: bare DuckDB join"),
    ("integers: flipguard", "integers: bare Polars join"),
    ("integers: flipguard", "integers: bare DuckDB join"),
    ("integers: flipguard", UNIQUE_POLARS),
    ("integers: flipguard", UNIQUE_DUCKDB),
    (ALL_OUTPUTS, "outputs: flipguard compare --json"),
    ("scores: flipguard, all metrics", "scores: argmax of both"),
    ("scores: plain numpy, without entropies and KL", "scores: flipguard, all metrics"),
)


def machine() -> dict[str, Any]:
    import importlib.metadata as metadata

    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    packages = ("flipguard", "numpy", "scipy", "polars", "pyarrow", "pandas", "duckdb")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages if find_spec(name) is not None},
    }


def run_apart(name: str, *, quick: bool) -> dict[str, Any]:
    """One case in its own process."""
    arguments = [sys.executable, __file__, "--case", name, *(["--quick"] if quick else [])]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        print(f"{name:42s} failed ({done.returncode})")
        return {"case": name, "failed": done.stderr.strip().splitlines()[-1:]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told = f"{row['seconds']:9.3f} s  {row['cpu_seconds']:9.3f} s cpu  {row['peak_mib']:7,} MiB"
    print(f"{name:42s} {told}", flush=True)
    return row


def best_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The best times of a case over all rounds, and its largest peak."""
    counted = [row for row in rounds if "seconds" in row]
    if not counted:
        return rounds[0]
    best = {key: min(row[key] for row in counted) for key in ("seconds", "cpu_seconds")}
    return {
        **counted[0],
        **best,
        "seconds_median": stats.median(row["seconds_median"] for row in counted),
        "repeats": sum(row["repeats"] for row in counted),
        "peak_mib": max(row["peak_mib"] for row in counted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--rounds", type=int, default=1, help="how often all cases take turns")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "evidence.json")
    options = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    if options.case:
        print(json.dumps(run_case(options.case, options.quick)))
        return
    names = [name for name in cases(options.quick) if options.only in name]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            found[name].append(run_apart(name, quick=options.quick))
    rows = [best_of(each) for each in found.values()]
    seconds = {row["case"]: row["seconds"] for row in rows if "seconds" in row}
    cpu = {row["case"]: row["cpu_seconds"] for row in rows if "seconds" in row}
    ratios = [
        {"of": a, "to": b, "ratio": seconds[a] / seconds[b], "cpu_ratio": cpu[a] / cpu[b]}
        for a, b in RATIOS
        if a in seconds and b in seconds
    ]
    print()
    for row in ratios:
        told = f"{row['ratio']:8.2f} (cpu {row['cpu_ratio']:.2f})"
        print(f"{told}  {row['of']}  /  {row['to']}")
    if not options.quick and not options.only:
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
