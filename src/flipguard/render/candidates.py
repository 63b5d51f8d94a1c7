"""Several updates of one model, side by side on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flipguard.comparison import Comparison
from flipguard.gate import Verdict
from flipguard.render.terminal import OUTCOME, VERDICT
from flipguard.render.text import estimate_interval, explanation, limit, number

# Short, so that five numbers with their intervals fit eighty columns.
COLUMNS = {
    "error_rate_new": "error",
    "negative_flip_rate": "NFR",
    "relative_negative_flip_rate": "rel. NFR",
    "churn": "churn",
    "negative_flip_ratio": "NFR/control",
}


def candidate_parts(
    results: Mapping[str, Comparison], verdicts: Mapping[str, Verdict], *, control: str
) -> Iterator[RenderableType]:
    """The numbers of every update with their intervals, and then the reasons for its verdict."""
    table = Table(box=None, pad_edge=False)
    table.add_column("update")
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("gate", no_wrap=True)
    for name, result in results.items():
        word, style = OUTCOME[verdicts[name].verdict]
        values, intervals = _cells(result, is_control=name == control)
        table.add_row(Text(name, style="bold"), *values, Text(word, style=style))
        table.add_row("", *(Text(one, style="dim") for one in intervals), "")
    yield table
    yield Text("NFR: negative flips, of all samples; relative, of what chance would flip.", "dim")
    yield Text("NFR/control compares two models; another seed of either would change it.", "dim")
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
    """Each rule that an update does not keep for certain; or that it keeps them all."""
    word, style, _ = VERDICT[verdict.verdict]
    said = []
    for rule in verdict.rules:
        worst = rule.judgements[0]
        if rule.verdict != "pass":
            value = number(rule.rule.metric, worst.value)
            more = explanation(worst)
            said.append(
                f"{rule.rule.metric} is {value}, and should be {limit(rule.rule)}"
                + (f" ({more})" if more else "")
            )
    return Text.assemble(
        (name, "bold"), ": ", (word, style), ", ", "; ".join(said) or "every rule holds"
    )
