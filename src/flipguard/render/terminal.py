"""Comparisons and verdicts for the terminal, readable at 80 columns and without colour."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flipguard.comparison import Comparison
from flipguard.errors import printable
from flipguard.gate import SEVERITY, Judgement, RuleVerdict, Verdict
from flipguard.groups import Group, Grouping
from flipguard.metric_kinds import ControlRatioKind
from flipguard.metrics import METRICS
from flipguard.render.class_rows import has_classes
from flipguard.render.class_table import class_table
from flipguard.render.threshold_words import threshold_sentence
from flipguard.render.words import (
    OUTCOME_WORDS,
    SIGNED,
    compared_with_retrains,
    corrections,
    estimate_interval,
    explanation,
    headline,
    interval,
    judged_numbers,
    key_metrics,
    known_metrics,
    left_out,
    limit,
    little_data,
    number,
    percent,
    plural,
    rule_name,
    verdict_sentence,
    what_controls_show,
    what_ratios_say,
)

if TYPE_CHECKING:
    from flipguard.matrices import Matrix


GROUPS_SHOWN = 10
IDS_SHOWN = 10
MODELS_ABREAST = 9
WIDTH = 80
OUTCOME = {
    "pass": ("PASS", "bold green"),
    "fail": ("FAIL", "bold red"),
    "inconclusive": ("INCONCLUSIVE", "bold yellow"),
    "not_judged": ("–", "dim"),
}
CHANGE = {"regressed": ("▼ regressed", "red"), "improved": ("▲ improved", "green"), None: ("", "")}
CORRECTED = {
    "holm": "after Holm's correction over the groups",
    "benjamini-hochberg": "after Benjamini and Hochberg's correction over the groups",
    "none": "not corrected for the number of groups",
}

# Short, so that five numbers with their intervals fit eighty columns.
COLUMNS = {
    "error_rate_new": "error",
    "negative_flip_rate": "NFR",
    "relative_negative_flip_rate": "rel. NFR",
    "churn": "churn",
    "negative_flip_ratio": "NFR/control",
}


def plain_text(parts: Iterable[RenderableType]) -> str:
    """Return what a terminal of 80 columns without colour would show."""
    page = io.StringIO()
    console = Console(
        file=page, width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False
    )
    for part in parts:
        console.print(part)
    return re.sub(r" +$", "", page.getvalue(), flags=re.MULTILINE).rstrip("\n")


def comparison_parts(result: Comparison, *, all_metrics: bool = False) -> Iterator[RenderableType]:
    """Yield what `compare` prints: the key metrics, or all of them."""
    yield _title(result)
    yield Text(headline(result))
    yield from _warnings(result)
    yield Text()
    if result.layout.has_target:
        yield Padding(_square(result), (0, 0, 1, 2), expand=False)
    texts = [what_ratios_say(result)] if result.controls else []
    if result.details.thresholds is not None:
        texts.append(threshold_sentence(result.details.thresholds))
    below = (0, 0, 0 if texts else 1, 2)
    yield Padding(_metrics(result, all_metrics=all_metrics), below, expand=False)
    for text in texts:
        yield Padding(Text(text, style="dim"), (0, 0, 1, 2))
    if result.noise_floor:
        yield from _noise(result)
    for grouping in result.by.values():
        yield from _grouping(grouping)
        if all_metrics and has_classes(grouping):
            yield class_table(grouping, GROUPS_SHOWN)
    yield from _marks(result)


def verdict_parts(verdict: Verdict) -> Iterator[RenderableType]:
    """Yield what `gate` prints: the verdict, each rule, and the headline of the comparison.

    The table of metrics is left to `compare`, so that the verdict stays in sight.
    """
    word, style = OUTCOME[verdict.verdict]
    yield Text.assemble((word, style), f"  {verdict_sentence(verdict)}", "\n")
    yield Padding(_rules(verdict), (0, 0, 1, 2), expand=False)
    if verdict.pinned is not None and verdict.pinned.flipped:
        flipped = verdict.pinned.flipped
        shown = ", ".join(printable(item, longest=40) for item in flipped[:IDS_SHOWN])
        more = f" and {len(flipped) - IDS_SHOWN:,} more" if len(flipped) > IDS_SHOWN else ""
        yield Padding(Text(f"Ids of the pinned samples that flipped: {shown}{more}"), (0, 0, 1, 2))
    corrected = corrections(verdict)
    if corrected:
        yield Padding(Text(corrected, style="dim"), (0, 0, 1, 2))
    result = verdict.comparison
    yield _title(result)
    yield Text(headline(result))
    yield from _warnings(result)
    if any(isinstance(METRICS[rule.rule.metric].kind, ControlRatioKind) for rule in verdict.rules):
        yield Padding(Text(what_ratios_say(result), style="dim"), (0, 0, 0, 2))
    yield Text()
    if result.noise_floor:
        yield from _noise(result)
    told = [one for one in result.by.values() if not _rules_show(verdict, one.column)]
    for grouping in told:
        yield from _grouping(grouping)
    if told:
        yield from _marks(result)


def _rules_show(verdict: Verdict, column: str) -> bool:
    """Return whether each group of a column has its values next to a rule."""
    judged = [one for rule in verdict.rules if rule.rule.by == column for one in rule.judgements]
    return bool(judged) and all(one.verdict != "pass" for one in judged)


def matrix_parts(matrix: Matrix) -> Iterator[RenderableType]:
    """Yield what `matrix` prints: three squares, one row per old model, one column per new one."""
    yield Text(
        f"{len(matrix.names)} models, {plural(matrix.n, 'sample')}; "
        "rows are the old model, columns the new one\n"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("model")
    table.add_column("error", justify="right")
    for i, name in enumerate(matrix.names):
        error = number("error_rate_old", float(matrix.error_rate[i]))
        table.add_row(str(i + 1), Text(printable(name, longest=50)), error)
    yield Padding(table, (0, 0, 1, 2), expand=False)
    if any(matrix.left_out):
        text = ", ".join(f"{n:,} of model {i}" for i, n in enumerate(matrix.left_out, 1) if n)
        yield Padding(Text(f"note: rows that some model lacks were left out: {text}"), (0, 0, 1, 2))
    for note in matrix.notes:
        yield Padding(Text(f"note: {printable(note)}"), (0, 0, 1, 2))
    for metric in ("negative_flip_rate", "churn", "accuracy_gain"):
        if np.isnan(getattr(matrix, metric)).all():
            continue
        # A square that is too wide is split into parts, one below the other.
        for start in range(0, len(matrix.names), MODELS_ABREAST):
            shown = range(start, min(start + MODELS_ABREAST, len(matrix.names)))
            whole = len(shown) == len(matrix.names)
            part = "" if whole else f", new models {shown[0] + 1} to {shown[-1] + 1}"
            unit = "points" if metric in SIGNED else "%"
            yield Text(f"  {metric}, {unit}{part}", style="italic")
            yield Padding(_matrix_part(matrix, metric, shown), (0, 0, 1, 2), expand=False)


def _matrix_part(matrix: Matrix, metric: str, shown: range) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("old", justify="right", style="dim", no_wrap=True)
    for j in shown:
        table.add_column(str(j + 1), justify="right", no_wrap=True)
    for i, row in enumerate(getattr(matrix, metric)):
        cells = [number(metric, float(row[j]), unit=False) if i != j else "·" for j in shown]
        table.add_row(str(i + 1), *cells)
    return table


def _title(result: Comparison) -> Text:
    details = [plural(result.n, "sample"), f"{percent(result.confidence)} intervals"]
    if result.clusters is not None:
        details.insert(
            1, f"{plural(result.clusters, 'cluster')} of {printable(str(result.cluster))}"
        )
    return Text.assemble(
        (printable(result.old), "bold"),
        " → ",
        (printable(result.new), "bold"),
        (f"  ({', '.join(details)})", "dim"),
    )


def _square(result: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("new right", justify="right")
    table.add_column("new wrong", justify="right")
    cells = {
        c: int(result.counts[c])
        for c in ("both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different")
    }
    wrong = cells["wrong_same"] + cells["wrong_different"]
    table.add_row(
        "old right",
        f"{cells['both_right']:,}",
        Text(f"{cells['negative_flip']:,}", style="bold red"),
        "negative flips",
    )
    table.add_row(
        "old wrong",
        Text(f"{cells['positive_flip']:,}", style="green"),
        f"{wrong:,}",
        _changes_of_wrong(result, cells["wrong_different"]),
    )
    return table


def _changes_of_wrong(result: Comparison, samples: int) -> str:
    layout = result.layout
    if not layout.has_labels:
        return ""
    return f"{samples:,} change to another wrong {'answer' if layout.graded else 'class'}"


def _metrics(result: Comparison, *, all_metrics: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("interval", justify="right")
    table.add_column("n", justify="right", style="dim")
    for name in known_metrics(result) if all_metrics else key_metrics(result):
        estimate = result[name]
        style = "bold" if name in ("negative_flip_rate", "accuracy_gain") else ""
        table.add_row(
            Text(name, style=style),
            Text(number(name, estimate.value), style=style),
            estimate_interval(name, estimate),
            f"{estimate.n:,}",
        )
    return table


def _noise(result: Comparison) -> Iterator[RenderableType]:
    table = Table(
        box=None,
        pad_edge=False,
        title=f"Compared with {len(result.controls)} retrains (controls)",
        title_justify="left",
    )
    table.add_column("metric")
    table.add_column("this update", justify="right")
    table.add_column("one more retrain", justify="right")
    table.add_column("so it changes")
    for floor in result.noise_floor:
        table.add_row(
            floor.metric,
            number(floor.metric, floor.value),
            interval(floor.metric, floor.low, floor.high),
            compared_with_retrains(floor),
        )
    text = what_controls_show(result)
    yield Padding(table, (0, 0, 0 if text else 1, 2), expand=False)
    if text:
        yield Padding(Text(text, style="dim"), (0, 0, 1, 2))


def _grouping(grouping: Grouping) -> Iterator[RenderableType]:
    shown = grouping.groups[:GROUPS_SHOWN]
    rate = "negative_flip_rate"
    if not any(group[rate].is_defined for group in shown):
        rate = "churn"
    table = Table(
        box=None,
        pad_edge=False,
        title=Text(
            f"By {printable(grouping.column, longest=80)}: {_shown(len(shown), len(grouping))}"
        ),
        title_justify="left",
    )
    table.add_column("group", overflow="fold", max_width=24)
    table.add_column("n", justify="right", style="dim")
    table.add_column(rate, justify="right")
    table.add_column("interval", justify="right")
    table.add_column("gain", justify="right")
    table.add_column("")
    for group in shown:
        table.add_row(*_group_row(grouping, group, rate))
    yield Padding(table, (0, 0, 1, 2), expand=False)


def _shown(shown: int, total: int) -> str:
    if shown == total:
        return f"{plural(total, 'group')}, worst first"
    return f"the worst {shown} of {total:,} groups"


def _group_row(grouping: Grouping, group: Group, rate: str) -> list[RenderableType]:
    word, style = CHANGE[grouping.change(group)]
    return [
        Text(printable(group.name, longest=80)),
        f"{group.n:,}",
        number(rate, group[rate].value),
        estimate_interval(rate, group[rate]),
        number("accuracy_gain", group["accuracy_gain"].value),
        Text(word, style=style),
    ]


def _warnings(result: Comparison) -> Iterator[RenderableType]:
    """Yield the notes about the files that a reader needs before the numbers."""
    for note in [*left_out(result), *result.notes]:
        text = Text.assemble(("note: ", "bold yellow"), printable(note, longest=400))
        yield Padding(text, (0, 0, 0, 2))


def _marks(result: Comparison) -> Iterator[RenderableType]:
    """Yield what the marks of groups mean, if there can be any."""
    corrections = {grouping.correction for grouping in result.by.values()}
    if corrections and result.layout.has_target:
        text = (
            "groups are marked if their negative and positive flips differ significantly, "
            + CORRECTED[corrections.pop()]
        )
        yield Padding(Text(text, style="dim"), (0, 0, 0, 2))


def _rules(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    # As wide as the longest metric, because a name on two lines is hard to look up.
    longest = max((len(rule.rule.metric) for rule in verdict.rules), default=0)
    table.add_column("rule", overflow="fold", min_width=longest)
    table.add_column("limit", no_wrap=True)
    # The interval is below its value: next to it, a row would not fit into eighty columns.
    table.add_column("value, interval", justify="right", no_wrap=True)
    for rule in verdict.rules:
        _add_rule(table, rule)
    if verdict.pinned is not None:
        word, style = OUTCOME[verdict.pinned.verdict]
        flipped = len(verdict.pinned.flipped)
        text = f"{flipped} of {verdict.pinned.n:,}"
        table.add_row(Text(word, style=style), "pinned samples", "no flip", text)
    return table


def _add_rule(table: Table, rule: RuleVerdict) -> None:
    if rule.rule.by is None:
        _add_judgement(table, rule.judgements[0], rule_name(rule.rule), limit(rule.rule))
        return
    word, style = OUTCOME[rule.verdict]
    outcomes = [judgement.verdict for judgement in rule.judgements]
    told = [o for o in SEVERITY if o in outcomes]
    tally = ", ".join(f"{outcomes.count(o)} {OUTCOME_WORDS[o]}" for o in told)
    lines = "".join(f"\n{one}" for one in (tally, little_data(rule)) if one)
    text = Text.assemble(rule_name(rule.rule), (lines, "dim"))
    table.add_row(Text(word, style=style), text, limit(rule.rule), "")
    worst = [j for j in rule.judgements if j.verdict != "pass"]
    for judgement in worst[:GROUPS_SHOWN]:
        _add_judgement(table, judgement, f"  {printable(str(judgement.group), longest=40)}", "")
    if len(worst) > GROUPS_SHOWN:
        table.add_row("", Text(f"  and {len(worst) - GROUPS_SHOWN:,} more", style="dim"))


def _add_judgement(table: Table, judgement: Judgement, name: str, told_limit: str) -> None:
    word, style = OUTCOME[judgement.verdict]
    why = explanation(judgement)
    shown = Text.assemble(name, (f"\n{why}" if why else "", "dim"))
    found, ends = judged_numbers(judgement)
    value = Text.assemble(found, (f"\n{ends}" if ends else "", "dim"))
    table.add_row(Text(word, style=style), shown, told_limit, value)


def metric_parts() -> Iterator[RenderableType]:
    """Yield what `metrics` prints: one line per metric."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("metric", style="bold", no_wrap=True)
    table.add_column("what it measures")
    for metric in METRICS.values():
        table.add_row(metric.name, metric.sentence)
    yield table


def candidate_parts(
    results: Mapping[str, Comparison], verdicts: Mapping[str, Verdict], *, control: str
) -> Iterator[RenderableType]:
    """Yield the numbers of every update with intervals, and then the reasons for its verdict."""
    table = Table(box=None, pad_edge=False)
    table.add_column("update")
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for name, result in results.items():
        values, intervals = _cells(result, is_control=name == control)
        table.add_row(Text(name, style="bold"), *values)
        table.add_row("", *(Text(one, style="dim") for one in intervals))
    yield table
    yield Text("NFR: negative flip rate. rel. NFR: relative to two independent models.", "dim")
    yield Text(
        "NFR/control: ratio to the control, which changes with the seed of either model.", "dim"
    )
    yield ""
    for name, verdict in verdicts.items():
        yield _reasons(name, verdict)


def _cells(result: Comparison, *, is_control: bool) -> tuple[list[str], list[str]]:
    values, intervals = [], []
    for metric in COLUMNS:
        if metric == "negative_flip_ratio" and is_control:
            values.append("1")
            intervals.append("")
            continue
        estimate = result[metric]
        values.append(number(metric, estimate.value))
        intervals.append(estimate_interval(metric, estimate).replace(" to ", "–"))
    return values, intervals


def _reasons(name: str, verdict: Verdict) -> Text:
    """Return the rules that an update fails or leaves inconclusive; or that every rule holds."""
    word, style = OUTCOME[verdict.verdict]
    message = []
    for rule in verdict.blocking:
        worst = rule.judgements[0]
        if rule.verdict != "pass":
            value = number(rule.rule.metric, worst.value)
            more = explanation(worst)
            message.append(
                f"{rule.rule.metric} is {value}, and should be {limit(rule.rule)}"
                + (f" ({more})" if more else "")
            )
    return Text.assemble(
        (name, "bold"), ": ", (word, style), ", ", "; ".join(message) or "every rule holds"
    )
