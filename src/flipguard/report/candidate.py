"""One update as data, from its verdict down to its single samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from flipguard.comparison import Comparison
from flipguard.gate import Verdict
from flipguard.render.numbers import KeyNumbers, Number, key_numbers, visible
from flipguard.render.threshold_words import threshold_sentence
from flipguard.render.words import percent, plural
from flipguard.report.charts import Chart, alluvial
from flipguard.report.flips import (
    AnswerChange,
    FlipTable,
    answer_changes,
    broken_pairs,
    confidence_pairs,
    flip_table,
    flips_of,
)
from flipguard.report.group_charts import (
    GROUPS_DRAWN,
    broken_chart,
    displacement_chart,
    groups_chart,
)
from flipguard.report.samples import Sampled, Samples
from flipguard.report.score_charts import (
    confidence_chart,
    highest_drawn,
    moved_chart,
    reliability_chart,
    shift_chart,
    threshold_chart,
)
from flipguard.report.scores import Displacement, Reliability, displacement_of, reliabilities
from flipguard.report.verdict import GroupTable, VerdictSection, group_tables, verdict_section

if TYPE_CHECKING:
    from markupsafe import Markup

ROWS_WITHOUT_SCRIPT = 25
CLASSES_DRAWN = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBlock:
    """The groups of one column, as a table and as a chart."""

    table: GroupTable
    chart: Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One update, from its verdict down to its single samples."""

    key: str
    name: str
    old: str
    new: str
    basis: str
    judged: VerdictSection | None
    numbers: KeyNumbers
    alluvial: Markup | None
    groups: tuple[GroupBlock, ...]
    test: str
    flips: FlipTable | None
    flips_order: str
    flips_note: str
    samples_note: str
    flows: tuple[AnswerChange, ...]
    all_flows: int
    broken: Chart | None
    sides: tuple[Reliability, ...]
    confidence: tuple[Chart, ...]
    displacement: Number | None
    moved: Displacement | None
    displacements: tuple[Chart, ...]
    thresholds: Chart | None

    @property
    def first_rows(self) -> range:
        """The rows that are visible without JavaScript."""
        return range(min(len(self.flips) if self.flips is not None else 0, ROWS_WITHOUT_SCRIPT))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All charts of the candidate."""
        found = [block.chart for block in self.groups]
        found += [self.broken] if self.broken is not None else []
        found += [self.thresholds] if self.thresholds is not None else []
        return (*found, *self.confidence, *self.displacements)


def candidate_of(
    key: str,
    name: str,
    result: Comparison,
    verdict: Verdict | None,
    samples: Samples | None,
    *,
    budget: int,
    most: int,
) -> Candidate:
    """Everything that the page shows about one comparison."""
    numbers = key_numbers(result)
    flips = flips_of(result)
    table = None
    if flips is not None:
        table = flip_table(flips, samples=samples, budget=budget, most=most)
    flows, all_flows = answer_changes(flips) if flips is not None else ((), 0)
    tables = group_tables(result)
    distance = result["logit_displacement"]
    displacement = Number.of("logit_displacement", distance) if distance.is_defined else None
    moved = displacement_of(result)
    return Candidate(
        key=key,
        name=name,
        old=short_pair(result.old, result.new)[0],
        new=short_pair(result.old, result.new)[1],
        basis=_basis(result),
        judged=verdict_section(verdict) if verdict is not None else None,
        numbers=numbers,
        alluvial=alluvial(numbers.square) if numbers.square is not None else None,
        groups=tuple(_block(key, i, t, result) for i, t in enumerate(tables)),
        test="an exact test" if result.cluster is None else "a test that allows for the clusters",
        flips=table,
        flips_order=_order(table) if table is not None else "",
        flips_note=_flips_note(table) if table is not None else "",
        samples_note=_samples_note(table.sampled) if table is not None and table.sampled else "",
        flows=flows,
        all_flows=all_flows,
        broken=_broken(key, flips) if flips is not None else None,
        sides=reliabilities(result),
        confidence=_confidence(key, reliabilities(result), flips),
        displacement=displacement,
        moved=moved,
        displacements=_displacements(key, tables, displacement, moved),
        thresholds=_thresholds(key, result),
    )


def short_pair(old: str, new: str) -> tuple[str, str]:
    """Two paths without the folders and endings that they share.

    >>> short_pair("data/old.csv", "data/new.csv")
    ('old.csv', 'new.csv')
    >>> short_pair("runs/v1/predictions/test.npz", "runs/v2/predictions/test.npz")
    ('v1', 'v2')
    """
    a, b = old.split("/"), new.split("/")
    while len(a) > 1 and len(b) > 1 and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return "/".join(a), "/".join(b)


def _basis(result: Comparison) -> str:
    told = [plural(result.n, "sample"), f"{percent(result.confidence)} intervals"]
    if result.clusters is not None:
        told.insert(1, f"{plural(result.clusters, 'cluster')} of {visible(result.cluster)}")
    return " · ".join(told)


def _block(key: str, place: int, table: GroupTable, result: Comparison) -> GroupBlock:
    column = visible(table.column, longest=60)
    word = "Negative flips" if table.rate == "negative_flip_rate" else "Churn"
    drawn_rows = min(len(table.rows), GROUPS_DRAWN)
    most = f"the worst {drawn_rows} of {table.total:,}" if drawn_rows < table.total else "all"
    chart = Chart(
        spec=groups_chart(table, Number.of(table.rate, result[table.rate])),
        id=f"{key}-groups-{place}",
        title=f"{word} by {column}, with intervals; the dashed line is all samples",
        sentence=f"{word} by {column}: {most} groups with intervals, as in the table below.",
    )
    return GroupBlock(table=table, chart=chart)


def _order(table: FlipTable) -> str:
    """How the samples are sorted, as the end of a sentence; it depends on the scores."""
    if set(table.totals) == {"changed"}:
        sure = "new_confidence" in table.confidences
        return ", sorted by the new model's confidence, highest first" if sure else ""
    if "old_target_confidence" in table.confidences:
        return ", negative flips first, sorted by the old model's confidence in the target"
    return ", negative flips first"


def _flips_note(table: FlipTable) -> str:
    """A note on the flips that the page leaves out; empty if it shows all of them."""
    if len(table) == table.total:
        return ""
    parts = ", ".join(
        f"{table.kept[kind]:,} of {table.totals[kind]:,} {kind.replace('_', ' ')}"
        for kind in table.totals
    )
    return (
        f"This page holds the worst {len(table):,} of {table.total:,} ({parts}). "
        "flipguard compare --flips FILE writes all of them to a file, and result.flips() in Python "
        "returns them."
    )


def _samples_note(sampled: Sampled) -> str:
    word = {"image": "picture", "text": "text", "link": "link"}[sampled.kind]
    told = (
        f"{len(sampled.items):,} of {plural(sampled.wanted, 'sample')} "
        f"{'is shown with its' if len(sampled.items) == 1 else 'are shown with their'} {word}, "
        f"from {visible(sampled.source, longest=80)}"
    )
    if sampled.left_out:
        told += (
            f"; {sampled.left_out:,} did not fit into the budget of {sampled.budget / 1e6:.3g} MB, "
            "and those shown were drawn from every kind and class in turn"
        )
    if sampled.missing:
        told += f"; {sampled.missing:,} are missing or cannot be shown"
    return told + "."


def _broken(key: str, flips: pl.DataFrame) -> Chart | None:
    pairs = broken_pairs(flips, most=CLASSES_DRAWN)
    if not pairs:
        return None
    return Chart(
        spec=broken_chart(pairs),
        id=f"{key}-broken",
        title="The new model's wrong answers in negative flips",
        sentence="Negative flips by target and new answer, for the classes with most flips.",
    )


def _confidence(
    key: str, sides: Sequence[Reliability], flips: pl.DataFrame | None
) -> tuple[Chart, ...]:
    if not sides:
        return ()
    found = [
        Chart(
            spec=reliability_chart(sides),
            id=f"{key}-reliability",
            title="Reliability: accuracy at each confidence",
            sentence="Accuracy over mean confidence in 15 bins; the dashed line is perfect.",
        ),
        Chart(
            spec=confidence_chart(sides),
            id=f"{key}-shares",
            title="Confidence of each model",
            sentence="Share of samples by confidence, for each model.",
        ),
    ]
    table = confidence_pairs(flips, "negative") if flips is not None else []
    if table:
        found.append(
            Chart(
                spec=shift_chart(table),
                id=f"{key}-shift",
                title="Negative flips by the confidence of old and new",
                sentence="Negative flips by the old and the new model's confidence.",
            )
        )
    return tuple(found)


def _thresholds(key: str, result: Comparison) -> Chart | None:
    found = result.details.thresholds
    if found is None:
        return None
    top = highest_drawn(found)
    return Chart(
        spec=threshold_chart(found),
        id=f"{key}-thresholds",
        title="Flips and error over the new model's threshold; the vertical line is the one in use"
        + ("" if found.best is None else ", and the dashed line breaks least and does no harm")
        + ("" if top is None else f"; values above {top:.3g} % are cut off"),
        sentence=threshold_sentence(found),
    )


def _displacements(
    key: str, tables: Sequence[GroupTable], whole: Number | None, moved: Displacement | None
) -> tuple[Chart, ...]:
    if whole is None:
        return ()
    found = []
    if moved is not None:
        found.append(
            Chart(
                spec=moved_chart(moved),
                id=f"{key}-moved",
                title="Distance of logits by outcome of the sample",
                sentence="Share of samples by distance of logits, one line per outcome.",
            )
        )
    for i, table in enumerate(tables):
        if any(row.displacement is not None for row in table.rows):
            column = visible(table.column, longest=60)
            found.append(
                Chart(
                    spec=displacement_chart(table, whole),
                    id=f"{key}-distance-{i}",
                    title=f"Mean distance by {column}; the dashed line is all samples",
                    sentence=f"Mean distance of logits by {column}, with intervals.",
                )
            )
    return tuple(found)
