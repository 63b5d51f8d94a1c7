"""The Spark session: the user's, or one for a single comparison."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flipguard.errors import FlipguardError, MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def _no_java(told: str) -> FlipguardError:
    return FlipguardError(
        f"The Spark engine needs a Java runtime, 17 or newer, and {told}; install one, set "
        "JAVA_HOME to it, or use `engine='local'`."
    )
