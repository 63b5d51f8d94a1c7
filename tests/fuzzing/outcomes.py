"""What a plain reading of a case may come to: counts, a refusal, or a doubt between readings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

CELLS = ("both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different")
UNLABELLED = ("unlabelled_same", "unlabelled_different")
# More open questions than this in one case would make any answer right.
MOST_READINGS = 64


class Refused(Exception):
    """The input must be refused; its text is why."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What is known of a verdict without any interval: rows of rules judged by their value alone.

    A row is (metric, by, group, verdict); `values` has the value of every row, judged so or not.
    """

    points: list[tuple[str, str | None, str | None, str]]
    values: dict[tuple[str, str | None, str | None], float | None]
    pinned: list[str] | None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Everything that is compared with the JSON of a comparison."""

    has_target: bool
    whole: dict[str, int]
    groups: dict[str, dict[str, dict[str, int]]]
    rows: dict[str, int]
    controls: list[dict[str, int]]
    clusters: int | None
    # The cell of each id; None where files have no ids.
    by_id: dict[object, str] | None = None
    # What a policy must come to, if there is one.
    judged: Judged | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read a case: counts, or why it must be refused."""

    counts: Counts | None
    refused: str | None


@dataclass(kw_only=True)
class Questions:
    """Where the definition of equality leaves a choice, each way is read.

    `doubts` are reasons to refuse although the case can be counted.
    """

    answers: dict[str, bool] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    # Spark takes text files line by line, and refuses fields with line breaks.
    in_spark: bool = False

    def ask(self, question: str) -> bool:
        """The answer that this reading takes; each question is open once per case."""
        if question not in self.answers:
            self.answers[question] = True
        if question not in self.asked:
            self.asked.append(question)
        return self.answers[question]

    def doubt(self, reason: str) -> None:
        """A refusal is right too."""
        if reason not in self.doubts:
            self.doubts.append(reason)


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """All readings of a case, and the reasons for which it may be refused although counted."""

    readings: list[Reading]
    doubts: list[str]

    @property
    def may_refuse(self) -> bool:
        """Whether a refusal is right."""
        return bool(self.doubts) or any(r.refused is not None for r in self.readings)

    @property
    def must_refuse(self) -> bool:
        """Whether nothing but a refusal is right."""
        return all(reading.counts is None for reading in self.readings)


def every_reading(read: Callable[[Questions], Counts], *, in_spark: bool = False) -> Allowed:
    """Reads a case under every answer to every question that comes up."""
    readings: list[Reading] = []
    doubts: list[str] = []
    for questions, reading in _readings(read, in_spark=in_spark):
        if reading not in readings:
            readings.append(reading)
        doubts += [doubt for doubt in questions.doubts if doubt not in doubts]
    counted = [r for r in readings if r.counts is not None]
    if len(counted) > 1:
        doubts.append("two readings give two counts")
    return Allowed(readings=readings, doubts=doubts)


def _readings(
    read: Callable[[Questions], Counts], *, in_spark: bool
) -> Iterator[tuple[Questions, Reading]]:
    answers: dict[str, bool] = {}
    for _ in range(MOST_READINGS):
        questions = Questions(answers=dict(answers), in_spark=in_spark)
        try:
            reading = Reading(counts=read(questions), refused=None)
        except Refused as problem:
            reading = Reading(counts=None, refused=str(problem))
        yield questions, reading
        # The next answers: the last question that was answered yes is answered no.
        while questions.asked and not questions.answers[questions.asked[-1]]:
            questions.asked.pop()
        if not questions.asked:
            return
        answers = {name: questions.answers[name] for name in questions.asked}
        answers[questions.asked[-1]] = False
