"""Comparisons and verdicts as Markdown for a pull request, the verdict first."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flipguard.comparison import Comparison
from flipguard.errors import printable
from flipguard.gate import Judgement, RuleVerdict, Verdict
from flipguard.groups import Grouping
from flipguard.render.class_rows import CLASS_HEADER, class_rows, has_classes
from flipguard.render.threshold_words import threshold_sentence
from flipguard.render.words import (
    OUTCOME_WORDS,
    compared_with_retrains,
    corrections,
    estimate_interval,
    explanation,
    fewer_than_min_n,
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
    verdict_sentence,
    what_controls_show,
    what_ratios_say,
)

GROUPS_SHOWN = 10
IDS_SHOWN = 10
MARK = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "not_judged": "–"}


def comparison_markdown(result: Comparison) -> str:
    """Return a comparison as Markdown: a sentence, the key metrics, and all metrics folded."""
    return "\n".join([f"### {_pair(result)}", "", *_comparison(result)]) + "\n"


def verdict_markdown(verdict: Verdict) -> str:
    """Return a verdict as Markdown: the verdict, the rules, and then the comparison."""
    outcome = verdict.verdict
    word = OUTCOME_WORDS[outcome].capitalize()
    lines = [f"### {MARK[outcome]} {word}: {_pair(verdict.comparison)}", ""]
    lines += [f"{_sentence(verdict_sentence(verdict))}.", ""]
    rows = []
    for rule in verdict.rules:
        listed = rule.judgements if rule.rule.by is None else _worst(rule.judgements)
        for judgement in listed:
            rows.append(_judgement_row(judgement))
        rows += _other_groups(rule, listed)
    if verdict.pinned is not None:
        pinned = verdict.pinned
        text = f"{len(pinned.flipped)} of {pinned.n:,}"
        rows.append([MARK[pinned.verdict], "pinned samples", "no flip", text, "", ""])
    lines += _table(["", "rule", "limit", "value", "interval", ""], rows, right=(3, 4))
    corrected = corrections(verdict)
    if corrected:
        lines += ["", corrected]
    if verdict.pinned is not None and verdict.pinned.flipped:
        shown = ", ".join(_code(item) for item in verdict.pinned.flipped[:IDS_SHOWN])
        rest = len(verdict.pinned.flipped) - IDS_SHOWN
        lines += [
            "",
            f"Ids of the pinned samples that flipped: {shown}"
            + (f" and {rest:,} more" if rest > 0 else ""),
        ]
    return "\n".join([*lines, "", *_comparison(verdict.comparison)]) + "\n"


def _pair(result: Comparison) -> str:
    return f"{_code(result.old)} → {_code(result.new)}"


def _comparison(result: Comparison) -> list[str]:
    lines = [headline(result), ""]
    for note in [*left_out(result), *result.notes]:
        end = "" if note.endswith("?") else "."
        lines += [f"> **Note:** {_sentence(note)}{end}", ""]
    lines += _metric_table(result, key_metrics(result))
    if result.controls:
        lines += ["", what_ratios_say(result)]
    if result.details.thresholds is not None:
        lines += ["", threshold_sentence(result.details.thresholds)]
    if result.noise_floor:
        lines += ["", *_noise(result)]
    for grouping in result.by.values():
        lines += ["", *_grouping(grouping)]
    lines += ["", "<details><summary>All metrics</summary>", ""]
    for grouping in filter(has_classes, result.by.values()):
        rows = [[_cell(name), *texts] for name, texts in class_rows(grouping.groups[:GROUPS_SHOWN])]
        lines += [*_table([_cell(grouping.column), *CLASS_HEADER], rows, right=(1, 2, 3)), ""]
    lines += _metric_table(result, known_metrics(result))
    text = [f"{plural(result.n, 'sample')}", f"{percent(result.confidence)} intervals"]
    if result.clusters is not None:
        text.append(f"{plural(result.clusters, 'cluster')} of {_code(str(result.cluster))}")
    lines += ["", "; ".join(text) + "."]
    return [*lines, "", "</details>"]


def _metric_table(result: Comparison, names: Iterable[str]) -> list[str]:
    rows = [
        [f"`{name}`", number(name, result[name].value), estimate_interval(name, result[name])]
        for name in names
    ]
    return _table(["metric", "value", "interval"], rows, right=(1, 2))


def _noise(result: Comparison) -> list[str]:
    rows = [
        [
            f"`{floor.metric}`",
            number(floor.metric, floor.value),
            interval(floor.metric, floor.low, floor.high),
            compared_with_retrains(floor),
        ]
        for floor in result.noise_floor
    ]
    text = plural(len(result.controls), "retrain")
    header = [f"compared with {text}", "this update", "one more retrain", "so it changes"]
    shown = what_controls_show(result)
    return [*_table(header, rows, right=(1, 2)), *(["", _sentence(shown)] if shown else [])]


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
    header = [_cell(grouping.column), "n", f"`{rate}`", "interval", "gain", ""]
    lines = _table(header, rows, right=(1, 2, 3, 4))
    if any(row[-1] for row in rows):
        lines += ["", "▼ ▲: negative and positive flips differ significantly."]
    rest = len(grouping) - len(shown)
    return [*lines, "", f"… and {plural(rest, 'more group')}."] if rest else lines


def _worst(judgements: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
    worst = [j for j in judgements if j.verdict in ("fail", "inconclusive")]
    return tuple(worst[:GROUPS_SHOWN])


def _other_groups(rule: RuleVerdict, listed: tuple[Judgement, ...]) -> list[list[str]]:
    """Return one row per outcome for the groups that are not listed one by one."""
    rows = []
    for outcome, word in OUTCOME_WORDS.items():
        shown = sum(j.verdict == outcome for j in listed)
        rest = sum(j.verdict == outcome for j in rule.judgements) - shown
        if rest:
            text = f"{word} in {plural(rest, 'further group' if shown else 'group')}"
            name = f"`{rule.rule.metric}` by {_cell(str(rule.rule.by))}: {text}"
            small = fewer_than_min_n(rule) if outcome == "not_judged" else ""
            weakest = rule.on_little_data
            if weakest is not None and weakest.verdict == outcome:
                small = "; ".join(part for part in (small, _sentence(little_data(rule))) if part)
            mark = MARK[rule.verdict if rest == len(rule.judgements) else outcome]
            rows.append([mark, name, limit(rule.rule), "", "", small])
    return rows


def _judgement_row(judgement: Judgement) -> list[str]:
    rule = judgement.rule
    name = f"`{rule.metric}`"
    if rule.by is not None:
        name += f" of {_cell(rule.by)} = {_cell(str(judgement.group))}"
    found, ends = judged_numbers(judgement)
    return [
        MARK[judgement.verdict],
        name,
        limit(rule),
        found,
        ends,
        explanation(judgement),
    ]


def _table(header: list[str], rows: list[list[str]], *, right: tuple[int, ...]) -> list[str]:
    rule = ["---:" if i in right else ":---" for i in range(len(header))]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


def _cell(text: str) -> str:
    """Return a name as code for a table cell, where a pipe would start the next cell."""
    # A backslash before a pipe would be read as an escape itself, so such a pipe is replaced.
    return _code(text.replace("\\|", "\\¦").replace("|", "\\|"))


def _code(text: str) -> str:
    """Return a name from a file as code, so that nothing in it is markup, a link or a mention.

    >>> _code("cat"), _code("a`b")
    ('`cat`', '``a`b``')
    """
    shown = printable(text, longest=100) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _sentence(text: str) -> str:
    """Return a sentence that may hold names from a file, with all markup escaped."""
    shown = re.sub(r"([\\`*_{}\[\]()+!|~$^])", r"\\\1", printable(text, longest=400))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Mentions, references and bare addresses become links after everything else was read.
    return re.sub(r"(@|#|:(?=//)|www(?=\.))", "\\1\u200b", shown, flags=re.IGNORECASE)
