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
BATCH = 25
# The first number in CI, the second in `make test-all`. A case takes a tenth of a second here, half
# a second as a process, and a third of one in Spark.
HERE, AS_PROCESS, IN_SPARK = (300, 10_000), (25, 100), (75, 200)
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
        """Runs a case in a new folder and judges the answer."""
        folder.mkdir()
        running.write(made, folder)
        allowed = running.expected(made, folder, in_spark=self.how == "spark")
        ran = run(made, folder)
        answer = running.judge(ran, allowed, may_abort=made.may_crash)
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


def batches(start: int, stop: int) -> list[range]:
    return [range(at, min(at + BATCH, stop)) for at in range(start, stop, BATCH)]


def few_and_many(numbers: tuple[int, int]) -> list[Any]:
    """Batches of cases, of which those that CI leaves out are marked as slow."""
    few, many = numbers
    return [
        *(pytest.param(batch, id=str(batch.start)) for batch in batches(0, few)),
        *(
            pytest.param(batch, id=str(batch.start), marks=pytest.mark.slow)
            for batch in batches(few, many)
        ),
    ]


@pytest.mark.parametrize("numbers", few_and_many(HERE))
def test_cases(numbers: range, tmp_path: Path, record_property: Record) -> None:
    tally = Tally("here")
    for number in numbers:
        tally.see(case(SEED, number), tmp_path / str(number), run_here)
    tally.close(record_property)


@pytest.mark.parametrize("numbers", few_and_many(AS_PROCESS))
def test_cases_as_processes(numbers: range, tmp_path: Path, record_property: Record) -> None:
    tally = Tally("process")
    for number in numbers:
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


@pytest.mark.skipif(bool(WHY_NOT) and "CI" not in os.environ, reason=WHY_NOT)
@pytest.mark.parametrize("numbers", few_and_many(IN_SPARK))
def test_cases_in_spark(
    session: Any, numbers: range, tmp_path: Path, record_property: Record
) -> None:
    tally = Tally("spark")
    for number in numbers:
        tally.see(spark_case(number), tmp_path / str(number), run_in_spark)
    tally.close(record_property)


def spark_case(number: int) -> Case:
    """A case whose files cannot end the process: damaged ones are read by native code here too."""
    while (made := case(SEED, number)).may_crash:
        number += IN_SPARK[1]
    return made
