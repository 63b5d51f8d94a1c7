"""Comparisons and verdicts in a notebook: small tables without script."""

from __future__ import annotations

from html import escape

from flipguard.comparison import Comparison
from flipguard.gate import Verdict
from flipguard.render.numbers import Card, key_numbers, visible
from flipguard.render.words import (
    OUTCOME_WORDS,
    explanation,
    judged_numbers,
    limit,
    little_data,
    rule_name,
    verdict_sentence,
)

GROUPS_SHOWN = 5
TONES = {"harm": "#d4551d", "plain": "inherit"}
CELL = "text-align:right;padding:2px 14px 2px 0;font-variant-numeric:tabular-nums"
NAME = "text-align:left;padding:2px 14px 2px 0;font-weight:600"


def verdict_html(verdict: Verdict) -> str:
    """Return the verdict with one row per rule, showing its worst group, and the comparison."""
    rows = []
    for rule in verdict.rules:
        worst = rule.judgements[0]
        name = rule_name(rule.rule) + (f" = {worst.group}" if worst.group is not None else "")
        shown = [
            OUTCOME_WORDS[rule.verdict],
            limit(rule.rule),
            *judged_numbers(worst),
            "; ".join(part for part in (explanation(worst), little_data(rule)) if part),
        ]
        rows.append([_name(name), *(escape(text) for text in shown)])
    if verdict.pinned is not None:
        flipped = f"{len(verdict.pinned.flipped):,} of {verdict.pinned.n:,}"
        word = OUTCOME_WORDS[verdict.pinned.verdict]
        rows.append(["pinned samples", word, "no flip", flipped, "", ""])
    word = OUTCOME_WORDS[verdict.verdict].capitalize()
    return (
        f'<div class="flipguard"><p><b>{word}</b>: {_text(verdict_sentence(verdict), 2_000)}</p>'
        + _table(("rule", "verdict", "limit", "value", "interval", ""), rows)
        + f"</div>{comparison_html(verdict.comparison)}"
    )


def comparison_html(result: Comparison) -> str:
    """Return the headline and the key metrics as a small table."""
    numbers = key_numbers(result)
    rows = [_row(card) for card in numbers.cards]
    notes = "".join(f"<p><b>Note:</b> {_text(note, 400)}.</p>" for note in numbers.notes)
    return (
        '<div class="flipguard">'
        f"<p><b>{_name(result.old)} → {_name(result.new)}</b><br>{escape(numbers.headline)}</p>"
        f"{notes}"
        f"{_table(('metric', 'value', 'interval', 'compared with'), rows)}{_groups(result)}</div>"
    )


def _row(card: Card) -> list[str]:
    number = card.number
    value = f'<b style="color:{TONES[card.tone]}">{escape(number.text)}</b>'
    return [escape(card.title), value, escape(number.interval), escape(card.control_text)]


def _table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a table of cells that are HTML already; the first cell of a row names it."""
    head = "".join(
        f'<th scope="col" style="{CELL if i else NAME}">{title}</th>'
        for i, title in enumerate(header)
    )
    body = "".join(
        f'<tr><th scope="row" style="{NAME}">{name}</th>'
        + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return (
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _groups(result: Comparison) -> str:
    """Return the groups that regress by more than chance, per column."""
    lines = []
    for grouping in result.by.values():
        regressed = [group.name for group in grouping if grouping.change(group) == "regressed"]
        if regressed:
            shown = ", ".join(_name(name) for name in regressed[:GROUPS_SHOWN])
            rest = len(regressed) - GROUPS_SHOWN
            more = f" and {rest:,} more" if rest > 0 else ""
            lines.append(f"<li>{_name(grouping.column)}: {shown}{more}</li>")
    return f"<p>Regressed by more than chance:</p><ul>{''.join(lines)}</ul>" if lines else ""


def _name(text: str) -> str:
    return f"<bdi>{_text(text, 80)}</bdi>"


def _text(text: str, longest: int) -> str:
    return escape(visible(text, longest=longest))
