"""The cards of the methods."""

from __future__ import annotations

from flipguard.methods import METHODS
from pages.elodi_price import elodi_price

# Text below the options of a card.
NOTES = {"elodi": elodi_price}


def methods_page() -> str:
    """One card per method."""
    lines = [
        "# Methods",
        "",
        "These are the names for `flipguard train --method`. Set options with `--set options.NAME=VALUE`.",
        "`+entropy` and `+skl` add a regulariser to co-distillation: `codistill-skl+entropy`. [Losses](losses.md) has the formulas.",
        "[Choose a method](guides/choose.md) says which method fits which situation.",
        "",
        "flipguard's defaults are not always those of the paper. Each card says where they differ, and",
        "`options.preset=paper` uses the paper's value for every option that is not given, which is its printed equation. A card",
        "also says how a weight of the paper is written with our defaults. The `run.json` of a run lists the",
        "differences under `departures`. Every loss is a mean over the batch, also where a paper prints a sum over",
        "the training set, as in PCT's equation 7. The recipes of the papers are [`recipe.preset`](runs.md#settings).",
        "",
        "| method | what it does | paper |",
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
        if weights := method.default_weights():
            lines.append(f"- **A weight of the paper.** {'; '.join(weights)}.")
        for option in method.settable:
            others = f" Choices: {', '.join(option.choices)}." if option.choices else ""
            lines.append(f"- `{option.name} = {option.default!r}`: {option.sentence}{others}")
        if method.name in NOTES:
            lines += NOTES[method.name]().rstrip().splitlines()
    return "\n".join(lines) + "\n"
