"""A comparison in a notebook: the few numbers that decide, without script and without an extra."""

from __future__ import annotations

from html import escape

from flipguard.comparison import Comparison
from flipguard.render.numbers import Card, key_numbers, visible

GROUPS_SHOWN = 5
TONES = {"harm": "#d4551d", "gain": "#2b8ac6", "plain": "inherit"}
CELL = "text-align:right;padding:2px 14px 2px 0;font-variant-numeric:tabular-nums"
NAME = "text-align:left;padding:2px 14px 2px 0;font-weight:600"


def notebook_html(result: Comparison) -> str:
    """The comparison as a small table."""
    numbers = key_numbers(result)
    rows = "".join(_row(card) for card in numbers.cards)
    notes = "".join(f"<p><b>Note:</b> {_text(note, 400)}.</p>" for note in numbers.notes)
    return (
        '<div class="flipguard">'
        f"<p><b>{_name(result.old)} → {_name(result.new)}</b><br>{escape(numbers.headline)}</p>"
        f"{notes}"
        '<table style="border-collapse:collapse"><thead><tr>'
        + "".join(
            f'<th scope="col" style="{CELL if i else NAME}">{title}</th>'
            for i, title in enumerate(("metric", "value", "interval", "beside"))
        )
        + f"</tr></thead><tbody>{rows}</tbody></table>{_groups(result)}</div>"
    )


def _row(card: Card) -> str:
    number = card.number
    return (
        f'<tr><th scope="row" style="{NAME}">{escape(card.title)}</th>'
        f'<td style="{CELL};color:{TONES[card.tone]};font-weight:600">{escape(number.text)}</td>'
        f'<td style="{CELL}">{escape(number.interval)}</td>'
        f'<td style="{CELL}">{escape(card.control_text)}</td></tr>'
    )


def _groups(result: Comparison) -> str:
    """The groups that regress beyond chance, by column."""
    lines = []
    for grouping in result.by.values():
        regressed = [group.name for group in grouping if grouping.change(group) == "regressed"]
        if regressed:
            shown = ", ".join(_name(name) for name in regressed[:GROUPS_SHOWN])
            rest = len(regressed) - GROUPS_SHOWN
            more = f" and {rest:,} more" if rest > 0 else ""
            lines.append(f"<li>{_name(grouping.column)}: {shown}{more}</li>")
    return f"<p>Regressed beyond chance:</p><ul>{''.join(lines)}</ul>" if lines else ""


def _name(text: str) -> str:
    return f"<bdi>{_text(text, 80)}</bdi>"


def _text(text: str, longest: int) -> str:
    return escape(visible(text, longest=longest))
