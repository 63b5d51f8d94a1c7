"""Several studies at a glance: how far each agrees with its paper, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from flipguard.studies.agreement import Pair, Verdict
from flipguard.studies.explaining import contradictions
from flipguard.studies.judging import NOT_RUN
from flipguard.studies.results import Result
from flipguard.studies.words import NOTHING

VERDICTS: tuple[Verdict, ...] = ("agree", "disagree", "undecided")
HEADS = ("agreement", "same way", "other way", "explained", "undecided", "claims hold")


def pairs_of(results: Sequence[Result]) -> list[list[Pair]]:
    """The pairs of each study, without those that are the same comparison as one of an earlier one.

    Tables share rows. Two pairs are the same comparison if they are of one scale and metric, and
    both sides have the same value in the paper and the same values of ours, seed by seed.
    """
    asked = set()
    found = []
    for result in results:
        pairs = result.agreement().pairs
        found.append([pair for pair in pairs if (result.scale, pair.question) not in asked])
        # Where nothing was measured, nothing shows that two tables ask the same.
        measured = (pair for pair in pairs if all(ours for _, ours in pair.question[1]))
        asked |= {(result.scale, pair.question) for pair in measured}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Pairs that the papers separate clearly, and what they say in words, counted by verdict.

    Pairs are those of `pairs_of`, which leaves out `repeats`. `explained` are those of `disagree`
    for which an explanation held when it was tested, and `elsewhere` those of them for which it was
    tested at another scale alone.
    """

    agree: int = 0
    disagree: int = 0
    undecided: int = 0
    explained: int = 0
    elsewhere: int = 0
    claims: int = 0
    holds: int = 0
    fails: int = 0
    repeats: int = 0

    @classmethod
    def of(cls, results: Sequence[Result]) -> Tally:
        """Over all pairs of some studies: a study with more pairs counts for more."""
        counted = pairs_of(results)
        pairs = [pair.verdict for of_one in counted for pair in of_one]
        # Of what was not run, nothing is known, and it does not count.
        claims = [
            found.verdict
            for result in results
            for _, found in result.claims()
            if found.verdict != NOT_RUN
        ]
        groups = [
            (group, sum(pair in of_one for pair in group.pairs))
            for result, of_one in zip(results, counted, strict=True)
            for group in contradictions(result)
        ]
        return cls(
            **{name: pairs.count(name) for name in VERDICTS},
            explained=sum(count for group, count in groups if group.is_explained),
            elsewhere=sum(count for group, count in groups if group.is_explained_elsewhere),
            claims=len(claims),
            holds=claims.count("agree"),
            fails=claims.count("disagree"),
            repeats=sum(len(result.agreement().pairs) for result in results) - len(pairs),
        )

    @property
    def clear(self) -> int:
        """All pairs."""
        return self.agree + self.disagree + self.undecided

    @property
    def share(self) -> float:
        """Agreeing pairs among all; nan if there are none."""
        return self.agree / self.clear if self.clear else math.nan

    @property
    def percent(self) -> str:
        """The share as people read it."""
        if self.clear and self.undecided == self.clear:
            return "undecided"
        return f"{self.share:.0%}" if self.clear else NOTHING

    @property
    def counts(self) -> tuple[str, ...]:
        """Same way, other way, how many of these are explained, undecided; blank without pairs."""
        found = (self.agree, self.disagree, self.explained, self.undecided)
        return tuple(str(count) if self.clear else "" for count in found)

    @property
    def in_words(self) -> str:
        """How many of the claims in words hold."""
        return f"{self.holds}/{self.claims}" if self.claims else NOTHING


def overview_table(results: Sequence[Result]) -> Table:
    """A line a study."""
    table = Table(box=None, pad_edge=False)
    table.add_column("study", no_wrap=True)
    # They fill eighty columns.
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        found = Tally.of([result])
        table.add_row(result.study.id, found.percent, *found.counts, found.in_words)
    return table


def overview_line(results: Sequence[Result]) -> str:
    """All pairs of all studies, in one sentence or two."""
    found = Tally.of(results)
    studies = "1 study" if len(results) == 1 else f"{len(results)} studies"
    told = f"{studies}: there is no pair of rows to count."
    if found.clear:
        against = f"{found.disagree} the other way"
        if found.disagree:
            against += f", {found.explained} of them explained by a test"
            if found.elsewhere:
                against += f" ({found.elsewhere} by one at another scale)"
        told = (
            f"{studies}: {found.percent}. Of {found.clear} pairs of rows that the papers separate "
            f"clearly, {found.agree} came out the same way, {against}, and "
            f"{found.undecided} stayed undecided."
        )
        if found.repeats:
            told += (
                f" Tables share rows: {found.repeats} more pairs repeat a comparison of another "
                "table and are counted only there."
            )
        if found.undecided and (decided := found.agree + found.disagree):
            told += f" Of those that the seeds decide, {found.agree / decided:.0%} agree."
    if found.claims:
        undecided = found.claims - found.holds - found.fails
        told += (
            f" Of {found.claims} claims in words, {found.holds} hold, {found.fails} do not, and "
            f"{undecided} are undecided."
        )
    return told
