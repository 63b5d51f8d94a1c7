"""The page of methods: one card per method."""

from __future__ import annotations

from flipguard.methods import METHODS
from pages.elodi_price import elodi_price

# Sections below the options of a card.
NOTES = {"elodi": elodi_price}


def methods_page() -> str:
    """Return the page, with one card per method."""
    lines = [
        "# Methods",
        "",
        "The methods of `flipguard train --method`. Set an option with `--set options.NAME=VALUE`.",
        "`codistill-skl+entropy` and `codistill-skl+skl` add a regulariser. The formulas are on the",
        "[cards of the losses](losses.md). Some of flipguard's defaults differ from the paper: each card lists the",
        "differences, and `options.preset=paper` uses the paper's value for every option that is not",
        "given. The `run.json` of a run lists the differences for its settings under `departures`. Every loss is a",
        "mean over the batch, even if the paper has a sum over the training set, as in PCT's equation 7.",
        "",
        "| method | | paper |",
        "|---|---|---|",
    ]
    for method in METHODS.values():
        lines.append(f"| [`{method.name}`](#{method.name}) | {method.sentence} | {method.paper} |")
    for method in METHODS.values():
        lines += [
            "",
            f"## `{method.name}`",
            "",
            method.sentence,
            "",
            f"- **Paper.** {method.paper}",
        ]
        if method.needed():
            lines.append(f"- **Needs.** {method.needed()}")
        for departure in method.default_departures():
            lines.append(f"- **Differs from the paper.** {departure}.")
        for option in method.settable:
            others = f" Choices: {', '.join(option.choices)}." if option.choices else ""
            lines.append(f"- `{option.name} = {option.default!r}`: {option.sentence}{others}")
        if method.name in NOTES:
            lines += NOTES[method.name]().rstrip().splitlines()
    return "\n".join(lines) + "\n"
