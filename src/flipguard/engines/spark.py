"""Count on a Spark cluster: the session and the code of the driver.

What workers do belongs to `spark_workers`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from flipguard.engines import local
from flipguard.engines.pairing import Pairing, settled
from flipguard.engines.plan import NOTHING_MORE, Counted, CountingPlan, RowCounts, Want
from flipguard.engines.readings import Readings
from flipguard.engines.scored import ScoredCounting, refuse_nameless
from flipguard.engines.spark_workers import Findings, SparkCounter, SparkSide, from_spark
from flipguard.errors import FlipguardError, InputError, MissingExtraError
from flipguard.predictions.formats import TEXT_FORMATS, format_of
from flipguard.predictions.names import exactly
from flipguard.predictions.read import name_any_file_on_error
from flipguard.predictions.scores import rows_per_read, score_matrix, width
from flipguard.predictions.table import Predictions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Types of Parquet columns that Spark and Polars read alike.
FLAT = frozenset(
    {
        pl.Int8,
        pl.Int16,
        pl.Int32,
        pl.Int64,
        pl.UInt8,
        pl.UInt16,
        pl.UInt32,
        pl.Float32,
        pl.Float64,
        pl.Boolean,
        pl.String,
        pl.Categorical,
        pl.Enum,
        pl.Date,
    }
)
# Spark would take these in a path for a pattern, or for something encoded.
PATTERN = frozenset("{}[]*?\\%:")
ROWS_TO_SEND = 100_000


@contextmanager
def quietly() -> Iterator[None]:
    """Without what PySpark says about the version of pandas, which nothing here uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """The user's session, or one on this machine that ends with the counting."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as problem:
        raise MissingExtraError("The Spark engine", package="pyspark", extra="spark") from problem
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.builder.getOrCreate()
    if active is not None:
        yield active
        return
    own = _own_session()
    try:
        yield own
    finally:
        own.stop()


def _own_session() -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=None if home is None else str(Path(home, "bin"))) is None:
        raise _no_java("none was found")
    conf = SparkConf().setMaster("local[*]").setAppName("flipguard")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        # Few rows need few tasks, each of which has its price.
        "spark.sql.shuffle.partitions": "64",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }.items():
        conf.set(key, value)
    # Workers must be of this Python, which has flipguard, not of the first one on the path.
    python = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    try:
        if SparkContext._gateway is None:
            # What Java says while it starts is for no one; what goes wrong is raised.
            silent = {"stderr": subprocess.DEVNULL}
            gateway = launch_gateway(conf, popen_kwargs=silent)  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkException as problem:
        raise _no_java("the one that was found does not start it") from problem
    finally:
        if python is None:
            del os.environ["PYSPARK_PYTHON"]


def _no_java(problem: str) -> FlipguardError:
    return FlipguardError(
        f"The Spark engine needs a Java runtime, 17 or newer, and {problem}; install one, set "
        "JAVA_HOME to it, or use `engine='local'`."
    )


def count(plan: CountingPlan, wants: frozenset[Want] = NOTHING_MORE) -> Counted:
    """The counts of a plan, the same as the local engine's, which looks for what else is wanted."""
    counted = _count(plan)
    return replace(counted, details=local.details(plan, wants)) if wants else counted


def _count(plan: CountingPlan) -> Counted:
    with name_any_file_on_error(plan.sides), quietly(), spark_session() as session:
        _refuse_without_ids(plan)
        # What all rows say of a column is looked up here: a worker sees a part of them.
        plan, readings = settled(_as_needed(plan))
        if plan.layout.scored:
            # For what it refuses before it reads a row.
            ScoredCounting(plan)
        sides = tuple(_side_rows(i, side, plan, readings) for i, side in enumerate(plan.sides))
        paired = _paired_rows(plan, sides)
        try:
            frame = _joined([_travelling(session, plan.sides[s.index], s) for s in sides])
            table = _summed(frame, paired)
        except _spark_errors() as problem:
            raise _readable_error(plan, problem) from problem
        return _counted(plan, paired, table)


# -- what goes wrong ----------------------------------------------------------------------------


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _readable_error(plan: CountingPlan, problem: Exception) -> FlipguardError:
    """The error for a job that Spark gave up."""
    try:
        # A file that the local engine cannot read either is refused in its words.
        with name_any_file_on_error(plan.sides):
            for side in plan.sides:
                side.frame.select(pl.all().null_count()).collect(engine="streaming")
    except FlipguardError as known:
        return known
    text = " ".join(str(problem).split("\n\tat ")[0].split())
    return FlipguardError(
        f"Spark gave up on the comparison ({text[:300].rstrip('.')}); look into Spark's own log, "
        "or use `engine='local'`."
    )


# -- what each worker must know ----------------------------------------------------------------


def _refuse_without_ids(plan: CountingPlan) -> None:
    for side in plan.sides:
        if side.id is None:
            raise InputError(
                f"{side.name} has no ids, and Spark keeps no order of rows that could stand in for "
                "them; add ids to every file, or use `engine='local'`."
            )


def _as_needed(plan: CountingPlan) -> CountingPlan:
    """The plan without the scores of controls that have labels: of a control only those count."""
    controls = (c if c.label is None else replace(c, scores=None) for c in plan.controls)
    return replace(plan, controls=tuple(controls))


def _side_rows(i: int, side: Predictions, plan: CountingPlan, readings: Readings) -> SparkSide:
    cuts = [side.column(cut) for cut in plan.cuts] if i < 2 else []
    score = None if side.binary is None else side.binary.column
    asked = (side.label, side.target, side.correct, score, *cuts)
    columns = [c for c in asked if c is not None and c != side.id]
    schema = side.frame.collect_schema()
    rows = SparkSide(
        index=i,
        side=_without_rows(side),
        columns=tuple(dict.fromkeys(columns)),
        ids=readings.ids,
        id_reading=readings.of(i, "id"),
        format=None,
    )
    if side.scores is not None:
        array = side.scores.array
        if array is None:
            empty = pl.DataFrame(schema={c: schema[c] for c in side.scores.columns})
            array = score_matrix(rows.side, empty, 1, 0)
        single = array.dtype == np.float32
        rows = replace(rows, width=width(side), score_type="float" if single else "double")
    return replace(rows, format=_read_by_spark(side, rows))


def _without_rows(side: Predictions) -> Predictions:
    """A file's description, small enough to be sent to every worker."""
    scores = side.scores
    if scores is not None and scores.array is not None:
        scores = replace(scores, array=scores.array[:0])
    empty = pl.DataFrame(schema=side.frame.collect_schema())
    return replace(side, frame=empty.lazy(), scores=scores, path=None, files=())


def _read_by_spark(side: Predictions, rows: SparkSide) -> str | None:
    """The format of files that Spark reads itself; None if the local reader must."""
    kinds = {_format_for_spark(path) for path in side.paths}
    kind = kinds.pop() if len(kinds) == 1 else None
    # Spark reads all files of a side with the schema and the order of columns of the first.
    alike = all(file.frame.collect_schema() == rows.schema for file in side.files)
    alike &= all(list(f.frame.collect_schema()) == list(rows.schema) for f in side.files)
    if kind is None or not alike:
        return None
    names = rows.schema.names()
    if kind in TEXT_FORMATS:
        return kind if not any("\n" in name for name in names) else None
    # Spark does not tell a column from one that differs in case alone.
    if kind != "parquet" or len({name.lower() for name in names}) < len(names):
        return None
    types = [rows.schema[name] for name in rows.read_columns]
    inner = [t.inner if isinstance(t, pl.List | pl.Array) else t for t in types]
    return kind if all(t in FLAT for t in inner) else None


def _format_for_spark(path: Path) -> str | None:
    """The format of a file, if Spark can open it by its path and its compression."""
    path = path.absolute()
    if PATTERN & set(str(path)) or path.name.startswith(("_", ".")):
        return None
    kind, compression = format_of(path)
    plain = compression is None or path.suffix == ".gz"
    return kind if plain or kind not in TEXT_FORMATS else None


def _paired_rows(plan: CountingPlan, sides: tuple[SparkSide, ...]) -> SparkCounter:
    old, new, *controls = (side.side for side in sides)
    bare = replace(plan, old=old, new=new, controls=tuple(controls), progress=None)
    paired = SparkCounter(plan=bare, sides=sides, keys={})
    return replace(paired, keys=paired.key_types())


# -- Spark's part ------------------------------------------------------------------------------


def _travelling(session: SparkSession, side: Predictions, rows: SparkSide) -> DataFrame:
    """The rows of one side as they travel, each with its number among the rows of its id."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    fields = ", ".join(f"{name} {kind}" for name, kind in rows.fields.items())
    where = [f"file://{path.absolute()}" for path in side.paths]
    if rows.format is None:
        frames = rows.from_frames(_local_frames(side, rows.read_columns))
        table = pa.Table.from_batches(list(frames))
        frame = session.createDataFrame(table, schema=fields)
    elif rows.format == "parquet":
        quoted = ["`" + name.replace("`", "``") + "`" for name in rows.read_columns]
        columns = [sql.col(name).alias(f"column{j}") for j, name in enumerate(quoted)]
        frame = session.read.parquet(*where).select(columns).mapInArrow(rows.from_columns, fields)
    else:
        text = session.read.option("lineSep", "\n").text(where)
        line = sql.concat(sql.col("value"), sql.lit("\n")).cast("binary").alias("line")
        start = sql.col("_metadata.file_block_start").alias("start")
        path = sql.col("_metadata.file_path").alias("path")
        frame = text.select(line, start, path).mapInArrow(rows.from_lines, fields)
    number = sql.row_number().over(Window.partitionBy("id").orderBy("id"))
    return frame.withColumn(f"number{rows.index}", number)


def _local_frames(side: Predictions, columns: list[str]) -> Iterator[tuple[pl.DataFrame, Any]]:
    scores = side.scores
    array = scores.array if scores is not None else None
    step = ROWS_TO_SEND if array is None else min(ROWS_TO_SEND, rows_per_read(array.shape[1]))
    at = 0
    frame = side.frame.select(map(exactly, columns))
    for batch in frame.collect_batches(chunk_size=step, maintain_order=True, engine="streaming"):
        yield batch, None if array is None else array[at : at + batch.height]
        at += batch.height


def _joined(frames: list[DataFrame]) -> DataFrame:
    """The rows of all sides joined by id, one row per id of any side."""
    # The sides with scores are the first two; joined last, they are moved least often.
    old, *others = frames[::-1] if len(frames) > 2 else frames
    for other in others:
        old = old.join(other, on="id", how="full_outer")
    return old


def _summed(frame: DataFrame, paired: SparkCounter) -> pl.DataFrame:
    """The counts of every group, and the findings of each worker."""
    from pyspark.sql import functions as sql

    fields = ", ".join(f"{name} {kind}" for name, kind in paired.fields.items())
    names = paired.plan.layout.names
    counts = frame.mapInArrow(paired.counted, fields)
    keys = [name for name in paired.fields if name not in names]
    sums = [sql.sum(name).alias(name) for name in names]
    return pl.DataFrame(counts.groupBy(*keys).agg(*sums).toArrow())


# -- back on this machine ----------------------------------------------------------------------


def _counted(plan: CountingPlan, paired: SparkCounter, table: pl.DataFrame) -> Counted:
    findings = Findings()
    for text in table["findings"].drop_nulls():
        findings.add(Findings.from_json(text))
    _refuse(plan, findings)
    tables = plan.tables()
    for number, counts in enumerate(tables.values()):
        rows = table.filter(pl.col("table_number") == number)
        keys = [
            from_spark(rows[f"key{j}"], dtype).alias(key)
            for j, (key, dtype) in enumerate(paired.keys.items())
            if key in counts.keys
        ]
        counts.add(pl.DataFrame([*keys, *rows.select(counts.layout.names).get_columns()]))
    seen = findings.numbers
    (ids_old, only_old), (ids_new, only_new) = findings.only_in(0, 1), findings.only_in(1, 0)
    rows_seen = RowCounts(
        matched=seen["matched"],
        only_old=only_old,
        only_new=only_new,
        not_in_control=seen["not_in_control"],
        ids_only_old=tuple(ids_old),
        ids_only_new=tuple(ids_new),
    )
    return Counted.of(plan, tables, rows_seen, (seen["odd0"], seen["odd1"]))


def _refuse(plan: CountingPlan, findings: Findings) -> None:
    """Raise for the first finding that makes a comparison impossible."""
    pairing, seen, ids = Pairing(plan), findings.numbers, findings.ids
    for i in range(len(plan.sides)):
        if not seen[f"rows{i}"]:
            raise pairing.empty(i)
    if findings.unreadable:
        raise InputError(findings.unreadable[0])
    for i in range(len(plan.sides)):
        if seen[f"missing{i}"]:
            raise pairing.missing_id(i)
        if seen[f"twice{i}"]:
            raise pairing.duplicates(i, ids[f"twice{i}"], seen[f"twice{i}"])
    if not seen["paired"]:
        raise pairing.nothing_in_common()
    problem = pairing.lacking(findings.only_in) if plan.on_missing == "error" else None
    if problem is not None:
        raise problem
    for model, names in sorted(findings.names.items()):
        refuse_nameless(plan.sides[int(model)], pl.Series(names, dtype=pl.String))
    if findings.problems:
        raise InputError(findings.problems[0])
