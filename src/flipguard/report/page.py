"""The page as data: the candidates, the overview, the runs, and where they came from."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import nan
from pathlib import Path
from typing import Any

from flipguard._version import __version__
from flipguard.comparison import Comparison
from flipguard.counts import CELLS, UNLABELLED, FlipCounts
from flipguard.errors import InputError, printable
from flipguard.estimates import Estimate
from flipguard.gate import Verdict
from flipguard.render.numbers import Number, control_estimates, short_labels, visible
from flipguard.render.words import percent
from flipguard.report.candidate import Candidate, candidate_of, short_pair
from flipguard.report.charts import Chart, draw_ahead
from flipguard.report.flips import MOST_FLIPS
from flipguard.report.group_charts import candidate_point, candidates_chart, curve_chart
from flipguard.report.samples import Samples
from flipguard.report.verdict import VerdictSection
from flipguard.runs.history import RunFolder

OVERVIEW = (
    ("error_rate_new", "error"),
    ("accuracy_gain", "gain"),
    ("negative_flip_rate", "negative flips"),
    ("positive_flip_rate", "positive flips"),
    ("churn", "churn"),
    ("negative_flip_ratio", "ratio to control"),
)
MOST_LOSSES = 12
# Bytes to hash at a time.
PIECE = 1 << 20
CURVES = (
    ("error_rate", "error"),
    ("negative_flip_rate", "negative flips against old"),
    ("churn", "churn against old"),
)

PACKAGES = ("numpy", "polars", "scipy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that the template shows."""

    title: str
    titled: bool  # True if the caller gave the title
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
        """Links to the sections of the page; a part is linked at the first candidate with it."""
        parts = (
            ("Numbers", "numbers", lambda c: c.numbers.cards),
            ("What breaks", "breaks", lambda c: c.groups),
            ("Samples", "flips-title", lambda c: c.flips is not None),
            ("Flows", "flows", lambda c: c.flows),
            ("Thresholds", "thresholds-title", lambda c: c.thresholds),
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


def build_page(
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
    # All candidates share the size budget of the page equally.
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
    # While the charts are drawn by another process, the files are hashed.
    draw_ahead([chart for candidate in candidates for chart in candidate.charts])
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
    """Raise if samples were given but none of them belongs to a flipped id."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewRow:
    """One candidate or control in the table of candidates."""

    name: str
    control: bool
    judged: VerdictSection | None
    numbers: tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Several candidates side by side."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[OverviewRow, ...]
    chart: Chart | None
    judged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The learning curves of the runs, and their cost."""

    runs: tuple[RunFolder, ...]
    charts: tuple[Chart, ...]
    losses: int  # number of loss terms; only the first `drawn_losses` are drawn
    drawn_losses: int

    @property
    def members(self) -> bool:
        """Whether any run learned from an ensemble, which costs more than the run itself."""
        return any(run.members for run in self.runs)


def overview_of(results: Mapping[str, Comparison], candidates: Sequence[Candidate]) -> Overview:
    """One table of all candidates and their controls."""
    first = next(iter(results.values()))
    controls = {
        (name, _outcomes(result.counts.control(i))): (result, i)
        for result in reversed(list(results.values()))
        for i, name in enumerate(result.controls)
    }
    # A control that is also a candidate is shown only once.
    shown = [(result.new, _outcomes(result.counts)) for result in results.values()]
    columns = tuple(
        row for row in OVERVIEW if any(result[row[0]].is_defined for result in results.values())
    )
    rows = [
        OverviewRow(
            name=candidate.name,
            control=who in controls,
            judged=candidate.judged,
            numbers=tuple(Number.of(metric, result[metric]) for metric, _ in columns),
        )
        for candidate, result, who in zip(candidates, results.values(), shown, strict=True)
    ]
    for (name, outcomes), (result, i) in controls.items():
        if (name, outcomes) not in shown:
            numbers = tuple(_of_control(result, i, metric) for metric, _ in columns)
            rows.append(OverviewRow(name=name, control=True, judged=None, numbers=numbers))
    return Overview(
        columns=columns,
        rows=tuple(rows),
        chart=_scatter(rows, first),
        judged=any(row.judged is not None for row in rows),
    )


def _outcomes(counts: FlipCounts) -> tuple[int, ...]:
    """Counts of all outcomes; they tell apart two models that have the same name."""
    return tuple(int(counts[cell]) for cell in (*CELLS, *UNLABELLED))


def _of_control(result: Comparison, i: int, metric: str) -> Number:
    if metric == "negative_flip_ratio":
        # A control has no ratio to itself.
        return Number.of(metric, Estimate(value=nan, low=nan, high=nan, n=result.n))
    return Number.of(metric, control_estimates(result, metric)[i])


def _scatter(rows: Sequence[OverviewRow], first: Comparison) -> Chart | None:
    names = [_marked(row) for row in rows]
    points = []
    for label, row in zip(short_labels(names, longest=40), rows, strict=True):
        numbers = {n.metric: n for n in row.numbers}
        if {"error_rate_new", "negative_flip_rate"} <= set(numbers):
            point = candidate_point(label, numbers["error_rate_new"], numbers["negative_flip_rate"])
            points += [point] if point is not None else []
    if not points:
        return None
    return Chart(
        spec=candidates_chart(points, 100 * first["error_rate_old"].value),
        id="candidates",
        title="Error and negative flips by candidate; the dashed line is the old model's error",
        sentence="New error against negative flip rate, one dot per candidate, with intervals.",
    )


def _marked(row: OverviewRow) -> str:
    told = row.control and "control" not in row.name.lower()
    return f"{row.name} (control)" if told else row.name


def training_of(runs: Sequence[RunFolder]) -> Training:
    """The learning curves and the cost of runs."""
    last = [run.name for run in runs]
    # Folders with the same name are shown by their full path.
    runs = [
        run if last.count(run.name) == 1 else replace(run, name=str(run.folder)) for run in runs
    ]
    known = {point.what for run in runs for point in run.points}
    losses = sorted(what for what in known if what.startswith("loss"))
    few = losses[:MOST_LOSSES]
    wanted = [*CURVES, *((what, f"{what.removeprefix('loss ')} loss") for what in few)]
    found = tuple(
        Chart(
            spec=curve_chart(runs, what),
            id=f"curve-{i}",
            title=visible(title, longest=40).capitalize(),
            sentence=f"{visible(title, longest=40)} over the epochs, one line per run and split.",
        )
        for i, (what, title) in enumerate(wanted)
        if what in known
    )
    return Training(runs=tuple(runs), charts=found, losses=len(losses), drawn_losses=len(few))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One input, of a file or of several; without size and hash it came from memory or a folder.

    The hash of several files is that of their bytes one after the other, as `cat` would give them.
    """

    role: str
    name: str
    size: int | None
    sha256: str | None


def source_files(
    results: Iterable[Comparison], others: Iterable[tuple[str, Path]] = ()
) -> tuple[SourceFile, ...]:
    """The prediction tables of all comparisons without repeats, then the other input files."""
    roles: list[tuple[str, str, tuple[Path, ...]]] = []
    for result in results:
        plan = result.plan
        if plan is None:
            roles += [("old", result.old, ()), ("new", result.new, ())]
        else:
            sides = [("old", plan.old), ("new", plan.new), *(("control", c) for c in plan.controls)]
            roles += [
                (role, side.name if side.path is None else str(side.path), side.paths)
                for role, side in sides
            ]
    roles += [(role, str(path), (path,)) for role, path in others]
    files = dict.fromkeys(
        paths for _, _, paths in roles if paths and all(map(os.path.isfile, paths))
    )
    # Each hash of a large file keeps one core busy.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        hashed = dict(zip(files, pool.map(_size_and_hash, files), strict=True))
    found = {}
    for role, name, paths in roles:
        size, sha256 = hashed.get(paths, (None, None))
        found[role, name] = SourceFile(role=role, name=name, size=size, sha256=sha256)
    return tuple(found.values())


def _size_and_hash(paths: Sequence[Path]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    size += len(piece)
                    digest.update(piece)
        except OSError as problem:
            raise InputError(
                f"{printable(str(path))} was compared but can no longer be read "
                f"({problem.strerror}); put it back, or compare again."
            ) from problem
    return size, digest.hexdigest()


def versions() -> dict[str, str]:
    """The versions of flipguard, Python and the packages that computed the numbers."""
    found = {"flipguard": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
