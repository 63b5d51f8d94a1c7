"""Show studies next to their papers: tables for the terminal and Markdown, and an overview."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flipguard.formatting import format_percent
from flipguard.studies.agreement import Agreement, Pair, Verdict
from flipguard.studies.claims import NOT_RUN
from flipguard.studies.explanations import contradictions
from flipguard.studies.panels import matrices_of, panels_of
from flipguard.studies.results import Result, Row
from flipguard.studies.sentences import (
    MISSING,
    format_ours,
    format_paper,
    format_ratio,
    group_name,
    headline_of,
    listed_rows,
    made_before,
    short,
    verdict_lines,
)

VERDICTS: tuple[Verdict, ...] = ("agree", "disagree", "undecided")
HEADS = ("agreement", "same", "other", "explained", "undecided", "claims hold")


def figure_parts(result: Result) -> Iterator[RenderableType]:
    """The tables of a study's pictures: counts of samples, or matrices of models."""
    for title, heads, rows in _tables(result):
        table = Table(box=None, pad_edge=False, padding=(0, 2 if len(heads) < 7 else 1, 0, 0))
        table.add_column(heads[0], no_wrap=True)
        for head in heads[1:]:
            table.add_column(head, justify="right")
        for row in rows:
            table.add_row(*row)
        yield Text(title, style="italic")
        yield table
        yield Text()


def figure_lines(result: Result) -> list[str]:
    """The same tables in Markdown."""
    lines = []
    for title, heads, rows in _tables(result):
        lines += [f"**{title}**", "", cells_of(heads)]
        lines += [cells_of(["---", *["---:"] * (len(heads) - 1)]), *map(cells_of, rows), ""]
    return lines


def cells_of(values: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def _tables(result: Result) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The title, column headings and rows of each table."""
    for matrix in matrices_of(result):
        rows = [
            [role, *(MISSING if math.isnan(value) else f"{value:.2f}" for value in values)]
            for role, values in zip(matrix.roles, matrix.values, strict=True)
        ]
        yield f"{matrix.title}, in percent", ["", *matrix.roles], rows
    for panel in panels_of(result):
        digits = 0 if panel.unit == "samples" else 1
        rows = [
            [name, *(f"{value:.{digits}f}" for value in values)] for name, values in panel.bins()
        ]
        heads = [panel.axis.partition(":")[0], *(curve.label for curve in panel.curves)]
        yield f"{panel.title}: {panel.unit}", heads, rows


def result_parts(result: Result) -> Iterator[RenderableType]:
    """What `flipguard study show` prints."""
    yield Text(title_of(result), style="bold")
    yield Text(_facts_line(result), style="dim")
    if marked := made_before(result):
        yield Text(marked, style="bold")
    yield Text()
    yield _table(result)
    yield Text()
    yield from figure_parts(result)
    # The terminal wraps lines. List items are indented.
    for line in verdict_lines(result):
        indent = 2 if line.startswith("- ") else 0
        yield Padding(Text(line), (0, 0, 0, indent)) if indent else Text(line)


def title_of(result: Result) -> str:
    """The heading: the study, the scale and the subject."""
    return f"{result.study.id} at {result.scale}: {result.title}"


def _facts_line(result: Result) -> str:
    seeds = len(result.seeds)
    lines = [result.line(row).paper for row in result.rows]
    cells = [cell for line in lines if line is not None for cell in line.cells.values()]
    spread = "in percent, ± standard error"
    if any(cell.deviation is not None for cell in cells):
        spread += " here, and the paper's own spread"
    parts = [f"{seeds} seed{'s' * (seeds != 1)}", spread]
    if result.given:
        parts.append(f"with {', '.join(result.given)}")
    parts.append(str(result.facts.get("device", {}).get("name", "")))
    data = dict.fromkeys(line.data for row in result.rows if (line := result.line(row)).data)
    parts.append(f"data of the paper: {', '.join(filter(None, data)) or result.study.table.data}")
    return "; ".join(part for part in parts if part)


def _table(result: Result) -> Table:
    metrics, headline = result.study.metrics, headline_of(result)
    found = result.agreement()
    # Room for the labels, on a terminal of eighty columns.
    table = Table(box=None, pad_edge=False, padding=(0, 2 if len(metrics) < 4 else 1, 0, 0))
    table.add_column("")
    for metric in metrics:
        table.add_column(short(metric), justify="right", no_wrap=True)
    if headline is not None:
        table.add_column("ratio", justify="right", no_wrap=True)
    if found.pairs:
        table.add_column("agrees", justify="right", no_wrap=True)
    group = None
    for index, row in listed_rows(result):
        line = result.line(row)
        if line.group != group and line.group is not None:
            name = group_name(line.group)
            table.add_row(Text(name, style="italic", no_wrap=True, overflow="ellipsis"))
        group = line.group
        _add(table, result, row, index, found, headline)
    return table


def _add(
    table: Table, result: Result, row: Row, index: int, found: Agreement, headline: str | None
) -> None:
    """Add the paper's numbers, and below them the numbers measured here."""
    line, metrics = result.line(row), result.study.metrics
    cells = None if line.paper is None else line.paper.cells
    mine: list[str | Text] = [format_ours(row.mean(m), row.error(m), m) for m in metrics]
    if headline is not None:
        mine.append(format_ratio(result.ratio(row, headline)))
    if row.why_not is not None:
        mine = ["not run"]
    elif found.pairs:
        mine.append(_tally(found.of(index)))
    name = result.name_of(row)
    if cells is None:
        table.add_row(name, *mine)
        return
    theirs = [format_paper(cells.get(metric)) for metric in metrics]
    if headline is not None:
        theirs.append(format_ratio(result.paper_ratio(row, headline)))
    table.add_row(name, *(Text(one, style="dim") for one in theirs))
    table.add_row(Text("  here"), *mine)


def _tally(pairs: Sequence[Pair]) -> Text:
    if not pairs:
        return Text(MISSING)
    agree = sum(pair.verdict == "agree" for pair in pairs)
    against = any(pair.verdict == "disagree" for pair in pairs)
    return Text(f"{agree}/{len(pairs)}", style="red" if against else "")


def markdown_of(result: Result) -> str:
    """The same result as a Markdown page."""
    metrics, headline, found = result.study.metrics, headline_of(result), result.agreement()
    heads = ["", "", *(short(metric) for metric in metrics)]
    heads += ["ratio"] if headline is not None else []
    heads += ["agrees"] if found.pairs else []
    lines = [f"# {title_of(result)}", "", f"{_facts_line(result)}.", ""]
    if marked := made_before(result):
        lines += [f"**{marked}**", ""]
    lines += [cells_of(heads), cells_of(["---", "---", *["---:"] * (len(heads) - 2)])]
    group = None
    for index, row in listed_rows(result):
        line = result.line(row)
        if line.group != group and line.group is not None:
            lines.append(cells_of([f"**{group_name(line.group)}**", *[""] * (len(heads) - 1)]))
        group = line.group
        name = result.name_of(row)
        if line.paper is not None:
            theirs = [format_paper(line.paper.cells.get(m)) for m in metrics]
            theirs += (
                [format_ratio(result.paper_ratio(row, headline))] if headline is not None else []
            )
            lines.append(cells_of([name, "paper", *theirs, *[""] * bool(found.pairs)]))
            name = ""
        mine = [format_ours(row.mean(m), row.error(m), m) for m in metrics]
        mine += [format_ratio(result.ratio(row, headline))] if headline is not None else []
        mine += [_tally(found.of(index)).plain] if found.pairs else []
        if row.why_not is not None:
            mine = ["not run", *[""] * (len(mine) - 1)]
        lines.append(cells_of([name, "here", *mine]))
    lines += ["", *figure_lines(result)]
    for text in verdict_lines(result, most=None):
        is_item = text.startswith("- ")
        if not is_item and lines[-1].startswith("- "):
            lines.append("")  # otherwise Markdown adds the text to the last item
        lines += [text] if is_item else [text, ""]
    return "\n".join(lines).rstrip() + "\n"


def pairs_of(results: Sequence[Result]) -> list[list[Pair]]:
    """The pairs of each study, without those that repeat a comparison of an earlier study.

    Tables share rows. Two pairs are the same comparison if they are of one scale and metric, and
    both sides have the same value in the paper and the same values here, seed by seed.
    """
    asked = set()
    found = []
    for result in results:
        pairs = result.agreement().pairs
        found.append([pair for pair in pairs if (result.scale, pair.question) not in asked])
        # Without measured values it is unknown whether two pairs are the same comparison.
        measured = (pair for pair in pairs if all(ours for _, ours in pair.question[1]))
        asked |= {(result.scale, pair.question) for pair in measured}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTally:
    """Pairs that the papers separate clearly, and claims in words, counted by verdict.

    Pairs are those of `pairs_of`; `repeats` counts those that it leaves out. `explained` counts the
    pairs of `disagree` that have an explanation which held when it was tested, and `elsewhere`
    those of them whose explanation was tested only at another scale.
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
    def of(cls, results: Sequence[Result]) -> PairTally:
        """Over all pairs of some studies: a study with more pairs counts for more."""
        counted = pairs_of(results)
        pairs = [pair.verdict for of_one in counted for pair in of_one]
        # Claims about rows that were not run do not count.
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
        """The share as text."""
        if self.clear and self.undecided == self.clear:
            return "undecided"
        return format_percent(self.share, decimals=0) if self.clear else MISSING

    @property
    def counts(self) -> tuple[str, ...]:
        """Same order, other order, explained ones of these, undecided; blank without pairs."""
        found = (self.agree, self.disagree, self.explained, self.undecided)
        return tuple(str(count) if self.clear else "" for count in found)

    @property
    def in_words(self) -> str:
        """How many of the claims in words hold."""
        return f"{self.holds}/{self.claims}" if self.claims else MISSING


def overview_table(results: Sequence[Result]) -> Table:
    """Return a table with one line per study."""
    table = Table(box=None, pad_edge=False)
    table.add_column("study", no_wrap=True)
    # The headings fill eighty columns.
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        found = PairTally.of([result])
        table.add_row(result.study.id, found.percent, *found.counts, found.in_words)
    return table


def overview_line(results: Sequence[Result]) -> str:
    """All pairs of all studies, in one sentence or two."""
    found = PairTally.of(results)
    studies = "1 study" if len(results) == 1 else f"{len(results)} studies"
    text = f"{studies}: there is no pair of rows to count."
    if found.clear:
        against = f"{found.disagree} the other order"
        if found.disagree:
            against += f", {found.explained} of them explained by a test"
            if found.elsewhere:
                against += f" ({found.elsewhere} by one at another scale)"
        text = (
            f"{studies}: {found.percent}. Of {found.clear} pairs of rows that the papers separate "
            f"clearly, {found.agree} have the same order here, {against}, and "
            f"{found.undecided} are undecided."
        )
        if found.repeats:
            text += (
                f" Tables share rows: {found.repeats} more pairs repeat a comparison of another "
                "table and are counted only there."
            )
        if found.undecided and (decided := found.agree + found.disagree):
            share = format_percent(found.agree / decided, decimals=0)
            text += f" Of those that the seeds decide, {share} agree."
    if found.claims:
        undecided = found.claims - found.holds - found.fails
        text += (
            f" Of {found.claims} claims in words, {found.holds} hold, {found.fails} do not, and "
            f"{undecided} are undecided."
        )
    return text
