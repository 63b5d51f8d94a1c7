"""The cards of the methods."""

from __future__ import annotations

from flipguard.methods import METHODS
from pages.elodi_price import elodi_price

# What a card says below its options.
NOTES = {"elodi": elodi_price}


def methods_page() -> str:
    """One card per method."""
    lines = [
        "# Methods",
        "",
        "What `flipguard train --method` understands; options are set by `--set options.NAME=VALUE`.",
        "`codistill-skl+entropy` and `codistill-skl+skl` add a regulariser. The formulas are on the",
        "[cards of the losses](losses.md). flipguard's defaults are not always those of the paper: each card says",
        "where they differ, and `options.preset=paper` uses the paper's value for every option that is not",
        "given. The `run.json` of a run lists the differences for its settings under `departures`. Every loss is a",
        "mean over the batch, also where a paper prints a sum over the training set, as PCT does in equation 7.",
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
            lines.append(f"- **Not as in the paper.** {departure}.")
        for option in method.settable:
            others = f" Choices: {', '.join(option.choices)}." if option.choices else ""
            lines.append(f"- `{option.name} = {option.default!r}`: {option.sentence}{others}")
        if method.name in NOTES:
            lines += NOTES[method.name]().rstrip().splitlines()
    return "\n".join(lines) + "\n"
