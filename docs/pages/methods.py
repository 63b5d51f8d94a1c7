"""The cards of the methods."""

from __future__ import annotations

from flipguard.methods import METHODS
from pages.elodi_price import elodi_price

# What a card says below its options.
NOTES = {"elodi": elodi_price}


def methods_page() -> str:
    """A card a method."""
    lines = [
        "# Methods",
        "",
        "What `flipguard train --method` understands; options are set by `--set options.NAME=VALUE`.",
        "`codistill-skl+entropy` and `codistill-skl+skl` add a regulariser. The formulas are on the",
        "[cards of the losses](losses.md).",
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
        if method.needs:
            lines.append(f"- **Needs.** {method.needed()}")
        for option in method.options:
            others = f" One of {', '.join(option.choices)}." if option.choices else ""
            lines.append(f"- `{option.name} = {option.default!r}`: {option.sentence}{others}")
        if method.name in NOTES:
            lines += NOTES[method.name]().rstrip().splitlines()
    return "\n".join(lines) + "\n"
