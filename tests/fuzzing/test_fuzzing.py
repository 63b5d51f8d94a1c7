"""Random tables: flipguard and a plain reading of the same bytes must come to the same counts.

A case that goes wrong shows its files, both readings, and the command that runs it again.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzzing import running
from tests.fuzzing.cases import Case, case
from tests.fuzzing.running import Ran
from tests.test_spark import WHY_NOT

SEED = 1
BATCH = 50
IN_CI, IN_ALL = 300, 10_000
IN_SPARK, AS_PROCESS = 200, 100
# Failures that are shown whole; the rest are only counted.
MOST_TOLD = 5

Record = Callable[[str, object], None]


class Tally:
    """What became of the cases of a test."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.seen: Counter[str] = Counter()
        self.told: list[str] = []

    def see(self, made: Case, folder: Path, run: Callable[[Case, Path], Ran]) -> None:
        """Runs a case in a folder of its own and judges it."""
        folder.mkdir()
        running.write(made, folder)
        allowed = running.expected(made, folder, in_spark=self.how == "spark")
        ran = run(made, folder)
        answer = running.judge(ran, allowed)
        self.seen[answer.what] += 1
        if answer.problem is not None:
            self.told.append(running.told(made, ran, allowed, answer, self.how))

    def close(self, record_property: Record) -> None:
        """Reports the counts, which the end of the session adds up, and fails if any case did."""
        record_property(f"fuzzing {self.how}", dict(self.seen))
        more = len(self.told) - MOST_TOLD
        told = [*self.told[:MOST_TOLD], f"and {more} more"] if more > 0 else self.told
        assert not told, "\n\n".join(told)


def run_here(made: Case, folder: Path) -> Ran:
    """In this process, but for damaged files that go to native code, which may end it."""
    return (running.in_subprocess if made.may_crash else running.in_process)(made, folder)


def batches(start: int, stop: int) -> list[int]:
    return list(range(start, stop, BATCH))


@pytest.mark.parametrize("start", batches(0, IN_CI))
def test_cases(start: int, tmp_path: Path, record_property: Record) -> None:
    tally = Tally("here")
    for number in range(start, start + BATCH):
        tally.see(case(SEED, number), tmp_path / str(number), run_here)
    tally.close(record_property)


@pytest.mark.slow
@pytest.mark.parametrize("start", batches(IN_CI, IN_ALL))
def test_many_more_cases(start: int, tmp_path: Path, record_property: Record) -> None:
    tally = Tally("here")
    for number in range(start, start + BATCH):
        tally.see(case(SEED, number), tmp_path / str(number), run_here)
    tally.close(record_property)


@pytest.mark.parametrize("part", range(4))
def test_cases_as_processes(part: int, tmp_path: Path, record_property: Record) -> None:
    tally = Tally("process")
    for number in range(part, AS_PROCESS, 4):
        tally.see(case(SEED, number), tmp_path / str(number), running.in_subprocess)
    tally.close(record_property)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A Java machine for small tables: one thread, and plans that are not compiled."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").appName("fuzzing")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "OFF",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def run_in_spark(made: Case, folder: Path) -> Ran:
    return running.in_process(made, folder, "--engine=spark")


@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(bool(WHY_NOT) and "CI" not in os.environ, reason=WHY_NOT)
def test_cases_in_spark(session: Any, tmp_path: Path, record_property: Record) -> None:
    tally, number = Tally("spark"), 0
    while sum(tally.seen.values()) < IN_SPARK:
        made = case(SEED, number)
        if not made.may_crash:
            tally.see(made, tmp_path / str(number), run_in_spark)
        number += 1
    tally.close(record_property)
