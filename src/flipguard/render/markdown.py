"""Comparisons and verdicts as Markdown: the verdict first, fit for a pull-request comment."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flipguard.comparison import Comparison, Grouping
from flipguard.gate import Judgement, Verdict
from flipguard.metrics import METRICS
from flipguard.render.text import (
    count,
    estimate_interval,
    headline,
    interval,
    limit,
    number,
    percent,
    printable,
    what_would_decide,
)

GROUPS_SHOWN = 10
IDS_SHOWN = 10
MARK = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "not_judged": "–"}
WORD = {"pass": "pass", "fail": "fail", "inconclusive": "inconclusive", "not_judged": "not judged"}
KEY_METRICS = (
    "negative_flip_rate",
    "positive_flip_rate",
    "accuracy_gain",
    "relative_negative_flip_rate",
    "churn",
    "churn_ratio",
    "negative_flip_ratio",
)


def comparison_markdown(result: Comparison) -> str:
    """A comparison for a pull request: a sentence, the numbers that decide, and the rest folded."""
    return "\n".join([f"### {_pair(result)}", "", *_comparison(result)]) + "\n"


def verdict_markdown(verdict: Verdict) -> str:
    """A verdict for a pull request, verdict first."""
    outcome = verdict.verdict
    lines = [f"### {MARK[outcome]} {WORD[outcome].capitalize()}: {_pair(verdict.comparison)}", ""]
    rows = []
    for rule in verdict.rules:
        listed = rule.judgements if rule.rule.by is None else _worst(rule.judgements)
        for judgement in listed:
            rows.append(_judgement_row(judgement))
        rest = len(rule.judgements) - len(listed)
        if rest:
            name = f"`{rule.rule.metric}` by {_cell(str(rule.rule.by))}"
            rows.append(["", f"{name}: {count(rest, 'other group')}", limit(rule.rule), "", "", ""])
    if verdict.pinned is not None:
        pinned = verdict.pinned
        told = f"{len(pinned.flipped)} of {pinned.n:,}"
        rows.append([MARK[pinned.verdict], "pinned samples", "none may flip", told, "", ""])
    lines += _table(["", "rule", "limit", "value", "interval", ""], rows, right=(3, 4))
    if verdict.pinned is not None and verdict.pinned.flipped:
        shown = ", ".join(_cell(item) for item in verdict.pinned.flipped[:IDS_SHOWN])
        rest = len(verdict.pinned.flipped) - IDS_SHOWN
        lines += ["", f"Pinned samples that flipped: {shown}" + (f" and {rest:,} more" if rest > 0 else "")]
    return "\n".join([*lines, "", *_comparison(verdict.comparison)]) + "\n"


def _pair(result: Comparison) -> str:
    return f"{_cell(result.old)} → {_cell(result.new)}"


def _comparison(result: Comparison) -> list[str]:
    lines = [headline(result), ""]
    known = [name for name in METRICS if METRICS[name].needs <= result.layout.available]
    key = [name for name in KEY_METRICS if name in known]
    lines += _metric_table(result, key)
    for grouping in result.by.values():
        lines += ["", *_grouping(grouping)]
    lines += ["", "<details><summary>All metrics</summary>", ""]
    lines += _metric_table(result, known)
    told = [f"{count(result.n, 'sample')}", f"{percent(result.confidence)} intervals"]
    if result.clusters is not None:
        told.append(f"{count(result.clusters, 'cluster')} of {_cell(str(result.cluster))}")
    if result.rows.only_old or result.rows.only_new:
        told.append(
            f"{count(result.rows.only_old, 'row')} only in old and "
            f"{count(result.rows.only_new, 'row')} only in new left out"
        )
    lines += ["", "; ".join(told) + ".", *(_cell(note) + "." for note in result.notes)]
    return [*lines, "", "</details>"]


def _metric_table(result: Comparison, names: Iterable[str]) -> list[str]:
    rows = [
        [f"`{name}`", number(name, result[name].value), estimate_interval(name, result[name])]
        for name in names
    ]
    return _table(["metric", "value", "interval"], rows, right=(1, 2))


def _grouping(grouping: Grouping) -> list[str]:
    shown = grouping.groups[:GROUPS_SHOWN]
    rate = "negative_flip_rate"
    if not any(group[rate].is_defined for group in shown):
        rate = "churn"
    change = {"regressed": "▼ regressed", "improved": "▲ improved", None: ""}
    rows = [
        [
            _cell(group.name),
            f"{group.n:,}",
            number(rate, group[rate].value),
            estimate_interval(rate, group[rate]),
            number("accuracy_gain", group["accuracy_gain"].value),
            change[grouping.change(group)],
        ]
        for group in shown
    ]
    header = [f"{_cell(grouping.column)}", "n", f"`{rate}`", "interval", "gain", ""]
    lines = _table(header, rows, right=(1, 2, 3, 4))
    rest = len(grouping) - len(shown)
    return [*lines, "", f"… and {count(rest, 'more group')}."] if rest else lines


def _worst(judgements: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
    open_or_failed = [j for j in judgements if j.verdict in ("fail", "inconclusive")]
    return tuple(open_or_failed[:GROUPS_SHOWN])


def _judgement_row(judgement: Judgement) -> list[str]:
    rule = judgement.rule
    name = f"`{rule.metric}`"
    if rule.by is not None:
        name += f" of {_cell(rule.by)} = {_cell(str(judgement.group))}"
    ends = "" if rule.judge == "point" else interval(rule.metric, judgement.low, judgement.high)
    return [
        MARK[judgement.verdict],
        name,
        limit(rule),
        number(rule.metric, judgement.value),
        ends,
        what_would_decide(judgement),
    ]


def _table(header: list[str], rows: list[list[str]], *, right: tuple[int, ...]) -> list[str]:
    rule = ["---:" if i in right else ":---" for i in range(len(header))]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


def _cell(text: str) -> str:
    """Text from a file that stays text: no markup, no links, no mentions, one line."""
    shown = printable(text, longest=100)
    shown = re.sub(r"([\\`*_{}\[\]()#+!|~$^])", r"\\\1", shown)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")
