"""Several candidates side by side, and the training that they came from, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from flipguard.comparison import Comparison
from flipguard.counts import CELLS, UNLABELLED, FlipCounts
from flipguard.estimates import Estimate
from flipguard.report.charts.candidates import candidate_point, candidates_chart, curve_chart
from flipguard.report.content import Number, control_estimates
from flipguard.report.drawing import Chart
from flipguard.report.judged import Judged
from flipguard.report.runs import RunFolder
from flipguard.report.safe import short_labels, visible
from flipguard.report.story import Candidate

OVERVIEW = (
    ("error_rate_new", "error"),
    ("accuracy_gain", "gain"),
    ("negative_flip_rate", "negative flips"),
    ("positive_flip_rate", "positive flips"),
    ("churn", "churn"),
    ("negative_flip_ratio", "of the control's"),
)
MOST_LOSSES = 12
CURVES = (
    ("error_rate", "error"),
    ("negative_flip_rate", "negative flips against old"),
    ("churn", "churn against old"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewRow:
    """A candidate, or the control, in the table of all."""

    name: str
    control: bool
    judged: Judged | None
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
    """What the runs learned, and what they cost."""

    runs: tuple[RunFolder, ...]
    charts: tuple[Chart, ...]
    losses: int  # how many there are, of which the first few are drawn
    drawn_losses: int

    @property
    def members(self) -> bool:
        """Whether a run learned from an ensemble, which costs more than the run itself."""
        return any(run.members for run in self.runs)


def overview_of(results: Mapping[str, Comparison], candidates: Sequence[Candidate]) -> Overview:
    """The candidates of a page, and their controls, in one table."""
    first = next(iter(results.values()))
    controls = {
        (name, _outcomes(result.counts.control(i))): (result, i)
        for result in reversed(list(results.values()))
        for i, name in enumerate(result.controls)
    }
    # A control may be a candidate itself, which is then shown once.
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
    """What became of the samples: two models may share a name, but hardly this."""
    return tuple(int(counts[cell]) for cell in (*CELLS, *UNLABELLED))


def _of_control(result: Comparison, i: int, metric: str) -> Number:
    if metric == "negative_flip_ratio":
        # A control has none to itself.
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
        title="Error and negative flips of every candidate; the dashed line is old's error",
        sentence="Error of new against negative flip rate, a dot a candidate, with intervals.",
    )


def _marked(row: OverviewRow) -> str:
    told = row.control and "control" not in row.name.lower()
    return f"{row.name} (control)" if told else row.name


def training_of(runs: Sequence[RunFolder]) -> Training:
    """The curves and the cost of runs."""
    last = [run.name for run in runs]
    # Folders of one name are told apart by their whole path.
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
            sentence=f"{visible(title, longest=40)} over the epochs, a line a run and split.",
        )
        for i, (what, title) in enumerate(wanted)
        if what in known
    )
    return Training(runs=tuple(runs), charts=found, losses=len(losses), drawn_losses=len(few))
