"""The whole page as data: every candidate's story, what they share, and how it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipguard.comparison import Comparison
from flipguard.errors import InputError, printable
from flipguard.gate import Verdict
from flipguard.render.text import percent
from flipguard.report.flips import MOST_FLIPS
from flipguard.report.provenance import SourceFile, source_files, versions
from flipguard.report.runs import RunFolder
from flipguard.report.safe import visible
from flipguard.report.samples.base import Samples
from flipguard.report.sides import Overview, Training, overview_of, training_of
from flipguard.report.story import Candidate, candidate_of, short_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the template shows."""

    title: str
    titled: bool  # by whoever writes it, and not by the names of the models
    confidence: str
    clustered: bool
    candidates: tuple[Candidate, ...]
    overview: Overview | None
    training: Training | None
    files: tuple[SourceFile, ...]
    versions: dict[str, str]
    command: str | None

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """Where a reader may jump to: the parts of the first candidate that has them, and more."""
        parts = (
            ("Numbers", "numbers", lambda c: c.numbers.cards),
            ("What breaks", "breaks", lambda c: c.groups),
            ("Samples", "flips-title", lambda c: c.flips is not None),
            ("Flows", "flows", lambda c: c.flows),
            ("Confidence", "confidence", lambda c: c.sides),
        )
        found = [("candidates-title", "Candidates")] if self.overview is not None else []
        for words, part, there in parts:
            having = [candidate.key for candidate in self.candidates if there(candidate)]
            found += [(f"{key}-{part}", words) for key in having[:1]]
        found += [("training-title", "Training")] if self.training is not None else []
        return (*found, ("how-title", "How"))

    @property
    def specs(self) -> dict[str, Any]:
        """The specification of every chart, by its id."""
        found = [chart for candidate in self.candidates for chart in candidate.charts]
        if self.overview is not None and self.overview.chart is not None:
            found.append(self.overview.chart)
        if self.training is not None:
            found += self.training.charts
        return {chart.id: chart.vega for chart in found}


def page_of(
    results: Mapping[str, Comparison],
    *,
    verdicts: Mapping[str, Verdict],
    samples: Mapping[str, Samples],
    budget: int,
    runs: Sequence[RunFolder],
    others: Sequence[tuple[str, Path]],
    title: str | None,
    command: str | None,
) -> Page:
    """The page of one or several comparisons."""
    # What the page may weigh is shared by those that it tells of.
    share = len(results)
    candidates = tuple(
        candidate_of(
            f"c{i}",
            name,
            result,
            verdicts.get(name),
            samples.get(name),
            budget=budget // share,
            most=MOST_FLIPS // share,
        )
        for i, (name, result) in enumerate(results.items())
    )
    _refuse_strangers(candidates)
    first = next(iter(results.values()))
    return Page(
        title=visible(title if title is not None else _title(results), longest=200),
        titled=title is not None,
        confidence=percent(first.confidence),
        clustered=any(result.cluster is not None for result in results.values()),
        candidates=candidates,
        overview=overview_of(results, candidates) if len(results) > 1 else None,
        training=training_of(runs) if runs else None,
        files=source_files(results.values(), others),
        versions=versions(),
        command=command,
    )


def _refuse_strangers(candidates: Sequence[Candidate]) -> None:
    """Samples of which not one is of a flip are of something else, or named otherwise."""
    tables = [c.flips for c in candidates if c.flips is not None and len(c.flips)]
    sampled = [(table.sampled, table.ids[0]) for table in tables if table.sampled is not None]
    if sampled and not any(one.found for one, _ in sampled):
        one, name = sampled[0]
        raise InputError(
            f"Expected {printable(one.source)} to hold samples of the flipped ids, but it has none "
            f"of them (the first is {printable(name, longest=60)!r}); name samples by their ids."
        )


def _title(results: Mapping[str, Comparison]) -> str:
    first = next(iter(results.values()))
    old, new = short_pair(first.old, first.new)
    if len(results) == 1:
        return f"{old} → {new}: what the update breaks"
    return f"{len(results)} candidates for {old}: what they break"
